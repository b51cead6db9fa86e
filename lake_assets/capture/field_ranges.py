"""Field ranges: hulls of the values in captured files, from partition values and column bounds.

A range is never narrower than the values. Bounds may be missing (metrics modes, wide tables) or truncated (strings);
unknown ends are unbounded, and the range is marked as inexact.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType, NestedField, PrimitiveType, StructType

from lake_assets.capture.files.column_bounds import NANOS, TRUNCATED, bound, of_partition
from lake_assets.capture.files.manifests import Entry


@dataclass(frozen=True)
class FieldRange:
    """No captured row has a value of this field below `low` or above `high`."""

    low: Any
    """None if unbounded, or if there are no values (`has_values`)."""
    high: Any
    exact: bool
    """Whether low and high occur in the captured files: neither truncated, nor derived from a partition."""
    nulls: bool
    """Whether there may be nulls."""
    nans: bool = False
    """Whether there may be NaN, which lies outside every range."""
    has_values: bool = True
    """Whether there may be anything but nulls and NaN."""

    @property
    def is_bounded(self) -> bool:
        """Whether both ends are known."""
        return not self.has_values or (self.low is not None and self.high is not None)

    @property
    def ends(self) -> tuple[str, str]:
        """Both ends for people: values as they are, and bounds that need not be values as `>= a` and `<= b`."""
        if not self.has_values:
            return "no values", "no values"
        signs = ("", "") if self.exact else (">= ", "<= ")
        low, high = (
            "unbounded" if end is None else f"{sign}{end}"
            for sign, end in zip(signs, (self.low, self.high), strict=True)
        )
        return low, high

    def covers(self, value: Any) -> bool:
        """Whether `value` may be among the captured rows."""
        if value is None:
            return self.nulls
        if isinstance(value, float) and math.isnan(value):
            return self.nans
        if isinstance(value, datetime) and value.tzinfo is None and self._is_zoned:
            value = value.replace(tzinfo=UTC)  # as returned by a Spark session in UTC
        if isinstance(value, str) and any(isinstance(end, UUID) for end in (self.low, self.high)):
            value = UUID(value)  # as returned by Spark
        is_above_low = self.low is None or value >= self.low
        return self.has_values and is_above_low and (self.high is None or value <= self.high)

    @property
    def _is_zoned(self) -> bool:
        return any(isinstance(end, datetime) and end.tzinfo is not None for end in (self.low, self.high))

    def __or__(self, other: FieldRange) -> FieldRange:
        """Return the hull of both."""
        nulls, nans = self.nulls or other.nulls, self.nans or other.nans
        if not self.has_values or not other.has_values:
            one = self if self.has_values else other
            return FieldRange(one.low, one.high, one.exact, nulls, nans, one.has_values)
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return FieldRange(low, high, self.exact and other.exact, nulls, nans)


NOTHING = FieldRange(None, None, exact=True, nulls=False, has_values=False)
ANYTHING = FieldRange(None, None, exact=False, nulls=True, nans=True)


def field_ranges(
    entries: Iterable[Entry],
    schema: Schema,
    specs: Mapping[int, PartitionSpec],
    *,
    unreadable: Collection[int] = (),
) -> dict[str, FieldRange]:
    """Return the range of every primitive field of `schema` over `entries`; a field within structs is named `a.b`.

    Elements of lists and entries of maps have no range.

    Args:
        unreadable: ids of top-level fields whose bounds have another type: their ranges are unbounded.
    """
    fields = dict(_leaves(schema.fields, "", nullable=False))
    unreadable_fields = dict(_leaves([f for f in schema.fields if f.field_id in unreadable], "", nullable=False))
    ranges = dict.fromkeys(fields, NOTHING)
    for e in entries:
        if not e.records:
            continue
        statistics = _FileStatistics(e, specs[e.spec_id])
        for name, (f, nullable) in fields.items():
            ranges[name] |= ANYTHING if name in unreadable_fields else statistics.range_of(f, nullable=nullable)
    return ranges


def _leaves(
    fields: Iterable[NestedField], prefix: str, *, nullable: bool
) -> Iterator[tuple[str, tuple[NestedField, bool]]]:
    for f in fields:
        may_be_null = nullable or not f.required
        if isinstance(f.field_type, StructType):
            yield from _leaves(f.field_type.fields, f"{prefix}{f.name}.", nullable=may_be_null)
        elif isinstance(f.field_type, PrimitiveType):
            yield prefix + f.name, (f, may_be_null)


class _FileStatistics:
    """Statistics of a manifest entry about the columns of one file."""

    def __init__(self, e: Entry, spec: PartitionSpec) -> None:
        self.records = e.records
        self.values = e.statistic("value_counts")
        self.nulls = e.statistic("null_value_counts")
        self.nans = e.statistic("nan_value_counts")
        self.lows, self.highs = e.statistic("lower_bounds"), e.statistic("upper_bounds")
        self.partition: dict[int, list[tuple[PartitionField, Any]]] = {}
        for p, value in zip(spec.fields, e.partition, strict=True):
            self.partition.setdefault(p.source_id, []).append((p, value))

    def range_of(self, f: NestedField, *, nullable: bool) -> FieldRange:
        at, kind = f.field_id, f.field_type
        count, nulls, nans = self.values.get(at), self.nulls.get(at), self.nans.get(at)
        # Without a value count, the file may be older than the field, which then reads as null or a default.
        may_be_null = nullable and (nulls is None or nulls > 0 or count is None or count < self.records)
        may_be_nan = isinstance(kind, FloatType | DoubleType) and (nans is None or nans > 0)
        low = bound(kind, self.lows.get(at), upper=False)
        high = bound(kind, self.highs.get(at), upper=True)
        exact = low is not None and high is not None and not isinstance(kind, (*TRUNCATED, *NANOS))
        for p, value in self.partition.get(at, ()):
            identity = isinstance(p.transform, IdentityTransform)
            if identity and value is None:
                return FieldRange(None, None, exact=True, nulls=True, has_values=False)
            if identity and isinstance(value, float) and math.isnan(value):
                return FieldRange(None, None, exact=True, nulls=False, nans=True, has_values=False)
            first, last = of_partition(kind, p, value) if value is not None else (None, None)
            if identity and first is not None:
                return FieldRange(first, last, exact=True, nulls=False)
            if first is not None and (low is None or low < first):
                low, exact = first, False
            if last is not None and (high is None or high > last):
                high, exact = last, False
        only_nulls = count is not None and count == self.records and nulls is not None and nulls + (nans or 0) == count
        if only_nulls:
            return FieldRange(None, None, exact=True, nulls=may_be_null, nans=may_be_nan, has_values=False)
        return FieldRange(low, high, exact, may_be_null, may_be_nan)

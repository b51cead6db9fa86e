"""Fields of a capture as people read them: the most telling ones first, partition values as they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TimeTransform
from pyiceberg.types import DateType, TimestampNanoType, TimestampType, TimestamptzNanoType, TimestamptzType

from lake_assets.capture.field_ranges import FieldRange
from lake_assets.capture.files.column_bounds import of_partition
from lake_assets.capture.files.manifests import Entry

_TIMES = (DateType, TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)


def by_meaning(ranges: Mapping[str, FieldRange], schema: Schema, spec: PartitionSpec) -> list[str]:
    """Return the columns with a range, those first that tell people most of a change: partitions, times, the key.

    Last come the package's own columns, whose names begin with `_`, and those without a known range.
    """
    partitions = {f.source_id for f in spec.fields}
    identifiers = schema.identifier_field_names()

    def rank(name: str) -> int:
        field, hull = schema.find_field(name), ranges[name]
        if hull.has_values and hull.low is None and hull.high is None:
            return 5
        if name.startswith("_"):
            return 4
        if field.field_id in partitions:
            return 0
        return 1 if isinstance(field.field_type, _TIMES) else 2 if name in identifiers else 3

    return sorted(ranges, key=rank)


def partition_values(entry: Entry, spec: PartitionSpec, schema: Schema) -> dict[str, Any]:
    """Return the partition of a data file, by the names of its fields."""
    values: dict[str, Any] = {}
    for p, value in zip(spec.fields, entry.partition, strict=True):
        exists = p.source_id in schema.field_ids
        hull = of_partition(schema.find_type(p.source_id), p, value) if exists and value is not None else (0, 1)
        # Dates and decimals are more readable than their stored numbers, and so is 2013-03 than the month 518.
        is_one = hull[0] is not None and hull[0] == hull[1]
        values[p.name] = hull[0] if is_one else _in_words(p, value) if exists else value
    return values


def _in_words(field: PartitionField, value: Any) -> Any:
    """Return the partition value of a year, month, day or hour as people write it; other values as they are."""
    if isinstance(value, int) and isinstance(field.transform, TimeTransform):
        return field.transform.to_human_string(DateType(), value)
    return value

"""How many rows differ in each partition of a table, and how many it has before and after.

Commits may write to partitions in which no row differs: these are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lake_assets.lake import quote, thresholds
from lake_assets.pipeline.paired_rows import AFTER, BEFORE
from lake_assets.tables.partitioning.table_partitions import Partitions

_SIDES = (BEFORE, AFTER)
# The column of the partitions may have any other name.
_OWN = "__lake_"


@dataclass(frozen=True)
class PartitionDifference:
    """What differs in one partition.

    Attributes:
        key: its key; None: it has the rows without a partition (a time that is null).
        added, removed, changed: numbers of rows. A row that moves to another partition is removed from one and added to
            the other. None: unknown, since rows of two partitions were counted together.
        rows: number of rows before and after; None: unknown.
    """

    key: str | None
    added: int | None
    removed: int | None
    changed: int | None
    rows: tuple[int | None, int | None] = (None, None)


@dataclass
class _Counts:
    added: int = 0
    removed: int = 0
    changed: int = 0


@dataclass
class _ByKey:
    """Numbers of rows by key, and the keys whose rows were counted together with those of another key."""

    counts: dict[str | None, _Counts] = field(default_factory=dict[str | None, _Counts])
    mixed: set[str | None] = field(default_factory=set[str | None])


def partition_differences(
    changed: DataFrame, by: Partitions, former: Callable[[str], DataFrame] | None
) -> tuple[PartitionDifference, ...]:
    """Return what differs in each partition, by key.

    Args:
        changed: see `changed_rows`.
        by: the partitions, by a column that both sides have.
        former: returns the rows before that meet a condition in SQL; None: what it would be compared with has another
            name or type.
    """
    kind = _kind(changed, by)
    differences = _differences(changed, by, kind)
    keys = sorted(differences.counts, key=lambda key: (key is None, key or ""))
    before: Mapping[str | None, int | None] = {}
    if former is not None and keys and len(keys) <= thresholds.COMPARED_PARTITIONS:
        before = _rows_before(former, by, kind, keys)
    found: list[PartitionDifference] = []
    for key in keys:
        if key in differences.mixed:
            found.append(PartitionDifference(key, None, None, None))
            continue
        n, rows = differences.counts[key], before.get(key)
        after = None if rows is None else rows + n.added - n.removed
        found.append(PartitionDifference(key, n.added, n.removed, n.changed, (rows, after)))
    return tuple(found)


def _kind(changed: DataFrame, by: Partitions) -> str:
    """Return the Spark SQL type of the column."""
    image = changed.schema[AFTER].dataType
    assert isinstance(image, T.StructType)
    return image[by.by].dataType.simpleString()


def _differences(changed: DataFrame, by: Partitions, kind: str) -> _ByKey:
    rows = changed.select(*(F.col(side).getField(by.by).alias(f"{_OWN}{side}") for side in _SIDES), *_is_there())
    for side in _SIDES:
        # Expressions of the partitions name their column.
        rows = rows.withColumn(by.by, F.col(f"{_OWN}{side}"))
        own = {f"{_OWN}place_{side}": F.expr(by.place(kind)), f"{_OWN}at_{side}": F.expr(by.number(kind))}
        rows = rows.withColumns(own).drop(F.col(quote(by.by)))
    ends = [
        f(f"{_OWN}at_{side}").alias(f"{end}_{side}") for side in _SIDES for end, f in (("low", F.min), ("high", F.max))
    ]
    groups = rows.groupBy(*(f"{_OWN}{what}{side}" for what in ("is_", "place_") for side in _SIDES))
    found = _ByKey()
    for group in groups.agg(F.count(F.lit(1)).alias("rows"), *ends).toArrow().to_pylist():
        before, after = (_keys(group, f"_{side}", by, kind) if group[f"{_OWN}is_{side}"] else set() for side in _SIDES)
        for key in before | after:
            n = found.counts.setdefault(key, _Counts())
            n.removed += group["rows"] if key in before - after else 0
            n.added += group["rows"] if key in after - before else 0
            n.changed += group["rows"] if key in before & after else 0
        if len(before) > 1 or len(after) > 1:
            found.mixed |= before | after
    return found


def _is_there() -> list[Column]:
    """Return whether a row is on either side."""
    return [F.col(side).isNotNull().alias(f"{_OWN}is_{side}") for side in _SIDES]


def _keys(group: Mapping[str, Any], ending: str, by: Partitions, kind: str) -> set[str | None]:
    """Return the keys of a group of rows; usually one: see `Partitions.place`."""
    return {by.key_of(by.value_of(group[f"{end}{ending}"], kind)) for end in ("low", "high")}


def _rows_before(
    former: Callable[[str], DataFrame], by: Partitions, kind: str, keys: Sequence[str | None]
) -> dict[str | None, int | None]:
    """Count the rows before in some partitions, from the files that may hold them; None: see `_ByKey.mixed`."""
    condition = by.condition([k for k in keys if k is not None], kind)
    if None in keys:
        condition = f"({condition}) OR {quote(by.by)} IS NULL"
    number = F.expr(by.number(kind))
    groups = former(condition).groupBy(F.expr(by.place(kind)).alias("place"))
    counted = groups.agg(F.min(number).alias("low"), F.max(number).alias("high"), F.count(F.lit(1)).alias("rows"))
    rows: dict[str | None, int | None] = dict.fromkeys(keys, 0)
    for group in counted.toArrow().to_pylist():
        found = _keys(group, "", by, kind)
        for key in found & rows.keys():
            known = rows[key]
            rows[key] = None if known is None or len(found) > 1 else known + group["rows"]
    return rows

"""Find the partitions that commits touched, and how much of each changed: from metadata if possible.

Iceberg's partitions are in UTC, and files of an older spec may have any values. If the values of a file may have
several keys, metadata does not show which of them changed: then one query reads the changed rows of the window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import functions as F

from lake_assets.capture import Capture, FieldRange, capture
from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.capture.rows.value_differences import SIGN
from lake_assets.errors import NotAnAncestorError, SnapshotExpiredError
from lake_assets.lake import LakeBase, TableId
from lake_assets.tables.partitioning.table_partitions import Partitions


@dataclass(frozen=True)
class PartitionChange:
    """The changes of one partition.

    Attributes:
        came: number of rows written; None: unknown.
        went: number of rows deleted or replaced; None: unknown.
        files, bytes: number and size of the files with these rows or their deletes; None: the files also have rows of
            other partitions.
    """

    came: int | None = 0
    went: int | None = 0
    files: int | None = 0
    bytes: int | None = 0

    def __add__(self, other: PartitionChange) -> PartitionChange:
        def both(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a + b

        return PartitionChange(
            both(self.came, other.came),
            both(self.went, other.went),
            both(self.files, other.files),
            both(self.bytes, other.bytes),
        )


def partition_changes(
    lake: LakeBase, table: TableId, by: Partitions, start: int | None, end: int | None = None
) -> dict[str | None, PartitionChange]:
    """Return the changes of each partition that the snapshots of a window touched.

    A row that moves to another partition touches both. Compaction touches no partition. A commit that replaces all rows
    touches all partitions, whether their rows differ or not. Spark is started only if metadata is not sufficient.

    Args:
        lake: the lake.
        table: the table.
        by: its partitions.
        start: the snapshot before the window; None: the window starts with the table.
        end: the last snapshot of the window; None: the current one.

    Returns:
        The changes by key; the key None has the rows without a partition (a time that is null).

    Raises:
        HistoryError: the window cannot be captured.
    """
    with _captured(lake, table, start, end) as captured:
        if captured.is_empty:
            return {}
        by = by.spelled_as(captured.schema.column_names)
        changes: dict[str | None, PartitionChange] = {}
        for piece in captured.pieces(by.by):
            if not piece.came and not piece.went and piece.came is not None and piece.went is not None:
                continue
            keys = keys_in(by, piece.range)
            if keys is None:
                return _of_rows(lake, captured, by)
            for key in keys:
                changes[key] = changes.get(key, PartitionChange()) + PartitionChange(
                    piece.came, piece.went, 1, piece.bytes
                )
        return changes


def _captured(lake: LakeBase, table: TableId, start: int | None, end: int | None) -> Capture:
    try:
        # Per snapshot, so files rewritten by upkeep between two steps are left out, whatever follows.
        return capture(lake, table, start, end, granularity="snapshot" if start is not None else "net")
    except (NotAnAncestorError, SnapshotExpiredError):
        return capture(lake, table, start, end)


def keys_in(by: Partitions, range_: FieldRange) -> set[str | None] | None:
    """Return the one key of all values of a range, an empty set for no values, None if several keys are possible."""
    if range_.nans or not range_.is_bounded:
        return None
    keys: set[str | None] = {by.key_of(None)} if range_.nulls else set()
    if range_.has_values:
        low, high = by.key_of(range_.low), by.key_of(range_.high)
        # Between two different texts, other values are possible.
        if low != high or (by.every is None and (not range_.exact or range_.low != range_.high)):
            return None
        keys.add(low)
    return keys if len(keys) <= 1 else None


def _of_rows(lake: LakeBase, captured: Capture, by: Partitions) -> dict[str | None, PartitionChange]:
    """Return the changes per key, from the changed rows themselves."""
    # First of all: expressions need a session, and in a run that only marks partitions there is none yet.
    spark, kind = lake.spark(), kind_of(captured, by)
    number = F.expr(by.number(kind))
    rows = captured.signed(spark).groupBy(F.expr(by.place(kind)).alias("place"))
    groups = rows.agg(
        F.min(number).alias("low"),
        F.max(number).alias("high"),
        F.count_if(F.col(SIGN) > 0).alias("came"),
        F.count_if(F.col(SIGN) < 0).alias("went"),
    ).toArrow()
    changes: dict[str | None, PartitionChange] = {}
    for row in groups.to_pylist():
        keys = {by.key_of(by.value_of(row[end], kind)) for end in ("low", "high")}
        several = len(keys) > 1
        change = PartitionChange(None if several else row["came"], None if several else row["went"], None, None)
        for key in keys:
            changes[key] = changes.get(key, replace(PartitionChange(), files=None, bytes=None)) + change
    return changes


def kind_of(captured: Capture, by: Partitions) -> str:
    """Return the Spark SQL type of the column."""
    return spark_type(captured.schema.find_type(by.by)).lower()


def counted(part: PartitionChange, updated: int) -> dict[str, int]:
    """Return the numbers of rows inserted, updated and deleted in a partition, as far as they follow from its changes.

    An update removes a row and writes another, perhaps in another partition. So if the step `updated` rows, the
    partitions
    of these updates are unknown.
    """
    if part.came is None or part.went is None:
        return {}
    if not updated or not (part.came or part.went):
        return {"rows_inserted": part.came, "rows_updated": 0, "rows_deleted": part.went}
    counts = {"rows_inserted": part.came, "rows_deleted": part.went}
    return {name: 0 for name, n in counts.items() if not n}

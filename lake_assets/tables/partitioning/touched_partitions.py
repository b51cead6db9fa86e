"""Which partitions of a table some commits touched, and how much of each: from metadata, where that tells.

Iceberg's partitions are those of UTC, and files of an older spec hold what they hold. A file whose values may have
several keys leaves open which of them changed: then the changed rows of the window are asked, with one query.
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
class Touched:
    """What became of one partition.

    Attributes:
        came: rows that were written; None: not known.
        went: rows that are not there any more, or not as they were; None: not known.
        files, bytes: that hold or hide these rows; None: they hold those of other partitions too.
    """

    came: int | None = 0
    went: int | None = 0
    files: int | None = 0
    bytes: int | None = 0

    def __add__(self, other: Touched) -> Touched:
        def both(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a + b

        return Touched(
            both(self.came, other.came),
            both(self.went, other.went),
            both(self.files, other.files),
            both(self.bytes, other.bytes),
        )


def touched(
    lake: LakeBase, table: TableId, by: Partitions, start: int | None, end: int | None = None
) -> dict[str | None, Touched]:
    """The partitions that the snapshots of a window touched, each once; a row that moves touches both.

    Compaction touches none. A commit that replaces all rows touches all partitions, whether their rows differ or not.

    Args:
        lake: Spark is started only where metadata does not tell.
        table: the table.
        by: its partitions.
        start: the snapshot up to which the partitions are known; None: none are.
        end: up to which snapshot; None: the current one.

    Returns:
        By key; None stands for rows that belong to no partition (a time that is null).

    Raises:
        HistoryError: the window cannot be had.
    """
    with _captured(lake, table, start, end) as captured:
        if captured.is_empty:
            return {}
        found: dict[str | None, Touched] = {}
        for piece in captured.pieces(by.by):
            if not piece.came and not piece.went and piece.came is not None and piece.went is not None:
                continue
            keys = keys_in(by, piece.range)
            if keys is None:
                return _of_rows(lake, captured, by)
            for key in keys:
                found[key] = found.get(key, Touched()) + Touched(piece.came, piece.went, 1, piece.bytes)
        return found


def _captured(lake: LakeBase, table: TableId, start: int | None, end: int | None) -> Capture:
    try:
        # Snapshot by snapshot: what upkeep rewrites between two steps is then left out whatever came after it.
        return capture(lake, table, start, end, granularity="snapshot" if start is not None else "net")
    except (NotAnAncestorError, SnapshotExpiredError):
        return capture(lake, table, start, end)


def keys_in(by: Partitions, range_: FieldRange) -> set[str | None] | None:
    """The one key of all values of a range; none where there are no values; None where there may be several."""
    if range_.nans or not range_.is_bounded:
        return None
    keys: set[str | None] = {by.key_of(None)} if range_.nulls else set()
    if range_.has_values:
        low, high = by.key_of(range_.low), by.key_of(range_.high)
        # Between two texts there are others.
        if low != high or (by.every is None and (not range_.exact or range_.low != range_.high)):
            return None
        keys.add(low)
    return keys if len(keys) <= 1 else None


def _of_rows(lake: LakeBase, captured: Capture, by: Partitions) -> dict[str | None, Touched]:
    """The keys of the changed rows themselves."""
    kind = kind_of(captured, by)
    number = F.expr(by.number(kind))
    rows = captured.signed(lake.spark()).groupBy(F.expr(by.place(kind)).alias("place"))
    looked = rows.agg(
        F.min(number).alias("low"),
        F.max(number).alias("high"),
        F.count_if(F.col(SIGN) > 0).alias("came"),
        F.count_if(F.col(SIGN) < 0).alias("went"),
    ).toArrow()
    found: dict[str | None, Touched] = {}
    for row in looked.to_pylist():
        keys = {by.key_of(by.value_of(row[end], kind)) for end in ("low", "high")}
        several = len(keys) > 1
        some = Touched(None if several else row["came"], None if several else row["went"], None, None)
        for key in keys:
            found[key] = found.get(key, replace(Touched(), files=None, bytes=None)) + some
    return found


def kind_of(captured: Capture, by: Partitions) -> str:
    """Spark's type of the column."""
    return spark_type(captured.schema.find_type(by.by)).lower()


def counted(part: Touched, updated: int) -> dict[str, int]:
    """Rows inserted, updated and deleted in a partition, as far as that follows from what came and went.

    An update takes a row away and writes another, perhaps in another partition: where a step made some, it is not known
    of which partitions.

    Args:
        part: what became of the partition.
        updated: how many rows the whole step updated.
    """
    if part.came is None or part.went is None:
        return {}
    if not updated or not (part.came or part.went):
        return {"rows_inserted": part.came, "rows_updated": 0, "rows_deleted": part.went}
    found = {"rows_inserted": part.came, "rows_deleted": part.went}
    return {name: 0 for name, n in found.items() if not n}

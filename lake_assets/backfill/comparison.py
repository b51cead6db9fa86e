"""Compare the tables of a backfill before and after it: changed rows, partitions, sums of numbers, and samples.

The two states are two snapshots of one table, so the change feed has what differs, and the cost follows that. Before
publishing, the table is one in the side catalog that nobody else sees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.backfill.backfill_record import BackfillRecord, Records, TableRecord
from lake_assets.backfill.side_lake import SideLake
from lake_assets.capture import capture
from lake_assets.errors import BackfillError, StaleBackfillError
from lake_assets.facade import Lake
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.metadata_commits import now_ms, read_metadata, read_metadata_at
from lake_assets.lake.metadata.working_copies import grafted
from lake_assets.tables.partitioning.partition_changes import partition_changes
from lake_assets.tables.partitioning.table_partitions import Partitions
from lake_assets.tables.writing.table_ddl import columns_of, key_in

_CHANGE = "_change_type"
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_COMPARED = "compared"


@dataclass(frozen=True)
class TableComparison:
    """What a backfill changes in one table.

    Attributes:
        inserted, updated, deleted: numbers of rows; without a key, an updated row is a deleted and an inserted one.
        key: columns that identify a row; with them, each changed row is one changed key.
        partitions: keys of the changed partitions; None: the table has no `partitions`.
        sums: by numeric column outside the key, the sums over the changed rows, before and after.
        samples: some changed rows, with `_change_type`.
    """

    table: str
    inserted: int
    updated: int
    deleted: int
    key: tuple[str, ...]
    partitions: tuple[str, ...] | None
    sums: Mapping[str, tuple[Any, Any]]
    samples: tuple[Mapping[str, Any], ...]

    @property
    def changed(self) -> int:
        """Number of changed rows."""
        return self.inserted + self.updated + self.deleted


def compare(
    lake: Lake, record: BackfillRecord, partitions: Mapping[str, Partitions | None], samples: int = 5
) -> Iterator[TableComparison]:
    """Compare each table of a backfill: before publishing, main and the working copy, else before and after.

    Args:
        lake: the lake.
        record: the backfill.
        partitions: by table, its declared partitions.
        samples: number of rows to show of each table.

    Raises:
        BackfillError: the backfill was discarded or not begun, or the state from before is no longer kept.
        StaleBackfillError: a table has changed so much on main that the copy cannot be published.
    """
    if record.state in ("discarding", "discarded"):
        raise BackfillError(
            f"the backfill {record.id} is discarded, so its rows are deleted and cannot be compared: `lake-assets "
            "backfill` begins another one"
        )
    if record.state == "undone":
        undo = Records(lake).undo_of(record.id)
        advice = f": `lake-assets compare {undo.id}` compares the same rows, after and before it" if undo else ""
        raise BackfillError(f"the backfill {record.id} is undone{advice}")
    side = SideLake(lake, record) if record.is_open else None
    for t in record.tables:
        with _two_snapshots(lake, side, record, t) as states:
            yield _compared(states, t.table, partitions.get(t.table), samples)


@dataclass(frozen=True)
class _TwoSnapshots:
    """A table in a lake, with the snapshots before and after the backfill."""

    lake: LakeBase
    table: TableId
    start: int | None
    end: int | None


@contextlib.contextmanager
def _two_snapshots(
    lake: Lake, side: SideLake | None, backfill: BackfillRecord, record: TableRecord
) -> Generator[_TwoSnapshots]:
    if side is None:
        table = lake.table(record.table)
        if record.after is None:  # no row differed
            current = table.metadata.current_snapshot_id
            yield _TwoSnapshots(lake, record.name, current, current)
            return
        if record.before is None or table.snapshot_by_id(record.before) is None:
            raise BackfillError(
                f"the rows of {record.table} from before the backfill {backfill.id} are no longer kept: they were for "
                f"{backfill.keep_days} days (--keep-days of `lake-assets backfill`)"
            )
        yield _TwoSnapshots(lake, record.name, record.before, record.after)
        return
    table, copy = lake.table(record.table), side.lake.find(record.table)
    if copy is None or not record.metadata:
        raise BackfillError(
            f"there is no working copy of {record.table} to compare: nothing of the backfill {backfill.id} has been "
            f"built yet. First {backfill.ways_to_end}"
        )
    start = read_metadata_at(copy.io, record.metadata)
    try:
        metadata = grafted(read_metadata(table), read_metadata(copy), start, now_ms())
    except StaleBackfillError as e:
        raise StaleBackfillError(
            f"{record.table} cannot be compared: {e}. Discard the backfill (`lake-assets discard {backfill.id}`) and "
            "begin again"
        ) from e
    with side.registered(copy, TableId((_COMPARED,), record.table), metadata) as name:
        start_id, end_id = table.metadata.current_snapshot_id, copy.metadata.current_snapshot_id
        yield _TwoSnapshots(side.lake, name, start_id, end_id)


def _compared(states: _TwoSnapshots, name: str, partitions: Partitions | None, samples: int) -> TableComparison:
    lake, table, start, end = states.lake, states.table, states.start, states.end
    key, types = key_in(lake.table(table)), columns_of(lake, table)
    if start == end:
        return TableComparison(name, 0, 0, 0, key, None if partitions is None else (), {}, ())
    numbers = [c for c, kind in types.items() if kind.split("(")[0] in _NUMBERS and c not in key]
    with capture(lake, table, start, end) as captured:
        feed = captured.feed(lake.spark(), list(key) or None).persist()
        try:
            row = feed.agg(*_counts(), *_sums(feed, numbers)).first()
            assert row is not None
            shown = feed.orderBy(*map(quote, key), _CHANGE).limit(samples).collect()
        finally:
            feed.unpersist()
    changed = None
    if partitions is not None:
        changed = tuple(sorted(k for k in partition_changes(lake, table, partitions, start, end) if k is not None))
    sums = {c: (row[f"b{n}"], row[f"a{n}"]) for n, c in enumerate(numbers)}
    return TableComparison(
        name, row["insert"], row["update_after"], row["delete"], key, changed,
        {c: pair for c, pair in sums.items() if pair[0] != pair[1]},
        tuple(r.asDict(recursive=True) for r in shown),
    )  # fmt: skip


def _counts() -> list[Any]:
    return [F.count_if(F.col(_CHANGE) == kind).alias(kind) for kind in ("insert", "update_after", "delete")]


def _sums(feed: DataFrame, numbers: list[str]) -> list[Any]:
    before, after = F.col(_CHANGE).isin("delete", "update_before"), F.col(_CHANGE).isin("insert", "update_after")
    return [
        F.sum(F.when(side, F.col(quote(c)))).alias(f"{name}{n}")
        for n, c in enumerate(numbers)
        for name, side in (("b", before), ("a", after))
    ]

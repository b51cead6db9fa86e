"""Compare the tables of a backfill before and after it: changed rows and columns, partitions, sums, and samples.

The two states are two snapshots of one table, so the change feed has what differs, and the cost follows that. Before
publishing, the table is one in the side catalog that nobody else sees.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.backfill.backfill_record import BackfillRecord, Records, TableRecord
from lake_assets.backfill.changed_columns import ColumnChange, SharedColumns, shared_columns
from lake_assets.backfill.changed_partitions import PartitionDifference, partition_differences
from lake_assets.backfill.side_lake import SideLake
from lake_assets.capture import capture
from lake_assets.capture.rows.value_differences import SIGN
from lake_assets.errors import BackfillError, StaleBackfillError
from lake_assets.facade import Lake
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.metadata_commits import now_ms, read_metadata, read_metadata_at
from lake_assets.lake.metadata.row_counts import rows_in
from lake_assets.lake.metadata.working_copies import grafted
from lake_assets.lake.sensitive_values import SensitiveColumns
from lake_assets.pipeline.paired_rows import OF_SAMPLES, Counts, changed_rows, count
from lake_assets.pipeline.paired_rows import samples as samples_of
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.partitioning.partition_changes import partition_changes
from lake_assets.tables.partitioning.table_partitions import Partitions
from lake_assets.tables.writing.table_ddl import key_in

_COMPARED = "compared"


@dataclass(frozen=True)
class TableComparison:
    """What a backfill changes in one table.

    Attributes:
        inserted, updated, deleted: numbers of rows that differ in the columns that are on both sides; without a key, an
            updated row is a deleted and an inserted one.
        key: columns that identify a row on both sides; with them, each changed row is one changed key.
        partitions: keys of the partitions that were written to; None: the table has no `partitions`.
        by_partition: what differs in each of its partitions; empty as well if the column of the partitions is not on
            both sides.
        sums: by numeric column outside the key, the sums over the changed rows, before and after.
        samples: some changed rows, as they were and as they are, with `_change_type` and, of the second image of an
            updated row, the columns that differ.
        columns: the columns that differ: how many rows do so in each, and which columns are new, dropped or renamed.
        rows: number of rows before and after; None: unknown.
    """

    table: str
    inserted: int
    updated: int
    deleted: int
    key: tuple[str, ...]
    partitions: tuple[str, ...] | None
    sums: Mapping[str, tuple[Any, Any]]
    samples: tuple[Mapping[str, Any], ...]
    columns: tuple[ColumnChange, ...] = ()
    rows: tuple[int | None, int | None] = (None, None)
    by_partition: tuple[PartitionDifference, ...] = ()

    @property
    def changed(self) -> int:
        """Number of changed rows."""
        return self.inserted + self.updated + self.deleted

    @property
    def is_equal(self) -> bool:
        """Whether neither rows nor columns differ."""
        return not self.changed and not self.columns

    def without_values_of(self, columns: SensitiveColumns) -> TableComparison:
        """Return the comparison without values of some columns; a column that was renamed may be any of them."""
        if not columns:
            return self
        values = tuple(
            replace(c, values=tuple(columns.value(c.column, v) for v in c.values)) if c.values else c
            for c in self.columns
        )
        samples = tuple(
            {c: v if c in OF_SAMPLES else columns.value(c, v) for c, v in row.items()} for row in self.samples
        )
        sums = {c: (columns.value(c, a), columns.value(c, b)) for c, (a, b) in self.sums.items()}
        return replace(self, columns=values, samples=samples, sums=sums)

    def numbers(self) -> dict[str, Any]:
        """Return the comparison as JSON values for the record of a backfill, without any value of a row."""
        own = {"inserted": self.inserted, "updated": self.updated, "deleted": self.deleted, "rows": list(self.rows)}
        columns = [{k: v for k, v in asdict(c).items() if k != "values"} for c in self.columns]
        return {**own, "columns": columns, "at": time.time()}


def compare(
    lake: Lake,
    record: BackfillRecord,
    specs: Iterable[Spec],
    samples: int = 5,
    *,
    shows_sensitive: bool = False,
) -> Iterator[TableComparison]:
    """Compare each table of a backfill: before publishing, main and the working copy, else before and after.

    Args:
        lake: the lake.
        record: the backfill.
        specs: the tables of the pipeline, as declared.
        samples: number of rows to show of each table.
        shows_sensitive: whether values of sensitive columns are shown.

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
    declared = {str(s.table): s for s in specs}
    sensitive = SensitiveTables.of_specs(lake, declared.values())
    for t in record.tables:
        with _two_snapshots(lake, side, record, t) as states:
            former_key = key_in(lake.table(t.table)) if side else key_in(states.lake.table(states.table))
            spec = declared.get(t.table)
            found = _compared(states, t.table, former_key, spec.partitions if spec else None, samples)
        # What was declared when the rows before were written counts, too.
        columns = sensitive.of(t.table) | SensitiveColumns.stored(lake.find(t.table))
        yield found if shows_sensitive else found.without_values_of(columns)


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


def _compared(
    states: _TwoSnapshots, name: str, former_key: Sequence[str], partitions: Partitions | None, samples: int
) -> TableComparison:
    lake, table, start, end = states.lake, states.table, states.start, states.end
    loaded = lake.table(table)
    rows = (_rows(loaded, start), _rows(loaded, end))
    columns = shared_columns(_schema(loaded, start if start is not None else end), _schema(loaded, end))
    key = _key_on_both_sides(former_key, key_in(loaded), columns)
    if start == end:
        unchanged = None if partitions is None else ()
        return TableComparison(name, 0, 0, 0, key_in(loaded), unchanged, {}, (), rows=rows)
    with contextlib.ExitStack() as scope:
        shown: tuple[Mapping[str, Any], ...] = ()
        by_partition: tuple[PartitionDifference, ...] = ()
        if not columns.common:
            counts = _every_row(lake, table, start, end)
        else:
            signed = _signed(lake, table, start, end, columns, scope)
            changed = changed_rows(signed, list(columns.common), key).persist()
            scope.callback(changed.unpersist)
            counts = count(changed, key)
            shown = tuple(samples_of(changed, counts, key, samples))
            if partitions is not None:
                by_partition = _by_partition(states, changed, columns, partitions)
        by_column = (*_changes(columns, counts), *_one_sided(lake, table, start, end, columns, samples))
    touched = None
    if partitions is not None:
        touched = tuple(sorted(k for k in partition_changes(lake, table, partitions, start, end) if k is not None))
    return TableComparison(
        name, counts.inserted, counts.updated, counts.deleted, key, touched,
        {c: pair for c, pair in counts.sums.items() if pair[0] != pair[1]}, shown, by_column, rows, by_partition,
    )  # fmt: skip


def _by_partition(
    states: _TwoSnapshots, changed: DataFrame, columns: SharedColumns, partitions: Partitions
) -> tuple[PartitionDifference, ...]:
    by = partitions.spelled_as(columns.common)
    if by.by not in columns.common:
        return ()

    def former(condition: str) -> DataFrame:
        stored = states.lake.rows_at(states.table, states.start if states.start is not None else states.end)
        return stored.where(condition if states.start is not None else "false")

    is_alike = columns.common[by.by] == by.by and by.by not in columns.retyped
    return partition_differences(changed, by, former if is_alike else None)


def _every_row(lake: LakeBase, table: TableId, start: int | None, end: int | None) -> Counts:
    """Return the counts of two sides without a column that both have: no row of one is a row of the other."""
    before, after = (lake.rows_at(table, s).count() for s in (start, end))
    return Counts(after, 0, before, {}, {})


def _rows(table: Table, snapshot: int | None) -> int | None:
    return rows_in(table, table.snapshot_by_id(snapshot)) if snapshot is not None else 0


def _schema(table: Table, snapshot: int | None) -> Schema:
    at = table.snapshot_by_id(snapshot) if snapshot is not None else None
    return table.schemas()[at.schema_id] if at is not None and at.schema_id is not None else table.schema()


def _key_on_both_sides(before: Sequence[str], after: Sequence[str], columns: SharedColumns) -> tuple[str, ...]:
    """Return columns that identify a row before and after; empty: there are none.

    A key that has all columns of another key identifies whatever that one does.
    """
    for key, other in ((after, before), (before, after)):
        if other and set(other) <= set(key) and all(columns.common.get(k) == k for k in key):
            return tuple(key)
    return ()


def _signed(
    lake: LakeBase,
    table: TableId,
    start: int | None,
    end: int | None,
    columns: SharedColumns,
    scope: contextlib.ExitStack,
) -> DataFrame:
    """Return removed and added rows, with `SIGN` and the columns of both sides; equal rows may be among both."""
    if columns.is_read_alike or start is None:
        return scope.enter_context(capture(lake, table, start, end)).signed(lake.spark(), list(columns.common))

    def rows(snapshot: int | None, sign: int, of: Mapping[str, str]) -> DataFrame:
        stored = lake.rows_at(table, snapshot)
        return stored.selectExpr(*(f"{value} AS {quote(c)}" for c, value in of.items()), f"{sign} AS {SIGN}")

    former = {
        c: f"try_cast({quote(o)} AS {columns.types[c]})" if c in columns.retyped else quote(o)
        for c, o in columns.common.items()
    }
    return rows(start, -1, former).unionAll(rows(end, 1, {c: quote(c) for c in columns.common}))


def _changes(columns: SharedColumns, counts: Counts) -> Iterator[ColumnChange]:
    """Yield the columns of both sides that differ in values, name or type."""
    for column, former in columns.common.items():
        rows, rounding = counts.columns.get(column, (0, 0))
        if former != column:
            yield ColumnChange(column, "renamed", rows, rounding, former, column)
        elif column in columns.retyped:
            yield ColumnChange(column, "retyped", rows, rounding, *columns.retyped[column])
        elif rows:
            yield ColumnChange(column, "values", rows, rounding)
    for column in sorted(columns.incomparable):
        yield ColumnChange(column, "retyped", None, 0, *columns.retyped[column])


def _one_sided(
    lake: LakeBase, table: TableId, start: int | None, end: int | None, columns: SharedColumns, samples: int
) -> Iterator[ColumnChange]:
    """Yield the columns that only one side has, with their number of values."""
    for names, snapshot, is_added in ((columns.added, end, True), (columns.dropped, start, False)):
        if not names:
            continue
        stored = lake.rows_at(table, snapshot)
        row = stored.agg(*(F.count(quote(c)).alias(f"n{n}") for n, c in enumerate(names))).first()
        assert row is not None
        for n, (column, kind) in enumerate(names.items()):
            if not is_added:
                yield ColumnChange(column, "dropped", row[f"n{n}"], before=kind)
                continue
            some = stored.where(F.col(quote(column)).isNotNull()).select(quote(column)).limit(samples * 20).collect()
            # Some values are not hashable.
            distinct = {repr(r[0]): r.asDict(recursive=True)[column] for r in some}
            values = tuple(distinct.values())[:samples]
            yield ColumnChange(column, "added", row[f"n{n}"], after=kind, values=values)

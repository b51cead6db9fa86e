"""`Capture`: the captured files of a window, and their rows, keys and ranges."""

from __future__ import annotations

import atexit
import contextlib
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, Self

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lake_assets.capture.change_sizes import Piece, pieces
from lake_assets.capture.changed_files import Part, by_snapshot, whole
from lake_assets.capture.field_ranges import FieldRange, field_ranges
from lake_assets.capture.files.file_partitions import unpartitioned_specs
from lake_assets.capture.files.manifests import Entry, ManifestReader
from lake_assets.capture.files.planned_files import Plan
from lake_assets.capture.files.row_ids import RowIds, row_ids
from lake_assets.capture.icdc import IcdcTables
from lake_assets.capture.icdc_session import OpenTables, PartTables, check_files
from lake_assets.capture.rows.few_rows import added_rows
from lake_assets.capture.rows.incompatible_columns import incompatible_columns
from lake_assets.capture.rows.spark_types import spark_type, spark_types
from lake_assets.capture.shown_fields import by_meaning, partition_values
from lake_assets.capture.windows import Bound, End, Window, resolve
from lake_assets.errors import ColumnNotFoundError, Refused, UnsupportedCaptureError
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.cached_values import cached_value
from lake_assets.lake.names import is_of_changes
from lake_assets.lake.rows_in_memory import arrow_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.capture.rows.changed_rows import View

Granularity = Literal["net", "snapshot"]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CapturedFile:
    """One data file whose visible state changed within the window."""

    path: str
    records: int
    """Rows in the file, before deletes."""
    bytes: int
    partition: dict[str, Any]
    side: Literal["after", "before"]
    why: str


class Capture:
    """The changes in one window of one table.

    The DataFrames read ICDC tables that are created on first use. These live until `close()`, the end of a `with` block
    over the capture, or the end of the process, whichever comes first: use the rows before that.

    Attributes:
        window: the two compared snapshots, and the operations between them.
        granularity: `net` changes of the window, or the changes of every `snapshot`.
        columns: the columns of the rows, from the schema at the window's end.
        schema: that schema.
    """

    def __init__(
        self, lake: LakeBase, source: Table, window: Window, granularity: Granularity, *, keeps: bool = False
    ) -> None:
        """Plan the capture; reads the manifests that differ between the two snapshots.

        With `keeps`, tags keep these snapshots from expiring while ICDC tables over them exist.
        """
        self.window = window
        self.granularity: Granularity = granularity
        self.schema: Schema = source.schemas()[window.schema_id]
        self.columns: list[str] = [f.name for f in self.schema.fields]
        self._lake = lake
        self._source = source
        self._reader = ManifestReader(source.io)
        self._specs = source.specs()
        self._unpartitioned = unpartitioned_specs(self._specs)
        planner = whole if granularity == "net" else by_snapshot
        self._parts = planner(self._reader, window, self._unpartitioned)
        self._old_types = _old_types(source, window)
        self._keep = _snapshots(self._parts) if keeps else []
        self._tables = OpenTables(lake, source, self._old_types, keep=self._keep)

    @property
    def is_empty(self) -> bool:
        """Whether no file was captured, so no row changed."""
        return not self._parts

    @cached_value
    def files(self) -> tuple[CapturedFile, ...]:
        """The captured files; for each part, files of the end first."""
        operations = {p.snapshot_id: p.operation for p in (*self.window.steps, *self.window.undone)}
        return tuple(f for part in self._parts for f in self._files(part.plan, operations))

    @cached_value
    def ranges(self) -> dict[str, FieldRange]:
        """The hull of every field over the captured files of both sides, by the field's name."""
        after = [e for p in self._parts for e in p.plan.after.data]
        ranges = field_ranges(after, self.schema, self._specs)
        for name, hull in self.ranges_before.items():
            ranges[name] |= hull
        return ranges

    @cached_value
    def ranges_before(self) -> dict[str, FieldRange]:
        """The hull of every field over the captured files of the window's start alone."""
        before = [e for p in self._parts for e in p.plan.before.data]
        return field_ranges(before, self.schema, self._specs, unreadable=self._old_types)

    @property
    def telling_columns(self) -> list[str]:
        """The columns with a range, those first that tell people most of a change; see `by_meaning`."""
        return by_meaning(self.ranges, self.schema, self._source.spec())

    def pieces(self, column: str) -> list[Piece]:
        """Return the captured files with their numbers of added and removed rows, and the range of one column.

        Raises:
            ColumnNotFoundError: the table has no such column at the window's end.
        """
        self._check([column])
        return [
            piece
            for part in self._parts
            for piece in pieces(
                part.plan, column, self.schema, self._specs, self._unpartitioned, self._old_types, self._row_ids(part)
            )
        ]

    def check_files(self) -> None:
        """Check that the captured files still exist, for callers that read the table itself.

        Raises:
            MissingDataFileError: one is missing.
        """
        for part in self._parts:
            check_files(self._lake, self._source, part.window, part.plan)

    @contextlib.contextmanager
    def icdc(self) -> Generator[IcdcTables]:
        """Register metadata-only tables over the files of the net change; drop them at the end of the block.

        Raises:
            MissingDataFileError: a captured file is missing.
            CaptureWriteError: the tables cannot be written.
        """
        tables = OpenTables(self._lake, self._source, self._old_types, keep=self._keep)
        try:
            yield self._sides(tables)
        finally:
            tables.close()

    def register_icdc(self, expires: datetime) -> IcdcTables:
        """Register the tables of `icdc` for other processes: they outlive this one, until a sweep after `expires`.

        Raises:
            MissingDataFileError: a captured file is missing.
            CaptureWriteError: the tables cannot be written.
        """
        return self._sides(OpenTables(self._lake, self._source, self._old_types, expires, keep=self._keep))

    def _sides(self, tables: OpenTables) -> IcdcTables:
        parts = self._parts if self.granularity == "net" else whole(self._reader, self.window, self._unpartitioned)
        before, after = tables.sides_of(parts[0]) if parts else (None, None)
        return IcdcTables(after, before)

    def upserts(self, spark: SparkSession, local_rows: int | None = None) -> DataFrame:
        """Return the rows inserted or updated in the window, as of its end.

        If rows keep their ids (format v3), they may include a row that was updated to its old values. This process
        reads up to `local_rows` itself; see `few_rows`.
        """
        from lake_assets.capture.rows import changed_rows

        if self.granularity == "net" and not isinstance(rows := self.few_rows(local_rows), Refused):
            self._check_names()
            return arrow_rows(spark, rows, spark_types(self.schema))
        return self._read(spark, changed_rows.upserts)

    def few_rows(self, at_most: int | None = None) -> pa.Table | Refused:
        """Return the rows of the window, read by this process; a refusal if they are many, or some were removed."""
        rows = sum(e.records for p in self._parts for e in p.plan.after.data)
        is_few = rows <= (thresholds.LOCAL_ROWS if at_most is None else at_most)
        return self._added_rows if is_few else Refused("many rows were added")

    @cached_value
    def _added_rows(self) -> pa.Table | Refused:
        return added_rows(self._source, self.schema, self._parts)

    def feed(self, spark: SparkSession, keys: str | Sequence[str] | None = None) -> DataFrame:
        """Return the row-level changes: the end's columns and `_change_type`.

        Removing the `delete` and `update_before` rows from the table at the start and adding the `insert` and
        `update_after` rows gives the table at the end, including duplicates. With granularity `snapshot`, rows also
        have `_commit_snapshot_id`, `_commit_sequence_number` and `_commit_timestamp`.

        Args:
            keys: one column or several: a delete and an insert with equal values in these are an update, whatever
                their row ids; a change of a key is a delete and an insert. Default: rows are paired by row lineage
                (format v3), or without it, by the table's identifier fields.

        Raises:
            ColumnNotFoundError: the table has no such column at the window's end.
        """
        from lake_assets.capture.rows import changed_rows

        by = _listed(keys)
        self._check(by or ())
        return self._read(spark, lambda view: changed_rows.feed(view, by))

    def signed(self, spark: SparkSession, columns: Collection[str] | None = None) -> DataFrame:
        """Return the row-level changes as the end's columns and `__lake_sign`: -1 for deleted, 1 for inserted rows.

        Like `feed`, without pairing the two images of updates.

        Args:
            columns: the columns to read; default: all. Where rows are compared by value, those that differ only in
                other columns are left out.
        """
        from lake_assets.capture.rows import changed_rows

        return self._read(spark, changed_rows.signed, columns)

    def events(self, spark: SparkSession, keys: str | Sequence[str] | None = None) -> DataFrame:
        """Return the changes as events, one per changed row: `op` (c, u, d), `before`, `after`, `source`.

        Rows are paired as in `feed`.

        Raises:
            ColumnNotFoundError: the table has no such column at the window's end.
        """
        from lake_assets.capture.rows import changed_rows

        by = _listed(keys)
        self._check(by or ())
        return self._read(spark, lambda view: changed_rows.events(view, by, str(self.window.table)))

    def keys(self, spark: SparkSession, columns: str | Sequence[str]) -> DataFrame:
        """Return the distinct values of `columns` over all before- and after-images.

        Raises:
            ColumnNotFoundError: the table has no such column at the window's end.
        """
        from lake_assets.capture.rows import changed_rows

        by = _listed(columns) or []
        self._check(by)
        return self._read(spark, lambda view: changed_rows.keys(view, by)).distinct()

    def close(self) -> None:
        """Drop the ICDC tables that the DataFrames of this capture read."""
        self._tables.close()
        _open.pop(id(self), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Capture({self.window}, {self.granularity}, {'empty' if self.is_empty else f'{len(self.files)} files'})"

    @cached_value
    def _casts(self) -> dict[str, str]:
        """Return the type at the end of each column that has another type in the start's files."""
        return {f.name: spark_type(f.field_type) for f in self.schema.fields if f.field_id in self._old_types}

    def _check(self, columns: Sequence[str]) -> None:
        for column in columns:
            if column not in self.columns:
                has = f"{self.window.table} has no column {column!r} at the window's end"
                raise ColumnNotFoundError(f"{has}: {', '.join(self.columns)}")

    def _check_names(self) -> None:
        if reserved := [c for c in self.columns if is_of_changes(c)]:
            raise UnsupportedCaptureError(
                f"{self.window.table} has columns whose names are reserved for changes (_change_type, _commit_..., "
                f"__lake_...): {', '.join(reserved)}. Rename them"
            )

    def _read(
        self, spark: SparkSession, read: Callable[[View], DataFrame], columns: Collection[str] | None = None
    ) -> DataFrame:
        """Return the union of `read` over all parts; `columns`: those to read, by default all."""
        self._check_names()
        _open[id(self)] = self
        views = [self._view(spark, part, columns) for part in self._parts or [None]]
        return reduce(lambda a, b: a.unionAll(b), map(read, views))

    def _view(self, spark: SparkSession, part: Part | None, columns: Collection[str] | None = None) -> View:
        from lake_assets.capture.rows.changed_rows import View

        fields = [f for f in self.schema.fields if columns is None or f.name in columns]
        tables = self._tables.of(part) if part else PartTables()
        return View(
            spark,
            [f.name for f in fields],
            spark_types(Schema(*fields)),
            part=part,
            tables=tables,
            ids=self._row_ids(part) if part and not tables.is_restored else None,
            identifiers=[n for n in sorted(self.schema.identifier_field_names()) if n in self.columns],
            labelled=self.granularity == "snapshot",
            casts=self._casts,
        )

    def _row_ids(self, part: Part) -> RowIds | None:
        return row_ids(self._source, part.window, part.plan) if part.has_lineage else None

    def _files(self, planned: Plan, operations: dict[int, str]) -> Iterator[CapturedFile]:
        for e in planned.after.data:
            why = f"added by {operations.get(e.snapshot_id or 0, 'an expired snapshot')}"
            why = "its deletes changed" if e.path in planned.shared else why
            yield CapturedFile(e.path, e.records, e.bytes, self._partition(e), "after", why)
        for e in planned.before.data:
            why = "its deletes changed" if e.path in planned.shared else "removed"
            yield CapturedFile(e.path, e.records, e.bytes, self._partition(e), "before", why)

    def _partition(self, e: Entry) -> dict[str, Any]:
        return partition_values(e, self._specs[e.spec_id], self.schema)


def _old_types(source: Table, window: Window) -> dict[int, NestedField]:
    schemas = source.schemas()
    if window.start is None or window.start.schema_id not in schemas:
        return {}
    return incompatible_columns(schemas[window.start.schema_id], schemas[window.schema_id])


def _snapshots(parts: Sequence[Part]) -> list[int]:
    """Return the snapshots at both ends of each part, each once."""
    points = (p for part in parts for p in (part.window.start, part.window.end) if p is not None)
    return [*dict.fromkeys(p.snapshot_id for p in points)]


# Captures whose ICDC tables are registered. Garbage collection must not drop them: a DataFrame of a capture may be read
# after the last reference to the capture is gone.
_open: dict[int, Capture] = {}


@atexit.register
def _close_all() -> None:
    for capture in list(_open.values()):
        try:
            capture.close()
        except Exception as e:
            log.warning("ICDC tables of %s could not be dropped: %s", capture.window, e)


def capture(
    lake: LakeBase,
    table: str | TableId,
    start: Bound = None,
    end: End = None,
    *,
    granularity: Granularity = "net",
    table_uuid: str | None = None,
    keeps: bool = False,
) -> Capture:
    """Capture the changes of `table` in the window `(start, end]`; reads metadata only, without Spark.

    Args:
        table: `namespace.name`.
        start: snapshot id, tag or branch, or a point in time; None: everything up to `end`.
        end: like `start`; None: the table's current snapshot; `EMPTY`: a table without rows.
        granularity: `net` changes of the window, or the changes of every `snapshot`.
        table_uuid: the uuid of the table that `start` belongs to, if known.
        keeps: whether tags keep the two snapshots from expiring while rows are read; steps have tags of their own.

    Raises:
        TableNotFoundError, SnapshotNotFoundError, SnapshotExpiredError, TableReplacedError, WindowError: the window
            does not exist.
        MissingDataFileError, CorruptMetadataError: its metadata is missing or broken.
        UnsupportedCaptureError: the window cannot be captured exactly.
    """
    name = TableId.parse(table)
    source = lake.table(name)
    window = resolve(source, name, start, end, table_uuid=table_uuid)
    return Capture(lake, source, window, granularity, keeps=keeps)


def _listed(names: str | Sequence[str] | None) -> list[str] | None:
    return [names] if isinstance(names, str) else list(names) if names is not None else None

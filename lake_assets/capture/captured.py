"""`Capture`: a window's captured files, and the three ways of using them (rows, keys, ranges)."""

from __future__ import annotations

import atexit
import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from pyiceberg.table import Table

from lake_assets.capture import icdc
from lake_assets.capture.bounds import of_partition
from lake_assets.capture.icdc import IcdcTables
from lake_assets.capture.manifests import Entry, ManifestReader
from lake_assets.capture.planning import Plan, plan
from lake_assets.capture.ranges import FieldRange, field_ranges
from lake_assets.capture.windows import Bound, Window, resolve
from lake_assets.errors import ColumnNotFoundError, UnsupportedCaptureError
from lake_assets.lake import LakeBase, TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


@dataclass
class Capture:
    """What changed in one window of one table.

    The DataFrames read ICDC tables that are made when first needed. These live until `close()`, the end of a
    `with` block over the capture, or the end of the process, whichever comes first: use the rows before that.
    """

    window: Window
    granularity: Granularity
    _lake: LakeBase = field(repr=False)
    _source: Table = field(repr=False)
    _plan: Plan = field(repr=False)
    _written: dict[str, icdc.Written] | None = field(default=None, repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether no file was captured: then no row changed either."""
        return self._plan.is_empty

    @cached_property
    def files(self) -> tuple[CapturedFile, ...]:
        """The captured files, those of the end first."""
        operations = {p.snapshot_id: p.operation for p in (*self.window.steps, *self.window.undone)}
        out: list[CapturedFile] = []
        for side, entries in (("after", self._plan.after.data), ("before", self._plan.before.data)):
            for e in entries:
                if e.path in self._plan.shared:
                    why = "its deletes changed"
                elif side == "before":
                    why = "removed"
                else:
                    why = f"added by {operations.get(e.snapshot_id or 0, 'an expired snapshot')}"
                partition = self._partition(e)
                out.append(CapturedFile(e.path, e.records, e.bytes, partition, side, why))  # pyright: ignore[reportArgumentType]
        return tuple(out)

    @cached_property
    def ranges(self) -> dict[str, FieldRange]:
        """The hull of every field over the captured files of both sides."""
        schema = self._source.schemas()[self.window.schema_id]
        return field_ranges((*self._plan.after.data, *self._plan.before.data), schema, self._source.specs())

    def _partition(self, e: Entry) -> dict[str, Any]:
        spec = self._source.specs()[e.spec_id]
        schema = self._source.schemas()[self.window.schema_id]
        out = {}
        for p, value in zip(spec.fields, e.partition, strict=True):
            readable = value
            if value is not None and (source := _field_type(schema, p.source_id)) is not None:
                first, last = of_partition(source, p, value)
                readable = first if first is not None and first == last else value
            out[p.name] = readable
        return out

    # --- reading ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def icdc(self) -> Iterator[IcdcTables]:
        """Metadata-only tables over the captured files, for any engine; dropped at the end of the block.

        Raises:
            CaptureWriteError: their metadata cannot be written.
        """
        held = self._written is not None
        try:
            yield self._tables()
        finally:
            if not held:
                self.close()

    def upserts(self, spark: SparkSession) -> DataFrame:
        """Rows that were inserted or updated in the window, as of its end, with the end's columns."""
        from lake_assets.capture import rows

        return rows.upserts(self._view(spark))

    def feed(self, spark: SparkSession) -> DataFrame:
        """The row-level changes: the end's columns and `_change_type`.

        Taking the `delete` and `update_before` rows from the table at start and adding the `insert` and
        `update_after` rows gives the table at end, duplicates counted.
        """
        from lake_assets.capture import rows

        return rows.feed(self._view(spark))

    def keys(self, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
        """The distinct values of `columns` over all before- and after-images.

        Raises:
            ColumnNotFoundError: the table has no such column at the window's end.
        """
        from lake_assets.capture import rows

        for column in columns:
            if column not in self.columns:
                raise ColumnNotFoundError(
                    f"{self.window.table} has no column {column!r}; it has: {', '.join(self.columns)}"
                )
        return rows.keys(self._view(spark), list(columns))

    def close(self) -> None:
        """Drop the ICDC tables that the DataFrames of this capture read."""
        written, self._written = self._written, None
        for table in (written or {}).values():
            icdc.drop(self._lake, table)
        _open.pop(id(self), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def columns(self) -> list[str]:
        """The columns that rows come with: those of the schema at the window's end."""
        return [f.name for f in self._source.schemas()[self.window.schema_id].fields]

    def _tables(self) -> IcdcTables:
        if self._written is None:
            self._written = {}
            _open[id(self)] = self
            name = icdc.new_name(self.window.table)
            for side, files, point in (
                ("after", self._plan.after, self.window.end),
                ("before", self._plan.before, self.window.start),
            ):
                if files.data and point is not None:
                    self._written[side] = icdc.write(
                        self._lake, self._source, self.window, files, point, f"{name}_{side}"
                    )
        named = {side: str(w.table) for side, w in self._written.items()}
        return IcdcTables(named.get("after"), named.get("before"))

    def _view(self, spark: SparkSession):
        from lake_assets.capture.rows import View

        tables = self._tables()
        sql = self._lake.sql_name
        plan = self._plan
        return View(
            spark=spark,
            after=sql(tables.after) if tables.after else None,
            before=sql(tables.before) if tables.before else None,
            columns=self.columns,
            empty=self._lake.sql_name(self.window.table),
            has_lineage=all(e.first_row_id is not None for e in (*plan.after.data, *plan.before.data)),
            is_forward=self.window.is_forward,
            since=self.window.ancestor.sequence_number if self.window.ancestor else None,
            rows=sum(e.records for e in (*plan.after.data, *plan.before.data)),
            table=str(self.window.table),
        )


# Captures whose ICDC tables are registered. Garbage collection must not drop them: a DataFrame that was made from a
# capture may be read long after the name of the capture is gone.
_open: dict[int, Capture] = {}


@atexit.register
def _close_all() -> None:
    for capture in list(_open.values()):
        try:
            capture.close()
        except Exception as e:
            log.warning("ICDC tables of %s stay behind: %s", capture.window, e)


def capture(
    lake: LakeBase,
    table: str | TableId,
    start: Bound = None,
    end: Bound = None,
    *,
    granularity: Granularity = "net",
    table_uuid: str | None = None,
) -> Capture:
    """What changed in `table` in the window `(start, end]`; reads metadata only, without Spark.

    Args:
        lake: the lake.
        table: `namespace.name`.
        start: snapshot id, tag or branch, or a point in time; None: everything up to `end`.
        end: the same; None: the table's current snapshot.
        granularity: `net` effect of the window, or every `snapshot`'s own changes.
        table_uuid: the uuid of the table that `start` belongs to, where the caller knows it.

    Raises:
        TableNotFoundError, SnapshotNotFoundError, SnapshotExpiredError, TableReplacedError, WindowError: the window
            cannot be had.
        MissingDataFileError, CorruptMetadataError: its metadata is gone or broken.
        UnsupportedCaptureError: it holds what cannot be captured exactly.
    """
    name = TableId.parse(table)
    source = lake.table(name)
    window = resolve(source, name, start, end, table_uuid=table_uuid)
    if granularity == "snapshot":
        raise UnsupportedCaptureError("granularity='snapshot' is not there yet")
    if window.is_empty or window.end is None:
        return Capture(window, granularity, lake, source, Plan())
    unpartitioned = frozenset(i for i, spec in source.specs().items() if spec.is_unpartitioned())
    begin = window.start.manifest_list if window.start else None
    planned = plan(ManifestReader(source.io), begin, window.end.manifest_list, unpartitioned)
    return Capture(window, granularity, lake, source, planned)


def _field_type(schema: Any, field_id: int) -> Any:
    found = schema.find_type(field_id) if field_id in schema.field_ids else None
    return found

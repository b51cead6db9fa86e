"""Landing: new records become rows of a raw table, as they came, each exactly once.

They come from files of a folder, from an Iceberg table that another system appends to, or from Python. What is taken
in at once is one commit, which also says up to where: readers see all of its records or none. A record that cannot be
routed to a table is kept as well, with the reason (see `rejects`); a file that is cut in the middle is left for later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from lake_assets.capture import capture
from lake_assets.errors import (
    ConcurrentWriteError,
    InputError,
    NotAnAncestorError,
    SnapshotExpiredError,
    UnsupportedEventError,
)
from lake_assets.events import EventFormat, SourceTable, event_format
from lake_assets.events.base import decode, schema_key
from lake_assets.events.files import Record
from lake_assets.events.model import MANY
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.watermark import PIPELINE_PROPERTY, find_property, read_marks, to_properties
from lake_assets.merge import ledger, rejects
from lake_assets.merge.batches import cut
from lake_assets.merge.commit import committing
from lake_assets.merge.inputs import as_record, is_due, listing, records_of
from lake_assets.merge.ledger import LandedFile
from lake_assets.merge.specs import RawSpec
from lake_assets.merge.steps import window_of
from lake_assets.merge.tables import check_owner
from lake_assets.merge.views import temp_view

POSITION_PROPERTY = "lake-assets.position"
ROUTES_PROPERTY = "lake-assets.source-tables"
OFFSETS_PROPERTY = "lake-assets.offsets"
BYTES_A_FILE = 128 << 20
ROWS_A_BATCH, BYTES_A_BATCH, FILES_A_COMMIT, ROWS_A_COMMIT = 50_000, 64 << 20, 1_000, 1_000_000
ROWS_A_GROUP = 20_000

RAW_SCHEMA = Schema(
    NestedField(1, "position", LongType(), required=True, doc="order of arrival in this table, without gaps"),
    NestedField(2, "source_table", StringType(), doc="the table that the record is about; null: none; *: several"),
    NestedField(3, "source_file", StringType(), required=True),
    NestedField(4, "source_line", LongType(), required=True, doc="counted from 1"),
    NestedField(5, "arrived_at", TimestamptzType(), required=True),
    NestedField(6, "record", StringType(), required=True, doc="the line as it came"),
    NestedField(7, "problem", StringType(), doc="why it cannot be told which table the record is about"),
    NestedField(8, "schema_key", StringType(), doc="records with the same one are read alike"),
    NestedField(9, "payload", StringType(), doc="the record without its schema, where it came with one"),
)
_ARROW: pa.Schema = pa.schema(
    [f.with_type(pa.string()) if pa.types.is_large_string(f.type) else f for f in RAW_SCHEMA.as_arrow()]
)
# PyIceberg writes format version 2; the record itself needs no bounds, the table it is about needs them whole.
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "write.metadata.metrics.column.record": "none",
    "write.metadata.metrics.column.payload": "none",
    # Records of one kind are packed so well that one task would read them all, if they were split by bytes alone.
    "write.parquet.row-group-limit": str(ROWS_A_GROUP),
    "read.split.target-size": str(4 << 20),
    "write.metadata.metrics.column.source_table": "full",
    "history.expire.min-snapshots-to-keep": "20",
}


@dataclass(frozen=True)
class Landed:
    """What a landing took in.

    Attributes:
        files: files, or snapshots of a table.
        records: rows that the raw table got.
        bytes: size of the files.
        snapshot: the raw table's snapshot afterwards.
        rejected: how many of the records cannot be routed.
        left: how many snapshots of the table are left for the next run.
    """

    files: int = 0
    records: int = 0
    bytes: int = 0
    snapshot: int | None = None
    rejected: int = 0
    left: int = 0

    def __add__(self, other: Landed) -> Landed:
        return Landed(
            self.files + other.files,
            self.records + other.records,
            self.bytes + other.bytes,
            other.snapshot,
            self.rejected + other.rejected,
            other.left,
        )


def ensure_raw(lake: LakeBase, table: TableId, pipeline: str) -> Table:
    """The raw table, made if it is not there."""
    if not lake.exists(table):
        lake.ensure_namespace(table.namespace)
        try:
            return lake.catalog.create_table(
                table.parts, RAW_SCHEMA, properties={**_PROPERTIES, PIPELINE_PROPERTY: pipeline}
            )
        except TableAlreadyExistsError:
            return lake.table(table)  # another process was quicker
    return lake.table(table)


def new_files(lake: LakeBase, spec: RawSpec) -> list[Path]:
    """Files that are to be taken in now, by name. Reads metadata and the listing only.

    None, where those that are new are few and have not waited for others long enough.
    """
    there = listing(spec.landing) if spec.landing else []
    if not there:
        return []
    if not lake.exists(spec.table):
        new, size = there, None
    else:
        new = _unseen(there, ledger.seen(lake, spec.table))
        size = ledger.bytes_a_record(lake, spec.table) if new and spec.batch.wait and spec.batch.rows else None
    return new if is_due(new, spec.batch, size) else []


def _unseen(files: Sequence[Path], seen: Mapping[str, int]) -> list[Path]:
    return [f for f in files if ledger.is_new(f, seen)]


def routes(lake: LakeBase, table: TableId) -> list[SourceTable]:
    """The source tables that records have come for so far, as the landings' commits say."""
    return _routes(lake.table(table)) if lake.exists(table) else []


def _routes(raw: Table) -> list[SourceTable]:
    found = find_property(raw, ROUTES_PROPERTY)
    return [SourceTable.parse(r) for r in json.loads(found[0])] if found else []


def offsets(lake: LakeBase, table: TableId) -> dict[str, Any]:
    """By name of a Python source: up to where it was taken in."""
    found = find_property(lake.table(table), OFFSETS_PROPERTY) if lake.exists(table) else None
    return json.loads(found[0]) if found else {}


def land(lake: LakeBase, spec: RawSpec) -> Landed:
    """Take in what is new: files of the landing folder, or rows of the source table.

    Raises:
        TruncatedInputError, MalformedRecordError: a file cannot be read. Files before it are taken in.
        ChangedInputError: a file that was taken in has another size now.
        RejectedLimitError: more records than declared cannot be routed. Nothing of their commit is in the table.
        UnsupportedEventError: the source table was not only appended to.
        ConcurrentWriteError: another process landed beside this one; nothing of this batch is in the table.
        TableClaimedError: the raw table belongs to another pipeline.
    """
    raw = ensure_raw(lake, spec.table, spec.pipeline)
    check_owner(lake, spec.table, spec.pipeline)
    rejects.catch_up(lake, spec.table)
    if spec.source is not None:
        return _land_table(lake, spec, spec.source)
    assert spec.landing is not None
    ledger.catch_up(lake, spec.table)
    total = Landed(snapshot=raw.metadata.current_snapshot_id)
    while there := listing(spec.landing):
        # The table that the batch is committed to is the one that did not have its files: where another process lands
        # them in between, the commit is refused.
        raw, seen = ledger.seen_by(lake, spec.table)
        files = _unseen(there, seen)[: min(FILES_A_COMMIT, spec.batch.files or FILES_A_COMMIT)]
        if not files:
            break
        try:
            total += _commit(lake, spec, raw, _FileBatch(files, spec.batch.rows))
        except _UnreadableFileError as e:
            if e.index:
                _commit(lake, spec, raw, _FileBatch(files[: e.index], spec.batch.rows))
                _caught_up(lake, spec.table)
            raise e.cause from e
        _caught_up(lake, spec.table)
    return total


def _caught_up(lake: LakeBase, table: TableId) -> None:
    ledger.catch_up(lake, table)
    rejects.catch_up(lake, table)


Read = Callable[[Any], Iterable[tuple[Any, str | bytes | Mapping[str, Any]]]]


def land_records(lake: LakeBase, spec: RawSpec, read: Read, name: str = "python") -> Landed:
    """Take in records that Python code yields, each exactly once.

    Args:
        lake: the lake.
        spec: the raw table.
        read: called with the offset up to which this source was taken in (None at first), yields the records after it,
            each with its own offset (anything that JSON can hold). The last offset of a commit is committed with it.
        name: of the source, where a raw table has several.

    Raises:
        RejectedLimitError: more records than declared cannot be routed.
        ConcurrentWriteError: another process landed beside this one; the records of the last commit are not in it.
    """
    ensure_raw(lake, spec.table, spec.pipeline)
    check_owner(lake, spec.table, spec.pipeline)
    rejects.catch_up(lake, spec.table)
    total = Landed(snapshot=lake.table(spec.table).metadata.current_snapshot_id)
    while True:
        raw = lake.table(spec.table)
        found = find_property(raw, OFFSETS_PROPERTY)
        known = json.loads(found[0]) if found else {}
        batch = _PythonBatch(read, name, known, min(ROWS_A_COMMIT, spec.batch.rows or ROWS_A_COMMIT))
        if batch.first is None:
            return total
        landed = _commit(lake, spec, raw, batch)
        total += landed
        rejects.catch_up(lake, spec.table)
        if not batch.is_cut:
            return total


def _land_table(lake: LakeBase, spec: RawSpec, source: TableId) -> Landed:
    raw = lake.table(spec.table)
    total = Landed(snapshot=raw.metadata.current_snapshot_id)
    loaded = lake.table(source)
    pending = cut(window_of(spec.table, raw, source, loaded), loaded, spec.batch)
    if pending.is_absorbed or pending.head.snapshot is None:
        return total
    batch = _TableBatch(lake, spec, source, pending.start, pending.head.snapshot)
    marks = {**read_marks(raw), str(source): pending.head}
    batch.properties = to_properties(marks)
    total += replace(_commit(lake, spec, raw, batch), left=pending.left)
    rejects.catch_up(lake, spec.table)
    return total


def _next_position(lake: LakeBase, table: TableId, raw: Table) -> int:
    found = find_property(raw, POSITION_PROPERTY)
    if found or raw.metadata.current_snapshot_id is None:
        return int(found[0]) if found else 0
    # The snapshots that said so have expired; the bounds of the data files still know.
    with capture(lake, table, None, raw.metadata.current_snapshot_id) as everything:
        highest = everything.ranges["position"].high
    if highest is None:
        raise SnapshotExpiredError(
            f"{table} does not tell which positions are taken: its landings' snapshots have expired and its data files "
            "have no bounds of `position`. Rewrite its data files with metrics of that column (`full`), and run again"
        )
    return highest + 1


# --- one commit -------------------------------------------------------------------------------------------------


@dataclass
class _Batch:
    """Records of one commit, part by part, and what the commit says of them."""

    properties: dict[str, str] = field(default_factory=dict[str, str])
    parts: int = 0
    bytes: int = 0

    def read(self) -> Iterator[tuple[str, Record]]:
        """Each record with the name of the file (or what stands for one) that it is in."""
        raise NotImplementedError

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        """All is read: `counts` are the records by file."""


class _UnreadableFileError(Exception):
    """A file as a whole cannot be read: which one of the batch, and why."""

    def __init__(self, index: int, cause: InputError) -> None:
        super().__init__(str(cause))
        self.index, self.cause = index, cause


class _FileBatch(_Batch):
    """Whole files, up to the one with which there are `enough` records."""

    def __init__(self, files: Sequence[Path], enough: int | None) -> None:
        super().__init__(parts=len(files))
        self.files, self.enough = files, enough

    def read(self) -> Iterator[tuple[str, Record]]:
        count = 0
        for i, file in enumerate(self.files):
            try:
                for record in records_of(file):
                    count += 1
                    yield file.name, record
            except InputError as e:
                raise _UnreadableFileError(i, e) from e
            if self.enough is not None and count >= self.enough:
                self.files = self.files[: i + 1]
                self.parts = len(self.files)
                return

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        taken = [LandedFile(f.name, f.stat().st_size, counts.get(f.name, 0), arrived_at) for f in self.files]
        self.bytes = sum(f.size for f in taken)
        self.properties[ledger.PROPERTY] = json.dumps([f.to_json() for f in taken])


class _PythonBatch(_Batch):
    def __init__(self, source: Read, name: str, known: Mapping[str, Any], most: int) -> None:
        super().__init__(parts=1)
        self.name, self.known, self.most = name, known, most
        self.offset = known.get(name)
        self.is_cut = False
        self.records = iter(source(self.offset))
        self.first = next(self.records, None)

    def read(self) -> Iterator[tuple[str, Record]]:
        first = [self.first] if self.first is not None else []
        for number, (offset, record) in enumerate(chain(first, self.records), 1):
            raw = record.encode() if isinstance(record, str) else record
            raw = raw if isinstance(raw, bytes) else orjson.dumps(raw)
            self.offset = offset
            self.bytes += len(raw)
            yield self.name, as_record(number, raw)
            if number >= self.most:
                self.is_cut = True
                return

    def end(self, counts: Mapping[str, int], arrived_at: datetime) -> None:
        self.properties[OFFSETS_PROPERTY] = json.dumps({**self.known, self.name: self.offset})


class _TableBatch(_Batch):
    """Rows that snapshots appended to a table of another system, in the order of the snapshots."""

    def __init__(self, lake: LakeBase, spec: RawSpec, source: TableId, start: int | None, end: int) -> None:
        super().__init__()
        self.lake, self.spec, self.source, self.start, self.head = lake, spec, source, start, end

    def read(self) -> Iterator[tuple[str, Record]]:
        lost = self._untold("has lost snapshots that were not taken in")
        try:
            with capture(self.lake, self.source, self.start, self.head) as whole:
                steps, is_forward, is_complete = whole.window.steps, whole.window.is_forward, whole.window.is_complete
        except SnapshotExpiredError as e:
            raise SnapshotExpiredError(lost) from e
        # From the beginning, the oldest snapshot that is left stands for all before it.
        if self.start is not None and not (is_forward and is_complete):
            raise NotAnAncestorError(self._untold("was rolled back")) if is_complete else SnapshotExpiredError(lost)
        before = self.start
        for step in steps:
            if before is None or step.operation != "replace":  # compaction appends nothing
                yield from self._appended(before, step.snapshot_id)
            before = step.snapshot_id

    def _untold(self, what: str) -> str:
        return (
            f"{self.source} {what}, so that the records appended since snapshot {self.start} cannot be told. Drop "
            f"{self.spec.table} and run again to take in all that it holds"
        )

    def _appended(self, start: int | None, end: int) -> Iterator[tuple[str, Record]]:
        name = f"{self.source}@{end}"
        with capture(self.lake, self.source, start, end) as step:
            files = [f.side for f in step.files]
            if "before" in files and "after" in files:
                raise UnsupportedEventError(
                    f"snapshot {end} of {self.source} changed rows: records can only be taken from a table that is "
                    "appended to (and that old rows are removed from). Feed such a table to models instead"
                )
            if "after" not in files:
                return
            if missing := [c for c in self._columns() if c not in step.columns]:
                raise UnsupportedEventError(
                    f"{self.source} has no column {', '.join(missing)}; it has {', '.join(step.columns)}: correct "
                    "`from` in the stream"
                )
            self.parts += 1
            self.bytes += sum(f.bytes for f in step.files)
            with step.icdc() as tables:
                assert tables.after is not None
                scan = self.lake.catalog.load_table(TableId.parse(tables.after).parts).scan(
                    selected_fields=tuple(self._columns())
                )
                number = 0
                for rows in self._ordered(scan):
                    for row in rows:
                        number += 1
                        yield name, self._record(number, row)

    def _columns(self) -> list[str]:
        key = [self.spec.key_column] if self.spec.key_column else []
        return list(dict.fromkeys([self.spec.column, *key, *self.spec.order]))

    def _ordered(self, scan: Any) -> Iterator[list[dict[str, Any]]]:
        if self.spec.order:
            yield scan.to_arrow().sort_by([(c, "ascending") for c in self.spec.order]).to_pylist()
            return
        for batch in scan.to_arrow_batch_reader():
            yield batch.to_pylist()

    def _record(self, number: int, row: Mapping[str, Any]) -> Record:
        value = _bytes(row[self.spec.column], self.source, self.spec.column)
        if self.spec.key_column:
            key = _bytes(row[self.spec.key_column], self.source, self.spec.key_column)
            value = b'{"key":' + key + b',"value":' + value + b"}"
        return as_record(number, value)


def _bytes(value: Any, table: TableId, column: str) -> bytes:
    if value is None:
        return b"null"
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    raise UnsupportedEventError(
        f"{table}: column {column} holds {type(value).__name__}, expected records as text or bytes"
    )


def _commit(lake: LakeBase, spec: RawSpec, raw: Table, batch: _Batch) -> Landed:
    """Append a batch to the very table `raw`.

    Raises:
        ConcurrentWriteError: it has moved meanwhile.
        RejectedLimitError: more records than declared cannot be routed.
    """
    routed = {str(r) for r in _routes(raw)}
    reading = _Reading(spec, event_format(spec.format), _next_position(lake, spec.table, raw), routed)
    # A commit that finds the table moved must not be tried again as it is: the other one may have landed the same
    # files, and these positions would be given twice. Only this process's copy of the table's properties is changed.
    raw.metadata.properties["commit.retry.num-retries"] = "0"
    # PyIceberg holds a file in memory until it is written, and counts its bytes there, not as they are on disk.
    raw.metadata.properties["write.target-file-size-bytes"] = str(BYTES_A_FILE)
    transaction = raw.transaction()
    properties: dict[str, str] = {}

    def batches() -> Iterator[pa.RecordBatch]:
        yield from reading.batches(batch)
        # The properties are filled before the snapshot's summary is made of them.
        properties.update(batch.properties)
        properties.update(
            {
                POSITION_PROPERTY: str(reading.position),
                ROUTES_PROPERTY: json.dumps(sorted(reading.routes)),
                **rejects.landed(raw, reading.rejected),
            }
        )

    try:
        transaction.append(pa.RecordBatchReader.from_batches(_ARROW, batches()), snapshot_properties=properties)
        transaction.commit_transaction()
    except CommitFailedException as e:
        raise ConcurrentWriteError(f"{spec.table}: another process landed files at the same time") from e
    return Landed(
        batch.parts,
        reading.position - reading.first,
        batch.bytes,
        lake.table(spec.table).metadata.current_snapshot_id,
        reading.rejected,
    )


Row = tuple[int, str | None, str, int, datetime, str, str | None, str | None, str | None]


class _Reading:
    """Makes record batches of records, routes them and counts positions on the way."""

    def __init__(self, spec: RawSpec, event_format: EventFormat, position: int, routes: set[str]) -> None:
        self.spec, self.event_format, self.routes = spec, event_format, routes
        self.first = self.position = position
        self.rejected = 0
        self.why = ""
        self.arrived_at = datetime.now(UTC)

    def batches(self, batch: _Batch) -> Iterator[pa.RecordBatch]:
        rows: list[Row] = []
        counts: dict[str, int] = {}
        size = 0
        for file, record in batch.read():
            routed = self._route(record)
            if routed.problem:
                self.rejected += 1
                self.why = self.why or f"{file}, line {record.number}: {routed.problem}"
            where = (self.position, routed.source_table, file, record.number, self.arrived_at)
            rows.append((*where, record.text, routed.problem, routed.key, routed.payload))
            counts[file] = counts.get(file, 0) + 1
            self.position += 1
            size += len(record.text)
            if len(rows) >= ROWS_A_BATCH or size >= BYTES_A_BATCH:
                yield _batch(rows)
                rows, size = [], 0
        rejects.check_limit(
            str(self.spec.table), self.spec.max_rejected, self.rejected, self.position - self.first, self.why
        )
        if rows:
            yield _batch(rows)
        batch.end(counts, self.arrived_at)

    def _route(self, record: Record) -> Routed:
        if record.problem:
            return Routed(problem=record.problem)
        routed = route(self.event_format, record.text, self.spec.about)
        self.routes.update(str(r) for r in routed.tables)
        return routed


@dataclass(frozen=True)
class Routed:
    """Where a record belongs.

    Attributes:
        tables: the source tables that it is about.
        problem: why that cannot be told; None: it can.
        key: what stands for its schema; None: it is about no table.
        payload: the record without its schema, where it has one.
    """

    tables: tuple[SourceTable, ...] = ()
    problem: str | None = None
    key: str | None = None
    payload: str | None = None

    @property
    def source_table(self) -> str | None:
        """What stands in the raw table."""
        return MANY if len(self.tables) > 1 else str(self.tables[0]) if self.tables else None


def route(event_format: EventFormat, text: str, table: SourceTable | None) -> Routed:
    """The source tables and the schema of a record, or what is wrong with it."""
    try:
        record = decode(text)
        tables = event_format.routes(record, table)
    except InputError as e:
        return Routed(problem=str(e))
    if not tables:
        return Routed()
    schema = event_format.schema_of(record)
    return Routed(tables, None, schema_key(schema), event_format.without_schema(text, schema) if schema else None)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    # Records of one table beside each other: a reader of one table skips the row groups and pages of all others.
    rows.sort(key=lambda r: (r[1] or "", r[0]))
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, type=f.type) for c, f in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )


# --- once more --------------------------------------------------------------------------------------------------


def replay(lake: LakeBase, spec: RawSpec) -> int:
    """Route the raw table's unroutable records again, after the declaration was corrected; returns how many have a
    table (or are about none) now. They keep their places in the stream, and staging takes them in with its next run.

    Raises:
        ConcurrentWriteError: another process wrote at the same time; nothing is lost, run again.
    """
    if not lake.exists(spec.table) or not rejects.unrouted(lake.table(spec.table)):
        return 0
    rejects.catch_up(lake, spec.table)
    routed = _route_again(lake, spec)
    # Also those of a replay that was killed before it came here.
    bad = lake.table(spec.table).scan(row_filter="problem IS NOT NULL", selected_fields=("position",)).to_arrow()
    still = set(bad["position"].to_pylist())
    if good := [p for p in rejects.unrouted_positions(lake, spec.table) if p not in still]:
        rejects.forget(lake, spec.table, None, good)
    return routed


def _route_again(lake: LakeBase, spec: RawSpec) -> int:
    raw = lake.table(spec.table)
    reader = event_format(spec.format)
    rows = raw.scan(row_filter="problem IS NOT NULL", selected_fields=("position", "record", "problem")).to_arrow()
    known = {str(r) for r in _routes(raw)}
    routed: list[tuple[int, str | None, str | None]] = []
    for row in rows.to_pylist():
        # What stands in escapes was no UTF-8, and is none now.
        if row["problem"].startswith("not UTF-8"):
            continue
        found = route(reader, row["record"], spec.about)
        if found.problem is None:
            known.update(str(r) for r in found.tables)
            routed.append((row["position"], found.source_table, found.key))
    if not routed:
        return 0
    spark, name = lake.spark(), lake.sql_name(spec.table)
    positions = [p for p, *_ in routed]
    more = {ROUTES_PROPERTY: json.dumps(sorted(known))}
    rows_of = spark.createDataFrame(routed, "position BIGINT, source_table STRING, schema_key STRING")
    with temp_view(rows_of) as view, committing(spark, spec.table, None, more):
        spark.sql(
            f"MERGE INTO {name} t USING {view} s ON t.position = s.position "
            f"AND t.position BETWEEN {min(positions)} AND {max(positions)} AND t.problem IS NOT NULL "
            "WHEN MATCHED THEN UPDATE SET t.source_table = s.source_table, t.schema_key = s.schema_key, "
            "t.problem = NULL"
        )
    return len(routed)

"""Landing: write new records to a raw table unchanged, each exactly once.

Records come from files of a folder, from an Iceberg table that another system appends to, or from Python. One commit
holds the records of a batch and the progress in their source. A record that cannot be routed to a source table is
stored as well, with the reason (see `rejects`). A truncated file is not landed.
"""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
from pyiceberg.table import Table

from lake_assets.errors import UnsupportedEventError
from lake_assets.formats.event_model import MANY
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw import file_ledger, source_snapshots
from lake_assets.ingest.raw.landing_folder import is_due, listing
from lake_assets.ingest.raw.record_reading import RecordReading
from lake_assets.ingest.raw.record_sources import Batch, FileBatch, PythonBatch, Read, UnreadableFileError
from lake_assets.ingest.raw.source_tables import TableBatch, pending_of_table
from lake_assets.ingest.raw_tables import (
    ARRIVED_PROPERTY,
    ARROW,
    LANDING_PROPERTY,
    OFFSETS_PROPERTY,
    POSITION_PROPERTY,
    ROUTES_PROPERTY,
    ensure_raw,
    next_position,
    routes_of,
    skipped_properties,
    skipped_text,
)
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.databases import Databases
from lake_assets.ingest.records.stream_transactions import read_open
from lake_assets.ingest.records.stream_transactions import to_properties as to_open_properties
from lake_assets.ingest.records.tombstones import Tombstones
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import find_property, to_properties
from lake_assets.tables.batch_limits import LEFT, cut
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.writing.arrow_writes import write_arrow
from lake_assets.tables.writing.table_ddl import check_owner_in, set_properties

FILES_A_COMMIT, ROWS_A_COMMIT = 1_000, 1_000_000


@dataclass(frozen=True)
class Landed:
    """Counts of one landing.

    Attributes:
        files: landed files, or snapshots of a source table.
        records: rows added to the raw table.
        bytes: size of the files.
        snapshot: the raw table's snapshot afterwards.
        rejected: how many of the records cannot be routed.
        left: snapshots of the source table that remain for the next run.
        skipped: number of records about no row, by what they are: heartbeats, signals, ...
        why: what happened, if a source table was emptied or its history is lost.
        unmatched: number of records by their source table, for tables that the stream neither declares nor excludes.
    """

    files: int = 0
    records: int = 0
    bytes: int = 0
    snapshot: int | None = None
    rejected: int = 0
    left: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])
    why: str = ""
    unmatched: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def details(self) -> dict[str, object]:
        """The details of an outcome."""
        details = {
            "rejected": self.rejected,
            "skipped": skipped_text(self.skipped),
            "tables_not_declared": _most(self.unmatched),
            LEFT: self.left,
        }
        return {name: value for name, value in details.items() if value}

    def __add__(self, other: Landed) -> Landed:
        return Landed(
            self.files + other.files,
            self.records + other.records,
            self.bytes + other.bytes,
            other.snapshot,
            self.rejected + other.rejected,
            other.left,
            dict(Counter(self.skipped) + Counter(other.skipped)),
            other.why,
            dict(Counter(self.unmatched) + Counter(other.unmatched)),
        )


def _most(counts: Mapping[str, int], shown: int = 5) -> str:
    """Return the greatest numbers as text."""
    largest = dict(Counter(counts).most_common(shown))
    return skipped_text(largest) + (f" and {len(counts) - shown} more tables" if len(counts) > shown else "")


def new_files(lake: LakeBase, spec: RawSpec) -> list[Path]:
    """Return the files to land now, by name; none while new files are few and have not waited long enough.

    Reads metadata and the listing only.
    """
    files = listing(spec.landing) if spec.landing else []
    if not files:
        return []
    if not lake.exists(spec.table):
        new, size = files, None
    else:
        new = _unseen(files, file_ledger.seen(lake, spec.table))
        size = file_ledger.bytes_a_record(lake, spec.table) if new and spec.batch.wait and spec.batch.rows else None
    return new if is_due(new, spec.batch, size, limits=spec.limits) else []


@dataclass(frozen=True)
class Backlog:
    """Files of a landing folder that have not landed yet.

    Attributes:
        files, bytes: number and total size.
        records: estimated number of records, from the files landed before; None if there are none.
    """

    files: int = 0
    bytes: int = 0
    records: int | None = None


def backlog(lake: LakeBase, raw: TableId) -> Backlog:
    """Return the backlog of a raw table's folder, due or not. Reads metadata and the listing only.

    Raises:
        ChangedInputError, LandingFolderError: see `new_files`.
    """
    folder = lake.table(raw).properties.get(LANDING_PROPERTY)
    files = _unseen(listing(Path(folder)), file_ledger.seen(lake, raw)) if folder else []
    if not files:
        return Backlog()
    size, bytes_per_record = sum(f.stat().st_size for f in files), file_ledger.bytes_a_record(lake, raw)
    return Backlog(len(files), size, round(size / bytes_per_record) if bytes_per_record else None)


def unused_folder(raw: Table) -> str | None:
    """Return the landing folder of a raw table if it is missing, or if the table has no record yet; else None.

    Streams whose records Python code lands need no folder.
    """
    folder = raw.properties.get(LANDING_PROPERTY)
    if not folder or find_property(raw, OFFSETS_PROPERTY):
        return None
    return folder if raw.metadata.current_snapshot_id is None or not Path(folder).exists() else None


def _unseen(files: Sequence[Path], seen: Mapping[str, int]) -> list[Path]:
    return [f for f in files if file_ledger.is_new(f, seen)]


def land(lake: LakeBase, spec: RawSpec) -> Landed:
    """Land new files of the landing folder, or new rows of the source table.

    Raises:
        TruncatedInputError, MalformedRecordError, InputTooLargeError: a file cannot be read. Files before it are
            landed.
        ChangedInputError: the size of a landed file has changed.
        RejectedLimitError: more records than declared cannot be routed. Their commit is not made.
        UnsupportedEventError: a commit of the source table rewrote rows.
        HistoryError: see `pending_of_table`.
        ConcurrentWriteError: another process landed at the same time; nothing of this batch is in the table.
        TableClaimedError: the raw table belongs to another pipeline.
    """
    raw = ensure_raw(lake, spec.table, spec.pipeline)
    check_owner_in(lake.table(spec.table), spec.table, spec.pipeline)
    rejects.catch_up(lake, spec.table)
    if spec.source is not None:
        return _land_table(lake, spec, spec.source)
    assert spec.landing is not None
    set_properties(lake, spec.table, {LANDING_PROPERTY: str(spec.landing)})
    file_ledger.catch_up(lake, spec.table)
    total = Landed(snapshot=raw.metadata.current_snapshot_id)
    while listed := _in_order(listing(spec.landing), spec):
        # The commit is made to the loaded table that lacked these files: if another process lands them in between, the
        # commit fails.
        raw, seen = file_ledger.seen_by(lake, spec.table)
        files = _unseen(listed, seen)[: min(FILES_A_COMMIT, spec.batch.files or FILES_A_COMMIT)]
        if not files:
            break
        try:
            total += _commit(lake, spec, raw, FileBatch(files, spec.batch.rows, spec.limits))
        except UnreadableFileError as e:
            if e.index:
                _commit(lake, spec, raw, FileBatch(files[: e.index], spec.batch.rows, spec.limits))
                _caught_up(lake, spec.table)
            raise e.cause from e
        _caught_up(lake, spec.table)
    return total


def _in_order(files: list[Path], spec: RawSpec) -> list[Path]:
    """Return files in the order in which they land: by name, first loads before changes if that is declared."""
    pattern = spec.layout.load_files if spec.layout else ""
    return sorted(files, key=lambda f: not fnmatch.fnmatchcase(f.name, pattern)) if pattern else files


def _caught_up(lake: LakeBase, table: TableId) -> None:
    file_ledger.catch_up(lake, table)
    rejects.catch_up(lake, table)


def land_records(lake: LakeBase, spec: RawSpec, read: Read, name: str = "python") -> Landed:
    """Land records that Python code yields, each exactly once.

    Args:
        lake: the lake.
        spec: the raw table.
        read: called with the offset of the last landed record (None at first); yields the records after it as (offset,
            record). Offsets are JSON values. Each commit stores the last offset of its records.
        name: the name of the source, if a raw table has several.

    Raises:
        RejectedLimitError: more records than declared cannot be routed.
        ConcurrentWriteError: another process landed at the same time; the last batch is not in the table.
    """
    ensure_raw(lake, spec.table, spec.pipeline)
    check_owner_in(lake.table(spec.table), spec.table, spec.pipeline)
    rejects.catch_up(lake, spec.table)
    total = Landed(snapshot=lake.table(spec.table).metadata.current_snapshot_id)
    while True:
        raw = lake.table(spec.table)
        match = find_property(raw, OFFSETS_PROPERTY)
        offsets = json.loads(match[0]) if match else {}
        batch = PythonBatch(read, name, offsets, min(ROWS_A_COMMIT, spec.batch.rows or ROWS_A_COMMIT), spec.limits)
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
    pending = cut(pending_of_table(spec, raw, source, loaded), loaded, spec.batch)
    is_new = pending.mark is None and pending.lost is None
    if pending.is_absorbed or (is_new and pending.head.snapshot is None):
        # A renamed column is told before the next record arrives.
        if missing := spec.missing_columns(f.name for f in loaded.schema().fields):
            raise UnsupportedEventError(missing)
        return total
    batch = TableBatch(lake, spec, raw, pending)
    batch.properties = to_properties({**known_marks(raw), str(source): pending.head})
    landed = _commit(lake, spec, raw, batch)
    total += replace(landed, left=pending.left, why=batch.why)
    rejects.catch_up(lake, spec.table)
    return total


# --- one commit -------------------------------------------------------------------------------------------------


def _commit(lake: LakeBase, spec: RawSpec, raw: Table, batch: Batch) -> Landed:
    """Append a batch to the loaded table `raw`.

    Raises:
        ConcurrentWriteError: the table has changed since it was loaded.
        RejectedLimitError: more records than declared cannot be routed.
    """
    routed = {str(r) for r in routes_of(raw)}
    reading = RecordReading(
        spec,
        next_position(lake, spec.table, raw),
        routed,
        read_open(raw),
        source_snapshots.read_snapshots(raw),
        Tombstones(raw, spec.about),
        Databases(raw, spec.databases),
    )
    properties: dict[str, str] = {}

    def batches() -> Iterator[pa.RecordBatch]:
        yield from reading.batches(batch)
        # PyIceberg reads the properties when it builds the summary, after it has read all batches.
        properties.update(batch.properties)
        properties.update(
            {
                POSITION_PROPERTY: str(reading.position),
                ROUTES_PROPERTY: json.dumps(sorted(reading.routes)),
                ARRIVED_PROPERTY: json.dumps(reading.arrived, sort_keys=True),
                **rejects.landed(raw, reading.rejected),
                **skipped_properties(raw, reading.skipped),
                **(to_open_properties(reading.open) if reading.open else {}),
                **(source_snapshots.to_properties(reading.snapshots) if reading.snapshots else {}),
                **reading.tombstones.properties(),
                **reading.databases.properties(),
            }
        )

    write_arrow(spec.table, raw, pa.RecordBatchReader.from_batches(ARROW, batches()), properties)
    return Landed(
        batch.parts,
        reading.position - reading.first,
        batch.bytes,
        lake.table(spec.table).metadata.current_snapshot_id,
        reading.rejected,
        skipped=dict(reading.skipped),
        unmatched={table: n for table, n in reading.arrived.items() if not _is_expected(spec, table)},
    )


def _is_expected(spec: RawSpec, table: str) -> bool:
    return not spec.tables or table in (MANY, *spec.tables) or any(fnmatch.fnmatchcase(table, p) for p in spec.tables)

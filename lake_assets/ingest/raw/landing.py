"""Landing: write new records to a raw table unchanged, each exactly once.

Records come from files of a folder, from an Iceberg table that another system appends to, or from Python. One commit
holds the records of a batch and the progress in their source. A record that cannot be routed to a source table is
stored as well, with the reason (see `rejects`). A truncated file is not landed.
"""

from __future__ import annotations

import fnmatch
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa
from pyiceberg.table import Table

from lake_assets.errors import LOST_FILE_ADVICE, InputError, UnsupportedEventError
from lake_assets.formats.event_model import MANY
from lake_assets.formats.files.record_files import RecordFile
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw import file_ledger, new_files
from lake_assets.ingest.raw.absorbed_dumps import COMPLETE_PROPERTY, DUMPS_OF_PROPERTY, pending_dump
from lake_assets.ingest.raw.dump_landing import Dumps
from lake_assets.ingest.raw.file_ledger import ledger_of
from lake_assets.ingest.raw.folder_listings import nothing_arrived
from lake_assets.ingest.raw.landing_folder import is_due
from lake_assets.ingest.raw.record_reading import RecordReading
from lake_assets.ingest.raw.record_sources import Batch, FileBatch, PythonBatch, Read, UnreadableFileError
from lake_assets.ingest.raw.source_tables import TableBatch, pending_of_table
from lake_assets.ingest.raw_tables import (
    ARROW,
    LANDING_PROPERTY,
    OFFSETS_PROPERTY,
    ensure_raw,
    next_position,
    skipped_text,
    stored,
)
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.routing import replay
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.watermark import to_properties
from lake_assets.sources.kept_dumps import kept_of
from lake_assets.tables.batch_limits import LEFT, cut
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, known_marks, missing_sources
from lake_assets.tables.table_step import EmptySources, Pins, TableStep
from lake_assets.tables.writing.arrow_writes import write_arrow
from lake_assets.tables.writing.table_ddl import check_owner_in, set_properties


@dataclass(frozen=True)
class RawStep(TableStep[RawSpec, Pins]):
    """Landing: records of new files, or of a source table, as they arrived."""

    is_only_writer: ClassVar[bool] = False
    has_rejects: ClassVar[bool] = True
    brings_tables: ClassVar[bool] = True
    empty_sources: ClassVar[EmptySources] = "emptied"

    @property
    def keeps_source_snapshots(self) -> bool:
        """See `TableStep`: dumps are compared with the rows that are kept of the last one."""
        return self.spec.dumps is None

    @property
    def kinds(self) -> tuple[str, ...]:
        """None: landing appends through PyIceberg. Large dumps are compared by Spark."""
        return ("spark",) if self.spec.dumps else ()

    @property
    def written_tables(self) -> tuple[TableId, ...]:
        """The raw table, the ledger of its files, its rejects, and the last dump, if it is filled from dumps."""
        kept = (kept_of(self.spec.table),) if self.spec.dumps else ()
        return self.spec.table, ledger_of(self.spec.table), rejects.rejected_of(self.spec.table), *kept

    def new_files(self, lake: LakeBase) -> list[RecordFile]:
        """Return the files to land now, by name; none while new files are few and have not waited long enough.

        Reads metadata and the listing only.
        """
        spec = self.spec
        if spec.dumps:
            return Dumps(lake, spec).new_files(lake.find(spec.table))
        if spec.landing is None:
            return []
        new, size = new_files.find(lake, spec).files, None
        if new and spec.batch.wait and spec.batch.rows and lake.exists(spec.table):
            size = file_ledger.bytes_a_record(lake, spec.table)
        return new if is_due(new, spec.batch, size, spec.limits) else []

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the window of the source table, if it has one."""
        if self.spec.dumps:
            return [pending_dump(table, name, loaded) for name, loaded in sources.items()]
        return [pending_of_table(self.spec, table, name, loaded) for name, loaded in sources.items()]

    def batch(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: Pins) -> list[Window]:
        """Return all new files, which one step lands in several commits, or a batch of a source table's snapshots."""
        windows = self.windows(lake, table, sources)
        if self.spec.dumps:
            return windows
        return [cut(w, sources[w.source], self.spec.batch) for w in windows]

    def absorb(self, lake: LakeBase, pins: Pins, *, rebuild: bool = False) -> Outcome:
        """Land new files, or new records of the source table."""
        began, spec, name = time.monotonic(), self.spec, str(self.spec.table)
        if spec.live is not None:
            return Outcome(name, "nothing", why="its records are landed by `lake-assets serve`")
        if spec.source and not lake.exists(spec.source):
            return Outcome(name, "waiting", why=missing_sources(lake.find(spec.table), [spec.source]))
        landed = land(lake, spec)
        if not landed.files and not landed.why:
            if "skipped_dumps" in landed.details:
                return Outcome(name, "nothing", why=f"skipped dumps: {landed.details['skipped_dumps']}")
            if spec.landing and (landed.snapshot is None or spec.landing.is_missing):
                status, why = nothing_arrived(spec.landing, lake.config.home)
                return Outcome(name, status, why=why)
            return Outcome(name, "nothing")
        # A dump is read as a whole, and only the rows that differ are landed.
        records = None if spec.dumps else landed.records
        return Outcome(
            name,
            "absorbed",
            (Absorbed(str(spec.source or spec.landing), None, None, landed.files, landed.bytes, records=records),),
            inserted=landed.records,
            strategy="land",
            why=landed.why or ("new snapshots of the source" if spec.source else "new files of the landing folder"),
            seconds=time.monotonic() - began,
            snapshot=landed.snapshot,
            details=landed.details,
        )

    def why_not_rebuilt(self, table: Table | None) -> str:
        """Return the reason: a raw table may be the only copy of its records."""
        return (
            f"{self.spec.table} is a raw table: it holds records as they arrived, and may be their only copy, so it is "
            "not rebuilt. To read its records again, `lake-assets rebuild` its staging tables"
        )

    def replay(self, lake: LakeBase) -> Outcome:
        """Route records again that could not be routed."""
        name = str(self.spec.table)
        if not (routed := replay(lake, self.spec)):
            return Outcome(name, "nothing")
        return Outcome(
            name, "absorbed", updated=routed, strategy="replay", why=f"{plural(routed, 'record')} can be routed now"
        )

    def lost_file_advice(self, table: TableId) -> str:
        """Return the advice; a ledger is derived from the commits of its raw table."""
        if table != ledger_of(self.spec.table):
            return LOST_FILE_ADVICE
        return f"Restore the file from a backup; or drop {table}: the next run creates it again from {self.spec.table}"


@dataclass(frozen=True)
class Landed:
    """Counts of one landing.

    Attributes:
        files, bytes: number and size of files, or snapshots of a source table.
        snapshot: the raw table's snapshot afterwards.
        rejected: how many of the records cannot be routed.
        left: snapshots of the source table that remain for the next run.
        skipped: number of records about no row, by what they are: heartbeats, signals, ...
        why: what happened, if a source table was emptied or its history is lost.
        unmatched: number of records by their source table, for tables that the stream neither declares nor excludes.
        dumps: what differed in dumps of a whole table.
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
    dumps: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def details(self) -> dict[str, object]:
        """The details of an outcome."""
        details = {
            "rejected": self.rejected,
            "skipped": skipped_text(self.skipped),
            "tables_not_declared": _most(self.unmatched),
            LEFT: self.left,
            **self.dumps,
        }
        return {name: value for name, value in details.items() if value}

    def __add__(self, other: Landed) -> Landed:
        return replace(
            other,
            files=self.files + other.files,
            records=self.records + other.records,
            bytes=self.bytes + other.bytes,
            rejected=self.rejected + other.rejected,
            skipped=dict(Counter(self.skipped) + Counter(other.skipped)),
            unmatched=dict(Counter(self.unmatched) + Counter(other.unmatched)),
        )


def _most(counts: Mapping[str, int], shown: int = 5) -> str:
    """Return the greatest numbers as text."""
    largest = dict(Counter(counts).most_common(shown))
    more = len(counts) - shown
    return skipped_text(largest) + (f" and {plural(more, 'more table')}" if more > 0 else "")


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
    raw = begun(lake, spec)
    if spec.dumps:
        return _land_dumps(lake, spec)
    if spec.source is not None:
        return _land_table(lake, spec, spec.source)
    assert spec.landing is not None
    set_properties(lake, spec.table, {LANDING_PROPERTY: str(spec.landing)})
    file_ledger.catch_up(lake, spec.table)
    total = Landed(snapshot=raw.metadata.current_snapshot_id)
    broken: dict[str, InputError] = {}
    while True:
        found = new_files.find(lake, spec)
        files = [f for f in found.files if f.folder not in broken]
        if not files:
            break
        landed = _land_files(lake, spec, files, broken)
        if not landed.files:
            break
        total += landed
    if broken:
        raise next(iter(broken.values()))
    if found.is_whole:
        new_files.note_whole_listing(lake, spec)
    return total


def _land_files(lake: LakeBase, spec: RawSpec, files: Sequence[RecordFile], broken: dict[str, InputError]) -> Landed:
    """Land listed files in several commits.

    Args:
        broken: collects the error of each folder with a file that cannot be read. Its files after that one do not land,
            since their changes come later; those of other folders, which are about other tables, do.
    """
    most, total = min(thresholds.FILES_A_COMMIT, spec.batch.files or thresholds.FILES_A_COMMIT), Landed()
    while True:
        # The commit is made to the loaded table that lacked these files: if another process lands them in between, the
        # commit fails.
        raw, seen = file_ledger.seen_by(lake, spec.table)
        files = new_files.unseen(files, seen)
        if not files:
            return total
        last_files = partial(new_files.last_files, raw, spec)
        try:
            landed = commit_batch(lake, spec, raw, FileBatch(files[:most], spec.batch.rows, spec.limits, last_files))
        except UnreadableFileError as e:
            folder = files[e.index].folder
            broken[folder] = e.cause
            files = [f for i, f in enumerate(files) if i < e.index or f.folder != folder]
        else:
            total += landed
            files = files[landed.files :]


def land_records(lake: LakeBase, spec: RawSpec, read: Read, name: str = "python") -> Landed:
    """Land records that Python code yields, each exactly once.

    `read` is called with the offset of the last landed record (None at first), and yields the records after it as
    (offset, record). Offsets are JSON values. Each commit stores the last offset of its records, by source name.

    Raises:
        RejectedLimitError: more records than declared cannot be routed.
        ConcurrentWriteError: another process landed at the same time; the last batch is not in the table.
    """
    total = Landed(snapshot=begun(lake, spec).metadata.current_snapshot_id)
    while True:
        raw = lake.table(spec.table)
        offsets = stored(raw, OFFSETS_PROPERTY)
        most = thresholds.ROWS_A_COMMIT
        batch = PythonBatch(read, name, offsets, min(most, spec.batch.rows or most), spec.limits)
        if batch.first is None:
            return total
        total += commit_batch(lake, spec, raw, batch)
        if not batch.is_cut:
            return total


def begun(lake: LakeBase, spec: RawSpec) -> Table:
    """Return the raw table, with the rejects of all of its landings copied."""
    raw = ensure_raw(lake, spec.table, spec.pipeline)
    check_owner_in(lake.table(spec.table), spec.table, spec.pipeline)
    rejects.catch_up(lake, spec.table)
    return raw


def _land_table(lake: LakeBase, spec: RawSpec, source: TableId) -> Landed:
    raw, loaded = lake.table(spec.table), lake.table(source)
    pending = cut(pending_of_table(spec, raw, source, loaded), loaded, spec.batch)
    is_new = pending.mark is None and pending.lost is None
    if pending.is_absorbed or (is_new and pending.head.snapshot is None):
        # A renamed column is told before the next record arrives.
        if missing := spec.missing_columns_text(f.name for f in loaded.schema().fields):
            raise UnsupportedEventError(missing)
        return Landed(snapshot=raw.metadata.current_snapshot_id)
    batch = TableBatch(lake, spec, raw, pending)
    batch.properties = to_properties({**known_marks(raw), str(source): pending.head})
    return replace(commit_batch(lake, spec, raw, batch), left=pending.left, why=batch.why)


def _land_dumps(lake: LakeBase, spec: RawSpec) -> Landed:
    """Land what differs between dumps of a whole table."""
    dumps = Dumps(lake, spec)
    if spec.landing is not None and spec.dumps is not None:
        set_properties(
            lake, spec.table, {LANDING_PROPERTY: str(spec.landing), COMPLETE_PROPERTY: str(spec.dumps.complete)}
        )
    else:
        set_properties(lake, spec.table, {DUMPS_OF_PROPERTY: str(spec.source)})
    landed, raw = dumps.land(), lake.table(spec.table)
    return Landed(
        len(landed),
        sum(d.records for d in landed),
        sum(d.bytes for d in landed),
        raw.metadata.current_snapshot_id,
        why=f"what differs in {', '.join(d.name for d in landed)}" if landed else "",
        dumps={"dumps": "; ".join(d.text for d in landed), "skipped_dumps": dumps.late()},
    )


def commit_batch(lake: LakeBase, spec: RawSpec, raw: Table, batch: Batch) -> Landed:
    """Append a batch to the table as it was loaded, and list its files and rejects."""
    reading = RecordReading(spec, raw, next_position(lake, spec.table, raw))
    properties: dict[str, str] = {}

    def batches() -> Iterator[pa.RecordBatch]:
        yield from reading.batches(batch)
        # PyIceberg reads the properties when it builds the summary, after it has read all batches.
        properties.update(batch.properties)
        properties.update(reading.properties())

    write_arrow(spec.table, raw, pa.RecordBatchReader.from_batches(ARROW, batches()), properties)
    landed = Landed(
        batch.parts,
        reading.position - reading.first,
        batch.bytes,
        lake.table(spec.table).metadata.current_snapshot_id,
        reading.rejected,
        skipped=dict(reading.skipped),
        unmatched={table: n for table, n in reading.arrived.items() if not _is_expected(spec, table)},
    )
    if file_ledger.PROPERTY in properties:
        file_ledger.catch_up(lake, spec.table)
    rejects.catch_up(lake, spec.table)
    return landed


def _is_expected(spec: RawSpec, table: str) -> bool:
    return not spec.tables or table in (MANY, *spec.tables) or any(fnmatch.fnmatchcase(table, p) for p in spec.tables)

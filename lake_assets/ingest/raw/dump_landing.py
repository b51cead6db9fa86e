"""Dumps of a whole table: land what differs from the dump before as records of a change feed, each dump once.

One commit of the raw table holds the records and says which dump was absorbed, and which kept rows are its rows (see
`kept_dumps`). The order of the records is the version of their dump, the milliseconds at which it landed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from lake_assets.errors import (
    ChangedInputError,
    DumpHeldBackError,
    DuplicateKeyError,
    HistoryError,
    InputError,
    KeyMissingError,
)
from lake_assets.formats.files.limited_files import Limits, Record
from lake_assets.formats.files.record_files import LocalFile, RecordFile
from lake_assets.formats.format_base import schema_key
from lake_assets.ingest.ingest_specs import DumpRules, RawSpec
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw.absorbed_dumps import (
    DUMP_PROPERTY,
    AbsorbedDump,
    dump_name,
    last_dump,
    pending_dump,
    pending_dumps,
    skipped_dumps,
)
from lake_assets.ingest.raw.file_ledger import LandedFile
from lake_assets.ingest.raw.landing_folder import records_of
from lake_assets.ingest.raw.record_reading import RecordReading, Row
from lake_assets.ingest.raw_tables import ARROW, kept_since, next_position
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.counts import plural
from lake_assets.sources import kept_dumps
from lake_assets.sources.dump_differences import Change, Difference, compare
from lake_assets.sources.dump_folders import FolderDump
from lake_assets.sources.dump_records import DumpRecords, rows_after
from lake_assets.sources.dump_rows import DumpRows
from lake_assets.tables.writing.arrow_writes import write_arrow
from lake_assets.tables.writing.races import lost


@dataclass(frozen=True)
class Dump:
    """A dump to absorb, from a folder or a table."""

    name: str
    fingerprint: str
    at: datetime
    bytes: int = 0
    folder: FolderDump | None = None
    table: Table | None = None


@dataclass(frozen=True)
class LandedDump:
    """What one dump brought: see `Difference`."""

    name: str
    records: int
    bytes: int
    difference: Difference

    @property
    def text(self) -> str:
        """What differed, in words."""
        found = self.difference
        return f"{self.name}: {found.inserted:,} inserted, {found.updated:,} updated, {found.deleted:,} deleted"


@dataclass(frozen=True)
class Dumps:
    """The dumps of a stream: which are pending, and how they land.

    Attributes:
        skipped: why dumps were passed over for newer ones, by name.
        parts: the parts of kept rows that this step has written.
    """

    lake: LakeBase
    spec: RawSpec
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    parts: list[str] = field(default_factory=list[str])

    @property
    def rules(self) -> DumpRules:
        """The stream's rules."""
        assert self.spec.dumps is not None
        return self.spec.dumps

    @property
    def folder(self) -> Path | None:
        """The landing folder, which is one of this machine; None: dumps come from a table."""
        return self.spec.landing.path if self.spec.landing else None

    def new_files(self, raw: Table | None) -> list[RecordFile]:
        """Return the files of the dumps in the landing folder to absorb now."""
        if self.folder is None:
            return []
        pending = pending_dumps(self.lake, raw, self.folder, self.rules.complete)
        return [LocalFile(f, d.name) for d in pending for f in d.paths]

    def late(self) -> str:
        """Return why complete dumps in the folder are not absorbed: newer ones have been."""
        found = skipped_dumps(self.lake, self.lake.table(self.spec.table))
        return "; ".join(f"{name}: {self.skipped.get(name, why)}" for name, why in found.items())

    # --- landing ------------------------------------------------------------------------------------------------

    def land(self) -> list[LandedDump]:
        """Land all pending dumps of the folder, oldest first, each in a commit; or the current rows of the table.

        A dump that is held back or cannot be read waits for a correction, or for a newer one that takes its place.

        Raises:
            InputError, KeyMissingError: the newest dump is held back, or cannot be read.
            ConcurrentWriteError: another process landed at the same time.
        """
        lake, spec, landed = self.lake, self.spec, list[LandedDump]()
        if spec.source is not None:
            dump = absorb_table(lake, spec, spec.source)
            return [dump] if dump else []
        assert self.folder is not None
        file_ledger.catch_up(lake, spec.table)
        pending = pending_dumps(lake, lake.table(spec.table), self.folder, self.rules.complete)
        for n, dump in enumerate(pending, 1):
            try:
                landed.append(self.absorb(Dump(dump.name, dump.fingerprint, dump.at, dump.bytes, dump)))
            except ChangedInputError:
                raise
            except (InputError, KeyMissingError) as e:
                if n == len(pending):
                    raise
                first = str(e).partition(". ")[0]
                self.skipped[dump.name] = f"{pending[n].name} takes its place, since it could not be absorbed: {first}"
            else:
                file_ledger.catch_up(lake, spec.table)
        return landed

    def absorb(self, dump: Dump) -> LandedDump:
        """Land what differs between a dump and the last one, in one commit, if the limits allow it."""
        lake, name = self.lake, self.spec.table
        raw = lake.table(name)
        last = last_dump(raw)
        kept_dumps.forget(lake, name, last.part if last else "")
        try:
            landed = self._absorb(raw, last, dump)
        except Exception as e:
            now = self._absorbed_part()
            kept_dumps.forget(lake, name, now, self.parts)
            if isinstance(e, FileNotFoundError | HistoryError) and now != (last.part if last else ""):
                raise lost(name, e) from e  # the other step has dropped the rows that this one began from
            raise
        kept_dumps.forget(lake, name, self._absorbed_part(), [*self.parts, *([last.part] if last else [])])
        return landed

    def _new_part(self) -> str:
        self.parts.append(kept_dumps.new_part())
        return self.parts[-1]

    def _absorbed_part(self) -> str:
        last = last_dump(self.lake.table(self.spec.table))
        return last.part if last else ""

    def _absorb(self, raw: Table, last: AbsorbedDump | None, dump: Dump) -> LandedDump:
        lake, columns, part = self.lake, self.rules.key, self._new_part()
        rows = self._rows_of(dump)
        last = last and self._with_rows(raw, last)
        if last:
            rows = rows.with_types_of(last.format)
        count = kept_dumps.add(lake, raw, part, rows.batches())
        kept = lake.table(kept_dumps.kept_of(self.spec.table))
        difference = compare(lake, kept, last.part if last else None, part)
        self._check(dump, last, difference)
        version = max(int(time.time() * 1000), last.version + 1 if last else 0)
        absorbed = AbsorbedDump(
            dump.name, dump.fingerprint, version, part, count, rows.format.layout, {**rows.format.types},
            [*columns.columns],
        )  # fmt: skip
        records = DumpRecords(version, dump.at, last.format if last else rows.format, rows.format)
        reading = _DumpReading(self.spec, raw, next_position(lake, self.spec.table, raw))
        own: dict[str, str] = {}

        def batches() -> Iterator[pa.RecordBatch]:
            yield from reading.rows(dump.name, records, difference.changes)
            own[DUMP_PROPERTY] = json.dumps(asdict(absorbed))
            landed = LandedFile(dump.name, dump.bytes, reading.position - reading.first, reading.arrived_at)
            own[file_ledger.PROPERTY] = json.dumps([landed.to_json()])
            own.update(reading.properties())

        write_arrow(self.spec.table, raw, pa.RecordBatchReader.from_batches(ARROW, batches()), own)
        return LandedDump(dump.name, reading.position - reading.first, dump.bytes, difference)

    def _with_rows(self, raw: Table, last: AbsorbedDump) -> AbsorbedDump:
        """Return the last dump with a part that has its rows, by the declared key.

        If the kept rows are gone, as after a rollback of the raw table, they follow from the records.
        """
        lake, name, key = self.lake, self.spec.table, self.rules.key
        kept = lake.find(kept_dumps.kept_of(name))
        is_kept = kept is not None and kept_dumps.size_of(kept, last.part)[0] > 0
        if not last.rows or (is_kept and last.key == [*key.columns]):
            return last
        if kept is not None and is_kept:
            texts = (t for b in kept_dumps.batches_of(kept, last.part) for t in b.column("row").to_pylist())
        else:
            texts = (row["row"] for row in self._records_again(raw, last).toLocalIterator())
        part = self._new_part()
        kept_dumps.add(lake, raw, part, DumpRows.of_texts(texts, last.format, key).batches())
        return replace(last, part=part)

    def _records_again(self, raw: Table, last: AbsorbedDump) -> DataFrame:
        """Return the rows of the last dump, from the records.

        Raises:
            HistoryError: older records were deleted.
        """
        if since := kept_since(raw):
            raise HistoryError(
                f"{kept_dumps.kept_of(self.spec.table)} no longer has the rows of the dump {last.name}, and they do "
                f"not follow from {self.spec.table}, which has no records from before {since:%Y-%m-%d} "
                f"(`keep_records`). Restore {kept_dumps.kept_of(self.spec.table)} from a backup"
            )
        snapshot = raw.metadata.current_snapshot_id
        assert snapshot is not None
        return rows_after(self.lake, self.spec.table, snapshot)

    def _rows_of(self, dump: Dump) -> DumpRows:
        key = self.rules.key
        if dump.folder is not None:
            where = f"the dump {dump.name} in {self.spec.landing}"
            return DumpRows.of_files(where, dump.folder.files, key, self.spec.limits, _read)
        assert dump.table is not None
        snapshot = dump.table.metadata.current_snapshot_id
        assert snapshot is not None
        return DumpRows.of_table(str(self.spec.source), dump.table, snapshot, key, self.spec.limits)

    # --- limits -------------------------------------------------------------------------------------------------

    def _check(self, dump: Dump, last: AbsorbedDump | None, found: Difference) -> None:
        """Raise the error of a dump that must not be absorbed."""
        if last and last.name == dump.name and dump.folder and (found.inserted or found.changed):
            raise ChangedInputError(
                f"the dump {dump.name} in {self.spec.landing} was absorbed, and its files hold other rows now "
                f"({_counts(found)}). An absorbed dump must not change: restore it or remove its folder, and deliver "
                "the table again under a newer name"
            )
        if found.duplicated:
            some = ", ".join(f"{key} ({plural(n, 'row')})" for key, n in found.duplicates)
            raise DuplicateKeyError(
                f"in the dump {dump.name}, several rows have the same key ({', '.join(self.rules.key.columns)}), "
                f"{plural(found.duplicated, 'key')} in all, such as {some}. Nothing of it was landed: deliver it again "
                "without them, or declare a `key` that identifies each row, or `key: '*'` if rows have none"
            ).quoting(some)
        if last is None:
            return
        for setting, limit, count, what in (
            ("max_deleted", self.rules.max_deleted, found.lost, "are missing"),
            ("max_changed", self.rules.max_changed, found.changed, "are missing or have other values"),
        ):
            if limit is not None and limit.is_exceeded(count, found.before):
                raise self._held_back(dump, last, found, f"`{setting}: {limit}`", count, what)

    def _held_back(
        self, dump: Dump, last: AbsorbedDump, found: Difference, limit: str, count: int, what: str
    ) -> DumpHeldBackError:
        share = f" ({count / found.before:.1%})" if found.before else ""
        return DumpHeldBackError(
            f"the dump {dump.name} is held back: {count:,} of the {found.before:,} rows of {last.name}{share} {what}, "
            f"and the stream allows {limit}. Nothing of it was landed. If it is incomplete, deliver the table again, "
            "in place of this dump or under a newer name; if it is right, declare a higher limit and run again "
            f"({_counts(found)})"
        )


def absorb_table(lake: LakeBase, spec: RawSpec, source: TableId) -> LandedDump | None:
    """Land what differs between the current rows of a table and its rows that were read last; None: nothing is new."""
    raw, loaded = lake.table(spec.table), lake.table(source)
    window = pending_dump(raw, source, loaded)
    head = window.head
    if window.is_empty or head.snapshot is None:
        return None
    snapshot = loaded.current_snapshot()
    assert snapshot is not None
    at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    return Dumps(lake, spec).absorb(Dump(dump_name(source, head), f"{head.uuid}/{head.snapshot}", at, table=loaded))


def _counts(found: Difference) -> str:
    return (
        f"{plural(found.before, 'row')} before, {found.after:,} now; {found.inserted:,} inserted, "
        f"{found.updated:,} updated, {found.deleted:,} deleted"
    )


class _DumpReading(RecordReading):
    """Builds the rows of the raw table from changes: they need no routing."""

    def rows(self, dump: str, records: DumpRecords, changes: Iterator[Change]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the raw table."""
        about = str(self.spec.about)
        self.routes.add(about)
        keys: dict[str, str] = {}
        rows: list[Row] = []
        size = 0
        for change in changes:
            for text, schema in records.of(change):
                key = keys.get(schema) or keys.setdefault(schema, schema_key(schema))
                self.position += 1
                rows.append((about, dump, self.position - self.first, text, None, key, None, None))
                size += len(text)
                if len(rows) >= thresholds.ROWS_A_BATCH or size >= thresholds.BYTES_A_BATCH:
                    yield self._batch(rows, Counter())
                    rows, size = [], 0
        if rows:
            yield self._batch(rows, Counter())


def _read(file: Path, limits: Limits) -> Iterator[Record]:
    return records_of(LocalFile(file), limits)

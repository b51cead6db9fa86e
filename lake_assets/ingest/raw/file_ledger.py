"""The ledger: a table next to a raw table that lists its files, derived from the raw table's commits.

Each landing writes the list of its files into its snapshot's summary, in the commit that writes their records. The
ledger is brought up to date from those summaries afterwards. So it can lag behind (readers add the pending files), but
it never lists a file whose records are missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from lake_assets.errors import ChangedInputError, HistoryError
from lake_assets.formats.files.record_files import RecordFile
from lake_assets.ingest.raw_tables import SINCE_PROPERTY, kept_since
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.row_counts import number, summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import Watermark, read_marks, to_properties
from lake_assets.tables import table_lock
from lake_assets.tables.writing.arrow_writes import write_arrow
from lake_assets.tables.writing.races import lost

PROPERTY = "lake-assets.landed"
_SCHEMA = Schema(
    NestedField(1, "source_file", StringType(), required=True),
    NestedField(2, "bytes", LongType(), required=True),
    NestedField(3, "records", LongType(), required=True),
    NestedField(4, "arrived_at", TimestamptzType(), required=True),
)
_PROPERTIES = {"format-version": "2", **VERSIONS}


@dataclass(frozen=True)
class LandedFile:
    """A landed file."""

    name: str
    size: int
    records: int
    arrived_at: datetime

    def to_json(self) -> list[Any]:
        """Return the form stored in a snapshot's summary."""
        return [self.name, self.size, self.records, self.arrived_at.isoformat()]

    @classmethod
    def from_json(cls, values: list[Any]) -> LandedFile:
        """Inverse of `to_json`."""
        return cls(values[0], values[1], values[2], datetime.fromisoformat(values[3]))


def ledger_of(raw: TableId) -> TableId:
    """Return the name of a raw table's ledger."""
    return TableId(raw.namespace, f"{raw.name}_files")


def seen(lake: LakeBase, raw: TableId) -> Mapping[str, int]:
    """Return names and sizes in bytes of all files in the raw table; -1: the size is unknown."""
    return seen_by(lake, raw)[1]


def seen_by(lake: LakeBase, raw: TableId) -> tuple[Table, Mapping[str, int]]:
    """Return the raw table and its files. A commit to this loaded table fails if another process has landed since."""
    state = _state(lake, raw)
    pending = {f.name: f.size for f in state.pending}
    if not (state.complete and state.ledger):
        return state.raw, pending
    listed = _listed(state.ledger)
    return state.raw, {**listed, **pending} if pending else listed


def _listed(ledger: Table) -> Mapping[str, int]:
    """Return names and sizes of the files in the ledger, cached per snapshot: a sensor reads them once, not each
    tick."""
    version = (str(ledger.metadata.table_uuid), ledger.metadata.current_snapshot_id)
    sizes = _cache.get(version)
    if sizes is None:
        rows = ledger.scan(selected_fields=("source_file", "bytes")).to_arrow()
        sizes = MappingProxyType(dict(zip(rows["source_file"].to_pylist(), rows["bytes"].to_pylist(), strict=True)))
        for old in [k for k in list(_cache) if k[0] == version[0]] + list(_cache)[: -_MOST_LEDGERS + 1]:
            _cache.pop(old, None)
        _cache[version] = sizes
    return sizes


_cache: dict[tuple[str, int | None], Mapping[str, int]] = {}
_MOST_LEDGERS = 20


def bytes_a_record(lake: LakeBase, raw: TableId) -> float | None:
    """Return the average bytes per record of landed files; None if there are none."""
    if not lake.exists(ledger_of(raw)):
        return None
    scan = lake.table(ledger_of(raw)).scan(row_filter="bytes >= 0", selected_fields=("bytes", "records"), limit=1_000)
    rows = scan.to_arrow()
    records = sum(rows["records"].to_pylist())
    return sum(rows["bytes"].to_pylist()) / records if records else None


def is_new(file: RecordFile, files: Mapping[str, int]) -> bool:
    """Whether a file is not in the raw table yet.

    Raises:
        ChangedInputError: the file has changed since it was landed.
    """
    landed_size = files.get(file.name)
    if landed_size is None:
        return True
    if landed_size >= 0 and (size := file.size) != landed_size:
        raise ChangedInputError(
            f"{file} was landed with {landed_size} bytes and has {size} now. A landed file must not change: put its "
            "old content back or delete it (raw has its records), and deliver new records under a new name. Write "
            "files elsewhere before renaming them into the folder"
        )
    return False


def catch_up(lake: LakeBase, raw: TableId) -> None:
    """Bring the ledger to the raw table's current snapshot.

    Raises:
        ConcurrentWriteError: another process updates it at the same time.
    """
    state = _state(lake, raw)
    if state.complete and not state.pending:
        return
    with table_lock.shared(lake, ledger_of(raw)):
        _catch_up(lake, raw)


def _catch_up(lake: LakeBase, raw: TableId) -> None:
    state = _state(lake, raw)
    metadata = state.raw.metadata
    rows = pa.Table.from_pylist(
        [
            {"source_file": f.name, "bytes": f.size, "records": f.records, "arrived_at": f.arrived_at}
            for f in sorted(state.pending, key=lambda f: f.name)
        ],
        schema=_SCHEMA.as_arrow(),
    )
    properties = to_properties({str(raw): Watermark(str(metadata.table_uuid), metadata.current_snapshot_id)})
    name, is_complete = ledger_of(raw), state.complete
    try:
        table = state.ledger or lake.catalog.create_table(
            name.parts, _SCHEMA, lake.location_of(name), properties=_PROPERTIES
        )
    except TableAlreadyExistsError as e:
        raise lost(name, e) from e
    if is_complete and number(summary_of(table.current_snapshot()), "total-data-files") >= thresholds.LEDGER_FILES:
        # Each landing adds a data file; thousands of them would make every read slow.
        rows, is_complete = pa.concat_tables([table.scan().to_arrow().cast(rows.schema), rows]), False
    write_arrow(name, table, rows, properties, overwrite=not is_complete)


@dataclass(frozen=True)
class _State:
    """Both tables, loaded together. Commits to them fail if another process commits first.

    Attributes:
        pending: files in the raw table that the ledger lacks.
        complete: whether the ledger's content is still valid. If the raw table was rolled back, replaced or has lost
            the snapshots in between, it is not, and `pending` are all files, read from the raw table's rows; and from
            the ledger if old rows were deleted.
    """

    raw: Table
    ledger: Table | None
    pending: list[LandedFile]
    complete: bool


def _state(lake: LakeBase, raw: TableId) -> _State:
    # Loaded first, so that the raw table is never older than the ledger's watermark.
    ledger = lake.table(ledger_of(raw)) if lake.exists(ledger_of(raw)) else None
    table = lake.table(raw)
    pending, is_complete = _pending(table, read_marks(ledger).get(str(raw)) if ledger else None)
    if not is_complete and (since := kept_since(table)):
        pending += _forgotten(raw, ledger, since, {f.name for f in pending})
    return _State(table, ledger, pending, is_complete)


def _forgotten(raw: TableId, ledger: Table | None, since: datetime, known: set[str]) -> list[LandedFile]:
    """Return the files whose records were deleted for their age: the ledger alone knows them.

    Raises:
        HistoryError: there is no ledger.
    """
    if ledger is None:
        raise HistoryError(
            f"{ledger_of(raw)} is missing, and {raw} no longer holds the records from before {since:%Y-%m-%d} "
            "(`keep_records`): which files have landed is unknown, and older ones would land again. Restore "
            f"{ledger_of(raw)} from a backup. If the landing folder holds no older files, remove the property "
            f"{SINCE_PROPERTY} of {raw}"
        )
    rows = ledger.scan().to_arrow().to_pylist()
    files = (LandedFile(r["source_file"], r["bytes"], r["records"], r["arrived_at"]) for r in rows)
    return [f for f in files if f.name not in known and f.arrived_at < since]


def _pending(table: Table, mark: Watermark | None) -> tuple[list[LandedFile], bool]:
    absorbed = mark if mark and mark.uuid == str(table.metadata.table_uuid) else None
    files: list[LandedFile] = []
    last = None
    for snapshot in ancestors(table):
        if absorbed and snapshot.snapshot_id == absorbed.snapshot:
            return files, True
        last = snapshot
        if landed := summary_of(snapshot).get(PROPERTY):
            files += [LandedFile.from_json(f) for f in json.loads(landed)]
    if last is None:
        return [], mark is None
    # A table's first snapshot has sequence number 1; a snapshot whose parent has expired has a higher one.
    if mark is None and last.parent_snapshot_id is None and last.sequence_number == 1:
        return files, True
    return _from_rows(table), False


def _from_rows(raw: Table) -> list[LandedFile]:
    rows = raw.scan(selected_fields=("source_file", "arrived_at")).to_arrow()
    grouped = rows.group_by("source_file").aggregate([("arrived_at", "min"), ("arrived_at", "count")])
    # The rows do not hold the size: -1 is an unknown size.
    return [LandedFile(r["source_file"], -1, r["arrived_at_count"], r["arrived_at_min"]) for r in grouped.to_pylist()]

"""What waits in the landing folder of a raw table; for commands that read a lake without its pipelines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pyiceberg.table import Table

from lake_assets.ingest.landing_places import Landing
from lake_assets.ingest.raw import file_ledger, new_files
from lake_assets.ingest.raw.absorbed_dumps import COMPLETE_PROPERTY, pending_dumps
from lake_assets.ingest.raw.folder_listings import listing
from lake_assets.ingest.raw_tables import LANDING_PROPERTY, OFFSETS_PROPERTY
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import find_property
from lake_assets.sources.dump_folders import Completeness


@dataclass(frozen=True)
class Backlog:
    """Files of a landing folder that have not landed yet.

    Attributes:
        files, bytes: number and total size.
        records: estimated number of records, from the files landed before; None if there are none.
        since: when the oldest of the files was written, in seconds since 1970; None: there is none, or its store does
            not say when.
    """

    files: int = 0
    bytes: int = 0
    records: int | None = None
    since: float | None = field(default=None, compare=False)


def backlog(lake: LakeBase, raw: TableId) -> Backlog:
    """Return the backlog of a raw table's folder, due or not. Reads metadata and the listing only.

    Raises:
        ChangedInputError, LandingFolderError: see `RawStep.new_files`.
    """
    raw_table = lake.table(raw)
    folder, rule = (raw_table.properties.get(p) for p in (LANDING_PROPERTY, COMPLETE_PROPERTY))
    if folder and rule:
        dumps = pending_dumps(lake, raw_table, Path(folder), Completeness.parse(rule))
        since = min((p.stat().st_mtime for d in dumps for p in d.paths), default=None)
        return Backlog(sum(len(d.paths) for d in dumps), sum(d.bytes for d in dumps), since=since)
    listed = listing(Landing.parse(folder), lake.config.object_stores) if folder else []
    files = new_files.unseen(listed, file_ledger.seen(lake, raw)) if listed else []
    if not files:
        return Backlog()
    size, bytes_per_record = sum(f.size for f in files), file_ledger.bytes_a_record(lake, raw)
    records = round(size / bytes_per_record) if bytes_per_record else None
    since = min((f.modified for f in files if f.modified is not None), default=None)
    return Backlog(len(files), size, records, since)


def unused_folder(raw: Table) -> str | None:
    """Return the landing folder of a raw table if it is missing, or if the table has no record yet; else None.

    Streams whose records Python code lands need no folder.
    """
    folder = raw.properties.get(LANDING_PROPERTY)
    if not folder or find_property(raw, OFFSETS_PROPERTY):
        return None
    return folder if raw.metadata.current_snapshot_id is None or Landing.parse(folder).is_missing else None

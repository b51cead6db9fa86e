"""Remove what a published or discarded backfill no longer needs: its side catalog, its files and its tags."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table

from lake_assets.backfill.backfill_record import BackfillRecord, Records, TableRecord
from lake_assets.backfill.side_lake import SideLake
from lake_assets.capture import source_tags
from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.file_deletion import delete_file
from lake_assets.lake.metadata.metadata_commits import Metadata, read_metadata_at
from lake_assets.lake.metadata.working_copies import COPIES, REVIEW_PROPERTY
from lake_assets.tables.writing.table_ddl import set_properties

log = logging.getLogger(__name__)


def clean_up(lake: Lake, side: SideLake, record: BackfillRecord) -> None:
    """Remove what a published or discarded backfill no longer needs: its side catalog, files and tags.

    Can be repeated: data files go first, then the side catalog, then the metadata that names them.
    """
    # What a backfill published stays after it is undone: readers, and undoing that, go back to it.
    kept = {t.table for t in record.tables if record.state in ("published", "undone") and t.after is not None}
    for t in record.tables:
        copy = side.lake.find(t.table)
        if copy is not None and t.metadata and t.table not in kept:
            for path in _own_files(record, copy, read_metadata_at(copy.io, t.metadata)):
                with contextlib.suppress(FileNotFoundError):
                    delete_file(copy.io, path)
    pinned = [table for name in side.lake_tables() if (table := lake.find(name)) is not None]
    side.drop()
    for t in record.tables:
        if (table := lake.find(t.table)) is not None:
            _delete_folder(table, side.folder(table))
            if table.properties.get(REVIEW_PROPERTY) == record.id:  # it was discarded
                set_properties(lake, t.name, {REVIEW_PROPERTY: ""})
            if t.table not in kept:
                refs.drop(table, record.tag)
    for table in pinned:
        if ".".join(table.name()) not in kept:
            source_tags.release(lake, TableId.parse(table.name()), lambda t: _unneeded(record, t))


def discard_without_record(lake: Lake, backfill: str) -> list[str]:
    """Remove what is left of a backfill whose record is lost or cannot be read, and that record; return its tables.

    Nobody knows what it has published, so no data file is deleted.
    """
    records, tag = Records(lake), f"{refs.BACKFILL_TAG}{backfill}"
    tables: list[str] = []
    for name in lake.all_tables():
        try:
            table = lake.find(name)
        except LakeError as e:  # another table, which nobody can read, is in no backfill's way
            log.info("%s is left out: %s", name, e)
            continue
        if table is not None and (tag in table.metadata.refs or table.properties.get(REVIEW_PROPERTY) == backfill):
            tables.append(str(name))
    if tables:
        left = tuple(TableRecord(table, "everything") for table in tables)
        record = BackfillRecord(backfill, "", "", left, state="discarding")
        clean_up(lake, SideLake(lake, record), record)
    records.forget(backfill)
    return tables


def _unneeded(record: BackfillRecord, source: Table) -> list[str]:
    """Return the tags of a backfill, with those for undoing it only if it never was published."""
    own, is_over = record.source_tag(source), record.state == "discarding"
    return [name for name in source.metadata.refs if name == own or (is_over and name.startswith(f"{own}."))]


def _own_files(record: BackfillRecord, copy: Table, start: Metadata) -> Iterator[str]:
    """Yield the data and delete files that the commits of a working copy added."""
    started = {s["snapshot-id"] for s in start.get("snapshots", ())}
    folder = f"/{COPIES}{record.id}/"
    seen: set[str] = set()
    for snapshot in copy.metadata.snapshots:
        if snapshot.snapshot_id in started:
            continue
        for manifest in snapshot.manifests(copy.io):
            # Engines write one location in several ways (file:/, file:///): only the end of a path is compared.
            if manifest.manifest_path in seen or folder not in manifest.manifest_path:
                continue
            seen.add(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(copy.io, discard_deleted=False):
                if entry.status == ManifestEntryStatus.ADDED:
                    yield entry.data_file.file_path


def _delete_folder(table: Table, folder: str) -> None:
    """Delete the files of a working copy's folder that no snapshot of its table names."""
    io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    scheme, netloc, path = PyArrowFileIO.parse_location(folder, io.properties)
    system: Any = io.fs_by_scheme(scheme, netloc)
    named: set[str] = set()
    for snapshot in table.metadata.snapshots:
        # Later commits to the table carry manifests of the copy over.
        named |= {snapshot.manifest_list, *(m.manifest_path for m in snapshot.manifests(io))}
    paths = {PyArrowFileIO.parse_location(p, io.properties)[2] for p in named}
    left = False
    for info in system.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)):
        if info.type == FileType.File and info.path not in paths and not _is_checksum_of(info.path, paths):
            system.delete_file(info.path)
        elif info.type == FileType.File:
            left = True
    if not left and system.get_file_info(path).type == FileType.Directory:
        system.delete_dir(path)


def _is_checksum_of(path: str, files: set[str]) -> bool:
    folder, _, name = path.rpartition("/")
    return name.startswith(".") and name.endswith(".crc") and f"{folder}/{name[1:-4]}" in files

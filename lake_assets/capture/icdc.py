"""ICDC tables: registered, metadata-only Iceberg tables over captured files.

No data file is copied: the table's only snapshot lists the captured files as existing, with their original sequence
numbers and row ids, and the deletes that apply to them. Any engine with access to the catalog can read it. The files
belong to the source: an ICDC table is dropped without purging, and only the metadata written for it is deleted.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import random
import uuid
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lake_assets.capture import source_tags
from lake_assets.capture.files.avro_files import encode
from lake_assets.capture.files.manifests import Entry
from lake_assets.capture.files.planned_files import Side
from lake_assets.capture.icdc_metadata import PREFIX, raw_metadata, table_metadata
from lake_assets.capture.snapshot_points import Point
from lake_assets.capture.windows import Window
from lake_assets.errors import CaptureWriteError, CatalogUnavailableError, CorruptMetadataError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.names import CAPTURES
from lake_assets.runtime.private_files import make_private
from lake_assets.runtime.processes import is_gone, owner

NAMESPACE = (CAPTURES,)
# Folder in the lake's home, and ending, of the notes of tables that are being written.
_NOTES, _NOTE = "at-work", ".icdc"
VECTORS_PROPERTY = PREFIX + "vectors"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IcdcTables:
    """The ICDC tables of a capture; None for a side without files."""

    after: str | None
    before: str | None


@dataclass(frozen=True)
class RegisteredTable:
    """One registered ICDC table and the files that were written for it."""

    table: TableId
    files: tuple[str, ...]
    io: FileIO


@dataclass(frozen=True)
class Leftover:
    """An ICDC table that is still registered, or whose files were written before it was."""

    table: TableId
    source: str
    created: datetime
    owner: str | None = None
    """The process that created it."""
    expires: datetime | None = None
    """When its declared lifetime ends; None: with its process."""

    def is_left(self, limit: datetime) -> bool:
        """Whether its declared lifetime is over; without one, whether its process is dead.

        Of a process that is not visible from here, whether it was created before `limit`.
        """
        if self.expires is not None:
            return self.expires <= datetime.now(UTC)
        is_dead = is_gone(self.owner) if self.owner else None
        return self.created <= limit if is_dead is None else is_dead


def write(
    lake: LakeBase,
    source: Table,
    window: Window,
    side: Side,
    point: Point,
    name: str,
    old_types: Mapping[int, NestedField] | None = None,
    vectors: bytes | None = None,
    expires: datetime | None = None,
) -> RegisteredTable:
    """Write the metadata of an ICDC table over `side` and register it.

    Args:
        point: the snapshot of that side.
        name: name of the table, in the namespace `icdc`.
        old_types: top-level fields, by id, that have another type in the files than in the window's schema.
        vectors: content of the file of deletion vectors at `vectors_path`, to which `side` refers.
        expires: when the table may be swept; None: when its process has ended.

    Raises:
        CaptureWriteError: the metadata cannot be written.
    """
    folder, table = _folder(source), TableId(NAMESPACE, name)
    snapshot_id = random.getrandbits(62)
    assert side.list_kind is not None
    contents = {} if vectors is None else {vectors_path(source, name): vectors}
    manifest_entries: list[dict[str, Any]] = []
    for entries in _groups(side):
        content = encode(entries[0].kind, [{**e.raw, "status": 0} for e in entries])
        path = f"{folder}/{name}-m{len(manifest_entries)}.avro"
        contents[path] = content
        manifest_entries.append(_manifest_entry(entries, point, snapshot_id, path, len(content)))
    raw = raw_metadata(source)
    list_meta = {
        "format-version": str(raw["format-version"]),
        "snapshot-id": str(snapshot_id),
        "sequence-number": str(point.sequence_number),
    }
    manifest_list = f"{folder}/snap-{snapshot_id}-{name}.avro"
    contents[manifest_list] = encode(side.list_kind, manifest_entries, list_meta)
    metadata = table_metadata(
        raw, window, side, point, f"{folder}/{name}", snapshot_id, manifest_list, old_types, expires
    )
    if vectors is not None:
        metadata["properties"][VECTORS_PROPERTY] = vectors_path(source, name)
    path = f"{folder}/00000-{name}.metadata.json"
    contents[path] = json.dumps(metadata).encode()
    # Until it is registered, only a note tells of the files.
    with _noted(lake, source, table, [*contents]):
        files = _Files(source, name)
        for file, content in contents.items():
            files.put(file, content)
        _register(lake, table, path, files)
    return RegisteredTable(table, tuple(files.paths), source.io)


@contextlib.contextmanager
def _noted(lake: LakeBase, source: Table, table: TableId, paths: Sequence[str]) -> Generator[None]:
    """Note, in the lake's home, the files that are written within the context; the note remains after a kill."""
    folder, content = lake.config.home / _NOTES, {"catalog": lake.config.name, "table": table.name, "paths": paths}
    note = folder / f"{owner()}-{table.name}{_NOTE}"
    try:
        make_private(folder)
        note.write_text(json.dumps({**content, "source": list(source.name())}))
    except OSError as e:  # the note is a precaution, and a home may be read-only
        log.info("there is no note of ICDC table %s: %s", table, e)
    try:
        yield
    except Exception:
        _unlink(note)  # the files are deleted
        raise
    _unlink(note)


def _unlink(note: Path) -> None:
    with contextlib.suppress(OSError):  # there is none, or the folder is read-only
        note.unlink()


class _Files:
    """Writes the metadata files of one ICDC table; if one cannot be written, the others are deleted.

    Attributes:
        paths: the written files.
    """

    def __init__(self, source: Table, name: str) -> None:
        self._source, self._name = source, name
        self.paths: list[str] = []

    def put(self, path: str, content: bytes) -> None:
        """Write a file.

        Raises:
            CaptureWriteError: it cannot be written.
        """
        try:
            with self._source.io.new_output(path).create() as f:
                f.write(content)
        except (OSError, ValueError) as e:
            self.delete()
            if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # no permission would help
            raise CaptureWriteError(
                f"cannot write the metadata of ICDC table {self._name} to {path} ({e}): a capture is read through a "
                f"separate table next to its source. Allow writing to {self._source.location()}/icdc"
            ) from e
        self.paths.append(path)

    def delete(self) -> None:
        """Delete the written files."""
        _delete(self._source.io, self.paths)


def _register(lake: LakeBase, table: TableId, path: str, files: _Files) -> None:
    """Register an ICDC table by its metadata file; if that fails, delete its files."""
    try:
        lake.ensure_namespace(NAMESPACE)
        lake.catalog.register_table(table.parts, path)
    except Exception as e:
        # Catalogs raise various errors; none of them may leave files behind.
        files.delete()
        if isinstance(e, CatalogUnavailableError):
            raise
        raise CaptureWriteError(
            f"the catalog does not register ICDC table {table} ({e}): allow creating tables in the namespace "
            f"{'.'.join(NAMESPACE)}"
        ) from e


def vectors_path(source: Table, name: str) -> str:
    """Return the path of the deletion vectors written for an ICDC table."""
    return f"{_folder(source)}/{name}.puffin"


def drop(lake: LakeBase, registered: RegisteredTable) -> None:
    """Drop the table from the catalog and delete only the metadata written for it."""
    try:
        lake.catalog.drop_table(registered.table.parts)
    except NoSuchTableError:
        log.debug("ICDC table %s was dropped before", registered.table)
    _delete(registered.io, registered.files)


def leftovers(lake: LakeBase, older_than: timedelta = timedelta(hours=24)) -> list[Leftover]:
    """Return ICDC tables whose lifetime is over, or whose process is dead; of other machines, those older than that.

    Includes tables that were never registered, whose files exist.
    """
    limit = datetime.now(UTC) - older_than
    found = (left for left, _ in (*_registered(lake), *_unregistered(lake)))
    return [left for left in found if left.is_left(limit)]


def sweep(lake: LakeBase, older_than: timedelta = timedelta(hours=24)) -> list[Leftover]:
    """Drop the leftovers of killed runs (see `leftovers`); return them."""
    limit = datetime.now(UTC) - older_than
    dropped = []
    for leftover, table in _registered(lake):
        if leftover.is_left(limit):
            drop(lake, RegisteredTable(leftover.table, _own_files(table), table.io))
            dropped.append(leftover)
    for leftover, note in _unregistered(lake):
        if leftover.is_left(limit):
            source = lake.find(leftover.source)
            for path in note.paths:
                io = source.io if source is not None else load_file_io(lake.catalog.properties, path)
                _delete(io, [path])
            note.file.unlink(missing_ok=True)
            dropped.append(leftover)
    for name in {left.source for left in dropped}:
        source_tags.release(lake, TableId.parse(name), source_tags.of_dead_captures)
    return dropped


@dataclass(frozen=True)
class _Note:
    """The note of an ICDC table that was not registered."""

    file: Path
    paths: tuple[str, ...]


def _unregistered(lake: LakeBase) -> Iterator[tuple[Leftover, _Note]]:
    """Yield the ICDC tables that processes have begun to write, without those that they have registered."""
    for file in sorted((lake.config.home / _NOTES).glob(f"*{_NOTE}")):
        process = file.name.partition("-")[0]
        try:
            created = datetime.fromtimestamp(file.stat().st_mtime, UTC)
            content = json.loads(file.read_text())
            if content["catalog"] != lake.config.name:
                continue  # of a backfill's side catalog
            table = TableId(NAMESPACE, content["table"])
            source, paths = str(TableId.parse(tuple(content["source"]))), tuple(content["paths"])
        except FileNotFoundError:
            continue  # its process is done
        except (ValueError, KeyError, TypeError):
            if is_gone(process) is not False:
                file.unlink(missing_ok=True)  # the process was killed before it wrote any file
            continue
        if lake.find(table) is None:
            yield Leftover(table, source, created, process), _Note(file, paths)
        elif is_gone(process):
            file.unlink(missing_ok=True)


def _registered(lake: LakeBase) -> Iterator[tuple[Leftover, Table]]:
    for table_id in lake.tables(NAMESPACE):
        try:
            table = lake.catalog.load_table(table_id.parts)
        except (NoSuchTableError, CorruptMetadataError):
            continue  # its own run is dropping it
        if created := table.properties.get(PREFIX + "created-ms"):
            created_at = datetime.fromtimestamp(int(created) / 1000, UTC)
            source, process, until = (table.properties.get(PREFIX + name) for name in ("source", "owner", "expires-ms"))
            expires = datetime.fromtimestamp(int(until) / 1000, UTC) if until else None
            yield Leftover(table_id, source or "", created_at, process, expires), table


def _folder(source: Table) -> str:
    # One folder for all captures: in a local file system, separate ones would remain as empty folders.
    return f"{source.location().rstrip('/')}/icdc"


def _own_files(table: Table) -> tuple[str, ...]:
    """Return the metadata files named after the ICDC table, in their folder."""
    folder, name = table.location().rsplit("/", 1)
    snapshot = table.current_snapshot()
    files = [table.metadata_location]
    if vectors := table.properties.get(VECTORS_PROPERTY):
        files.append(vectors)
    if snapshot is not None:
        try:
            files += [m.manifest_path for m in snapshot.manifests(table.io)]
        except (OSError, EOFError, ValueError) as e:
            log.warning("manifests of ICDC table %s are not deleted, since their list cannot be read: %s", folder, e)
        files.append(snapshot.manifest_list)
    return tuple(f for f in files if f.startswith(f"{folder}/") and name in f.removeprefix(f"{folder}/"))


def _delete(io: FileIO, files: tuple[str, ...] | list[str]) -> None:
    for path in files:
        try:
            io.delete(path)
        except FileNotFoundError:
            log.debug("metadata file %s was deleted before", path)
        except OSError as e:
            # The table is dropped: remaining files are orphans of the source, and removed with its other orphans.
            log.warning("metadata file %s of a dropped ICDC table could not be deleted: %s", path, e)


def _groups(side: Side) -> Iterable[list[Entry]]:
    """Group entries that can share a manifest: one Avro schema, spec and content, all with or all without row ids."""
    groups: dict[Hashable, list[Entry]] = {}
    for e in (*side.data, *side.deletes):
        group = e.kind, e.spec_id, e.manifest.holds_deletes, e.first_row_id is not None
        groups.setdefault(group, []).append(e)
    return groups.values()


def _manifest_entry(entries: Sequence[Entry], point: Point, snapshot_id: int, path: str, length: int) -> dict[str, Any]:
    """Return the manifest list's entry for the manifest at `path`, with entries that can share it."""
    first = entries[0]
    # Entries of a format v1 manifest have no sequence numbers and inherit 0 from the manifest list.
    numbered = first.kind.has_field("sequence_number")
    counts = {"added": 0, "existing": len(entries), "deleted": 0}
    line: dict[str, Any] = {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": first.spec_id,
        "content": int(first.manifest.holds_deletes),
        "sequence_number": point.sequence_number if numbered else 0,
        "min_sequence_number": min(e.sequence_number for e in entries) if numbered else 0,
        "added_snapshot_id": snapshot_id,
        "partitions": None,
        "key_metadata": None,
        "first_row_id": None if first.first_row_id is None else min(e.first_row_id or 0 for e in entries),
        "added_rows_count": 0,
        "existing_rows_count": sum(e.records for e in entries),
        "deleted_rows_count": 0,
    }
    for what, n in counts.items():
        line[f"{what}_files_count"] = line[f"{what}_data_files_count"] = n
    return line


def new_name(source: TableId) -> str:
    """Return a name for the ICDC tables of one capture of `source`."""
    plain = "_".join(source.parts)
    return f"{''.join(c if c.isalnum() else '_' for c in plain)[:80]}_{uuid.uuid4().hex[:12]}"

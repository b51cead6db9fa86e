"""Leftovers of killed runs: branches, ICDC tables and unreferenced files.

Branches and ICDC tables name the process that created them; the next run drops those of dead processes. Files do not.
So each step writes a note, in the lake's home, of the tables it writes, and removes it when done: the note of a dead
process names the tables to list, and a start time. Other tables are never listed. Until a later step of the table is
done, `status` tells of the killed one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from lake_assets.capture import icdc
from lake_assets.errors import CatalogUnavailableError, LakeError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.file_deletion import delete_checksum
from lake_assets.lake.metadata.working_copies import COPIES
from lake_assets.runtime.private_files import make_private
from lake_assets.runtime.processes import OWNER, is_gone, owner

log = logging.getLogger(__name__)
_FOLDER = "at-work"
_NOTE = re.compile(rf"({OWNER})-[0-9a-f]{{12}}\.json")
_BRANCH = re.compile(rf"lake_assets_({OWNER})_[0-9a-f]{{32}}")
_SIDE_CATALOG = re.compile(r".+_(b[0-9a-f]{6})")
# A Spark Connect server may continue a step whose process was killed, and commit it.
FILES_AFTER = timedelta(hours=24)


def branch_name() -> str:
    """Return a name for a branch of this process."""
    return f"lake_assets_{owner()}_{uuid.uuid4().hex}"


def abandoned_branches(table: Table) -> list[str]:
    """Return the branches of a table that dead processes created."""
    return [b for b in table.metadata.refs if (match := _BRANCH.fullmatch(b)) and is_gone(match[1])]


def step_branches(table: Table) -> list[str]:
    """Return the branches of a table that steps created, at work or not."""
    return [b for b in table.metadata.refs if _BRANCH.fullmatch(b)]


def drop_branches(lake: LakeBase, name: TableId, table: Table) -> list[str]:
    """Drop the branches of a table that dead processes created, and return them."""
    abandoned = abandoned_branches(table)
    for branch in abandoned:
        if refs.can_commit(lake.catalog):
            refs.drop(table, branch)
        else:
            lake.spark().sql(f"ALTER TABLE {lake.sql_name(name)} DROP BRANCH IF EXISTS `{branch}`")
    return abandoned


@contextlib.contextmanager
def at_work(lake: LakeBase, tables: Sequence[TableId]) -> Generator[None]:
    """Note that tables are written within the context. The note remains if the process is killed or interrupted."""
    folder = lake.config.home / _FOLDER
    make_private(folder)
    note = folder / f"{owner()}-{uuid.uuid4().hex[:12]}.json"
    try:
        began, catalog = int(time.time() * 1000), lake.config.name
        note.write_text(json.dumps({"tables": [list(t.parts) for t in tables], "began": began, "catalog": catalog}))
        yield
    except CatalogUnavailableError:
        raise  # whether the writer's commit succeeded is unknown, so its files are still there
    except Exception:
        note.unlink(missing_ok=True)  # the writer has removed its files
        raise
    note.unlink(missing_ok=True)
    _done_again(lake, tables[0])


def _done_again(lake: LakeBase, table: TableId) -> None:
    """Note with killed steps of a table that a later one was done: nothing is left but their files."""
    backfill = _backfill_of(lake.config.name)
    for killed in _notes(lake):
        if (
            killed.is_abandoned
            and not killed.is_done_again
            and (killed.tables[:1], killed.backfill) == ((table,), backfill)
        ):
            with contextlib.suppress(OSError):  # another step does the same, or the disk is full
                written, partial = killed.file.stat().st_mtime, killed.file.with_suffix(".partial")
                partial.write_text(json.dumps(json.loads(killed.file.read_text()) | {"done_again": True}))
                os.utime(partial, (written, written))  # the age of a note counts
                partial.replace(killed.file)


def sweep(lake: LakeBase, files_after: timedelta = FILES_AFTER) -> list[str]:
    """Remove the leftovers of dead processes, except branches and younger files, and return them."""
    swept: list[str] = []
    with _for_now("ICDC tables"):
        swept += [str(dropped.table) for dropped in icdc.sweep(lake)]
    notes: list[Note] = []
    with _for_now("files"):
        notes += _notes(lake)
    busy = {t for note in notes if not note.is_abandoned for t in note.tables}
    for note in notes:
        # A table with active writers has to wait: no snapshot names their files yet.
        if note.is_abandoned and note.age >= files_after and not busy.intersection(note.tables):
            with _for_now(f"files of {', '.join(map(str, note.tables))}"):
                swept += _sweep_note(lake, note, files_after)
    if swept:
        log.info("removed leftovers of killed runs: %s", ", ".join(swept))
    return swept


@contextlib.contextmanager
def _for_now(what: str) -> Generator[None]:
    """Leave errors for the next run: leftovers of others must not fail a step."""
    try:
        yield
    except Exception as e:  # of any kind: broken files make PyIceberg raise many
        log.warning("%s of killed runs remain for now: %s", what, e)


@dataclass(frozen=True)
class Note:
    """The note of a process.

    Attributes:
        tables: the tables that a step writes, its own first.
        began: in milliseconds since 1970.
        process: the id of the process, if it runs on this machine.
        is_gone: whether the process has ended; None: that is not visible here.
        is_done_again: whether a later step of the table was done.
        backfill: the id of the backfill whose working copy the step writes; None: it writes the table itself.
    """

    file: Path
    tables: tuple[TableId, ...]
    began: int
    age: timedelta
    is_abandoned: bool
    process: int | None = None
    is_gone: bool | None = None
    is_done_again: bool = False
    backfill: str | None = None


def _backfill_of(catalog: str) -> str | None:
    """Return the id of the backfill whose working copies are in a catalog."""
    return match[1] if (match := _SIDE_CATALOG.fullmatch(catalog)) else None


def abandoned(lake: LakeBase) -> list[Note]:
    """Return the notes of dead processes: files that they wrote may be referenced by no snapshot."""
    return [note for note in _notes(lake) if note.is_abandoned]


def notes(lake: LakeBase) -> list[Note]:
    """Return the notes of steps that are at work, and of those that never ended."""
    return [note for note in _notes(lake) if note.tables]


def _notes(lake: LakeBase) -> Iterator[Note]:
    for file in sorted((lake.config.home / _FOLDER).glob("*.json")):
        match = _NOTE.fullmatch(file.name)
        is_dead = is_gone(match[1]) if match else True
        try:
            age = timedelta(seconds=max(0.0, time.time() - file.stat().st_mtime))
            content = json.loads(file.read_text())
            tables = tuple(TableId.parse(tuple(t)) for t in content["tables"])
            began, is_done_again = int(content["began"]), bool(content.get("done_again"))
            backfill = _backfill_of(content.get("catalog", ""))
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError, LakeError):
            # Truncated: the process was killed before it wrote any files, or is still writing the note.
            if is_dead is not False:
                file.unlink(missing_ok=True)
            continue
        # Whether a process on another machine is alive is unknown: only the age counts.
        is_abandoned = age >= FILES_AFTER if is_dead is None else is_dead
        process = int(match[1].split("_")[1]) if match and is_dead is False else None
        yield Note(file, tables, began, age, is_abandoned, process, is_dead, is_done_again, backfill)


def _sweep_note(lake: LakeBase, note: Note, after: timedelta) -> list[str]:
    """Remove the unreferenced files of a note's tables, then the note, unless some files are too young."""
    swept: list[str] = []
    youngest = 0.0
    for name in note.tables:
        files, young = _sweep_files(lake, name, note.began, after)
        swept += files
        youngest = max([youngest, *young])
    if youngest:
        # The note is checked again when the youngest file is old enough.
        os.utime(note.file, (youngest, youngest))
    else:
        note.file.unlink(missing_ok=True)
    return swept


def remove_unnamed_files(lake: LakeBase, name: TableId, age: float) -> list[str]:
    """Remove files of a table that no snapshot names, and that are at least so many seconds old; return them.

    Metadata files are not among them (see `metadata_versions`).
    """
    return [*_sweep_files(lake, name, 0, timedelta(seconds=age), but_metadata=True)[0]]


def _sweep_files(
    lake: LakeBase, name: TableId, began: int, after: timedelta, *, but_metadata: bool = False
) -> tuple[list[str], list[float]]:
    """Remove unreferenced files of a table that were written since `began`, perhaps without metadata files.

    Returns:
        The removed files, and the write times of files that are too young.
    """
    table = lake.find(name)
    if table is None:
        return [], []
    io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    scheme, netloc, path = PyArrowFileIO.parse_location(table.location(), io.properties)
    system, until = io.fs_by_scheme(scheme, netloc), time.time() - after.total_seconds()
    listed = [
        info
        for folder in ("data", "metadata")
        for info in system.get_file_info(FileSelector(f"{path}/{folder}", recursive=True, allow_not_found=True))
        if info.type == FileType.File and info.mtime_ns is not None
    ]
    if any(f"/metadata/{COPIES}" in info.path and info.path.endswith(".metadata.json") for info in listed):
        # The files of a working copy are unreferenced until it is published: the table waits for that.
        return [], [time.time()]
    recent = {
        info.path: info.mtime_ns / 1e9
        for info in listed
        if began - 60_000 <= info.mtime_ns // 1_000_000
        if not info.base_name.endswith(".crc")  # deleted with its file
        if not (but_metadata and ".metadata.json" in info.base_name)
    }
    if not recent:
        return [], []
    unreferenced = sorted(
        recent.keys() - {PyArrowFileIO.parse_location(f, io.properties)[2] for f in named_files(table)}
    )
    # A concurrent commit may have referenced some of these files.
    if lake.table(name).metadata_location != table.metadata_location:
        return _sweep_files(lake, name, began, after, but_metadata=but_metadata)
    old = [file for file in unreferenced if recent[file] <= until]
    for file in old:
        with contextlib.suppress(FileNotFoundError):
            system.delete_file(file)
            if scheme == "file":
                delete_checksum(Path(file))
    return old, [recent[file] for file in unreferenced if recent[file] > until]


def named_files(table: Table) -> Iterator[str]:
    """Return all files that a table's metadata references.

    This includes the entries of old manifests, since a file that was restored from a backup looks new.
    """
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (s.statistics_path for s in (*metadata.statistics, *metadata.partition_statistics))
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                yield entry.data_file.file_path

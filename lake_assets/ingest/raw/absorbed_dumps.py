"""The dumps of a whole table that a raw table has absorbed, and those that are pending: from metadata and listings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pyiceberg.table import Table

from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw_tables import LANDING_PROPERTY, stored
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.row_counts import keeps_rows
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.sources.dump_folders import Completeness, FolderDump, complete_dumps, late_dumps
from lake_assets.sources.dump_rows import Layout, RowFormat
from lake_assets.tables.pending_windows import Window, head_of

# Snapshot property of a raw table: the last absorbed dump.
DUMP_PROPERTY = "lake-assets.dump"
# Table property: the table whose rows are read whole.
DUMPS_OF_PROPERTY = "lake-assets.dumps-of"
# Table property: when a dump in the landing folder is complete, for commands that read a lake without its pipelines.
COMPLETE_PROPERTY = "lake-assets.complete-dumps"


@dataclass(frozen=True)
class AbsorbedDump:
    """The last absorbed dump.

    Attributes:
        name: the name of its folder, or table and snapshot.
        fingerprint: see `FolderDump`.
        version: the order of its records; grows from dump to dump.
        part: the part of the kept rows that are its rows.
        rows: the number of its rows.
        layout, types: see `RowFormat`.
        key: the columns by which its rows are kept.
    """

    name: str
    fingerprint: str
    version: int
    part: str
    rows: int
    layout: Layout
    types: dict[str, str]
    key: list[str]

    @property
    def is_of_table(self) -> bool:
        """Whether it is a snapshot of a table, and no folder."""
        return "/" in self.fingerprint

    @property
    def format(self) -> RowFormat:
        """What its rows are read by."""
        return RowFormat(self.layout, self.types)


def last_dump(raw: Table) -> AbsorbedDump | None:
    """Return the dump that a raw table has absorbed last; None: it has absorbed none."""
    found = stored(raw, DUMP_PROPERTY)
    return AbsorbedDump(**found) if found else None


def pending_dumps(lake: LakeBase, raw: Table | None, folder: Path, rule: Completeness) -> list[FolderDump]:
    """Return the dumps in a folder to absorb now, oldest first; reads metadata and listings only.

    The last absorbed dump is among them if its files were written again.
    """
    last = last_dump(raw) if raw is not None else None
    if raw is None or last is None:
        return complete_dumps(folder, rule)
    known = file_ledger.seen(lake, TableId.parse(".".join(raw.name())))
    since = "" if last.is_of_table else last.name
    # Without files, the last dump is being removed.
    return [
        d
        for d in complete_dumps(folder, rule, since=since, known=known)
        if d.name != last.name or (d.fingerprint != last.fingerprint and (d.files or not last.rows))
    ]


def skipped_dumps(lake: LakeBase, raw: Table) -> dict[str, str]:
    """Return the complete dumps in the landing folder that are not absorbed since newer ones have been, each with the
    reason."""
    last, folder, rule = last_dump(raw), *(raw.properties.get(p) for p in (LANDING_PROPERTY, COMPLETE_PROPERTY))
    if last is None or last.is_of_table or not folder or not rule:
        return {}
    known = file_ledger.seen(lake, TableId.parse(".".join(raw.name())))
    names = late_dumps(Path(folder), Completeness.parse(rule), last.name, known)
    return dict.fromkeys(names, f"older than {last.name}, which has been absorbed")


def pending_dump(raw: Table | None, source: TableId, loaded: Table) -> Window:
    """Return the window of the table that a raw table's dumps are read from: whatever its history, it is read whole.

    Commits that only rewrote files are absorbed. Reads metadata only.
    """
    last, head = last_dump(raw) if raw is not None else None, head_of(loaded)
    mark = _mark_of(last) if last and last.is_of_table else None
    if mark is not None and last is not None and last.name != dump_name(source, mark):
        mark = None  # of another table, which was read before
    if mark is not None and mark.uuid == head.uuid and mark.snapshot is not None:
        steps = between(loaded.metadata, mark.snapshot, head.snapshot)
        if steps.is_forward and all(map(keeps_rows, steps.steps)):
            head = mark
    return Window(source, mark if mark is None or mark.uuid == head.uuid else replace(mark, snapshot=None), head)


def behind_tables(lake: LakeBase, raw: Table) -> dict[str, int | None]:
    """Return whether the table that a raw table's dumps are read from has other rows now: 1 by its name, or 0."""
    name = raw.properties.get(DUMPS_OF_PROPERTY)
    source = lake.find(name) if name else None
    if not name or source is None:
        return {}
    window = pending_dump(raw, TableId.parse(name), source)
    return {name: int(not window.is_empty and window.head.snapshot is not None)}


def dump_name(source: TableId, mark: Watermark) -> str:
    """Return the name of a table's snapshot as a dump."""
    return f"{source}@{mark.snapshot}"


def _mark_of(last: AbsorbedDump) -> Watermark:
    """Return the snapshot of a table that was absorbed as a dump."""
    uuid, _, snapshot = last.fingerprint.partition("/")
    return Watermark(uuid, int(snapshot))

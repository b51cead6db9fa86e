"""Points of a table's history: snapshots, by id, tag, branch or time; and those that are there no more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from lake_assets.errors import SnapshotExpiredError, SnapshotNotFoundError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.metadata_json import decode
from lake_assets.lake.metadata.snapshot_log import history

# So many of a table's older metadata files are looked into for a snapshot that is gone.
LOOK_BACK = 20


@dataclass(frozen=True)
class Point:
    """One snapshot of a table."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    timestamp: datetime
    operation: str
    manifest_list: str
    schema_id: int | None
    next_row_id: int | None = None
    """The first row id that the table had not assigned yet (format v3)."""


def point(s: Snapshot) -> Point:
    """PyIceberg's snapshot as a point."""
    return Point(
        snapshot_id=s.snapshot_id,
        parent_id=s.parent_snapshot_id,
        sequence_number=s.sequence_number or 0,
        timestamp=datetime.fromtimestamp(s.timestamp_ms / 1000, UTC),
        operation=s.summary.operation.value if s.summary else "overwrite",
        manifest_list=s.manifest_list,
        schema_id=s.schema_id,
        next_row_id=None if s.first_row_id is None else s.first_row_id + (s.added_rows or 0),
    )


def find(table: Table, name: TableId, at: int | str | datetime) -> Snapshot | None:
    """The snapshot meant by `at`; None: there was none yet at that time."""
    meta = table.metadata
    if isinstance(at, datetime):
        return _as_of(meta, name, at)
    if isinstance(at, str) and not at.isdecimal():
        if ref := meta.refs.get(at):
            return _by_id(table, name, ref.snapshot_id)
        if at == "main":
            return None
        known = ", ".join(sorted(meta.refs)) or "none"
        raise SnapshotNotFoundError(f"{name} has no tag or branch {at!r}; it has: {known}")
    return _by_id(table, name, int(at))


def _by_id(table: Table, name: TableId, snapshot_id: int) -> Snapshot:
    return table.metadata.snapshot_by_id(snapshot_id) or _missing(table, name, snapshot_id)


def _as_of(meta: TableMetadata, name: TableId, at: datetime) -> Snapshot | None:
    millis = utc(at).timestamp() * 1000
    past = [entry for entry in meta.snapshot_log if entry.timestamp_ms <= millis]
    if past and (found := meta.snapshot_by_id(past[-1].snapshot_id)):
        return found
    oldest = list(history(meta, meta.current_snapshot_id))[-1:]
    if past or (oldest and _has_lost_history(meta)):
        raise SnapshotExpiredError(
            f"{name}: what was current at {at} has been expired; the oldest snapshot that is left is of "
            f"{time(oldest[0]) if oldest else 'never'}. Name a later time, or start from a full capture (start=None)"
        )
    return None


def _missing(table: Table, name: TableId, snapshot_id: int) -> NoReturn:
    """Say whether a snapshot that is not there was expired or never was."""
    meta = table.metadata
    known = {s.parent_snapshot_id for s in meta.snapshots} | {entry.snapshot_id for entry in meta.snapshot_log}
    if snapshot_id in known or _was_there(table, snapshot_id):
        surely = "has been expired"
    elif _has_lost_history(meta):
        surely = "is not there: expired, or of another table"
    else:
        raise SnapshotNotFoundError(
            f"{name} has no snapshot {snapshot_id}, and none of its {len(meta.snapshots)} snapshots came from it: "
            "it is another table's; or the table was rolled back, or its catalog restored, while it was read: then run "
            "again"
        )
    oldest = min(meta.snapshots, key=lambda s: s.timestamp_ms, default=None)
    raise SnapshotExpiredError(
        f"{name}: snapshot {snapshot_id} {surely}; the oldest that is left is of "
        f"{time(oldest) if oldest else 'never'}. Start from a full capture (start=None), and register consumers so "
        "that their snapshots are kept"
    )


def _has_lost_history(meta: TableMetadata) -> bool:
    """Whether snapshots have been expired: a parent is missing, or the table's first commits are (some writers cut the
    link to a parent that they expire)."""
    ids = {s.snapshot_id for s in meta.snapshots}
    if any(s.parent_snapshot_id not in ids for s in meta.snapshots if s.parent_snapshot_id is not None):
        return True
    return min((s.sequence_number or 0 for s in meta.snapshots), default=0) > 1


def _was_there(table: Table, snapshot_id: int) -> bool:
    """Whether one of the table's older metadata files, as far as they are kept, has the snapshot."""
    for entry in list(reversed(table.metadata.metadata_log))[:LOOK_BACK]:
        try:
            with table.io.new_input(entry.metadata_file).open() as f:
                snapshots = decode(f.read()).get("snapshots", [])
        except (OSError, ValueError, EOFError):
            return False  # older ones are gone as well
        if any(s["snapshot-id"] == snapshot_id for s in snapshots):
            return True
    return False


def utc(at: datetime) -> datetime:
    """`at` in UTC, which it is taken for where it has no zone."""
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def time(s: Snapshot) -> str:
    """When a snapshot was made, for people."""
    return datetime.fromtimestamp(s.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")

"""Find snapshots by id, tag, branch or time, and explain why one is missing, or is no ancestor of another."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lake_assets.errors import SnapshotExpiredError, SnapshotNotFoundError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.metadata_commits import read_metadata_at
from lake_assets.lake.metadata.snapshot_log import history

# Search at most this many older metadata files of a table for a missing snapshot.
MAX_VERSIONS = 20


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
    """The first row id that was not assigned yet (format v3)."""


def point(s: Snapshot) -> Point:
    """Convert PyIceberg's snapshot to a point."""
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
    """Return the snapshot at `at`; None if the table had no snapshot at that time."""
    meta = table.metadata
    if isinstance(at, datetime):
        return _as_of(meta, name, at)
    if isinstance(at, str) and not at.isdecimal():
        if ref := meta.refs.get(at):
            return _by_id(table, name, ref.snapshot_id)
        if at == "main":
            return None
        existing = ", ".join(sorted(meta.refs)) or "none"
        raise SnapshotNotFoundError(f"{name} has no tag or branch {at!r}; it has: {existing}")
    return _by_id(table, name, int(at))


def _by_id(table: Table, name: TableId, snapshot_id: int) -> Snapshot:
    return table.metadata.snapshot_by_id(snapshot_id) or _missing(table, name, snapshot_id)


def _as_of(meta: TableMetadata, name: TableId, at: datetime) -> Snapshot | None:
    millis = utc(at).timestamp() * 1000
    past = [entry for entry in meta.snapshot_log if entry.timestamp_ms <= millis]
    if past and (snapshot := meta.snapshot_by_id(past[-1].snapshot_id)):
        return snapshot
    oldest = list(history(meta, meta.current_snapshot_id))[-1:]
    if past or (oldest and _has_lost_history(meta)):
        raise SnapshotExpiredError(
            f"{name}: the snapshot that was current at {at} has expired; the oldest remaining one is of "
            f"{time(oldest[0]) if oldest else 'never'}. Name a later time, or start from a full capture (start=None)"
        )
    return None


def _missing(table: Table, name: TableId, snapshot_id: int) -> NoReturn:
    """Raise for a missing snapshot: it has expired, or never existed."""
    meta = table.metadata
    former_ids = {s.parent_snapshot_id for s in meta.snapshots} | {entry.snapshot_id for entry in meta.snapshot_log}
    if snapshot_id in former_ids or _existed(table, snapshot_id):
        state = "has expired"
    elif _has_lost_history(meta):
        state = "does not exist: it has expired, or belongs to another table"
    else:
        raise SnapshotNotFoundError(
            f"{name} has no snapshot {snapshot_id}, and none of its {len(meta.snapshots)} snapshots descends from "
            "it: the snapshot belongs to another table. If the table was rolled back or its catalog restored "
            "during the read, run again"
        )
    oldest = min(meta.snapshots, key=lambda s: s.timestamp_ms, default=None)
    raise SnapshotExpiredError(
        f"{name}: snapshot {snapshot_id} {state}; the oldest remaining one is of "
        f"{time(oldest) if oldest else 'never'}. Start from a full capture (start=None), and register consumers so "
        "that their snapshots are kept"
    )


def _has_lost_history(meta: TableMetadata) -> bool:
    """Whether snapshots have expired: a parent is missing, or the first commits are.

    Some writers remove the parent's id when they expire the parent.
    """
    existing = {s.snapshot_id for s in meta.snapshots}
    if any(s.parent_snapshot_id not in existing for s in meta.snapshots if s.parent_snapshot_id is not None):
        return True
    return min((s.sequence_number or 0 for s in meta.snapshots), default=0) > 1


def _existed(table: Table, snapshot_id: int) -> bool:
    """Whether one of the table's older metadata files that still exist contains the snapshot."""
    for entry in list(reversed(table.metadata.metadata_log))[:MAX_VERSIONS]:
        try:
            snapshots = read_metadata_at(table.io, entry.metadata_file).get("snapshots", [])
        except (OSError, ValueError, EOFError):
            return False  # older files are missing as well
        if any(s["snapshot-id"] == snapshot_id for s in snapshots):
            return True
    return False


def utc(at: datetime) -> datetime:
    """Return `at` with a time zone: UTC if it has none."""
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def time(s: Snapshot) -> str:
    """Return the time of a snapshot as text."""
    return datetime.fromtimestamp(s.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


# Summary properties of Iceberg's write-audit-publish: of a staged snapshot, and of the snapshot that publishes it.
_STAGED, _PUBLISHED, _SOURCE = "wap.id", "published-wap-id", "source-snapshot-id"
MAIN = "main"


@dataclass(frozen=True)
class Divergence:
    """Why the start of a window is not an ancestor of its end.

    Attributes:
        reason: the cause.
        advice: the window to capture instead.
    """

    reason: str
    advice: str


def divergence(meta: TableMetadata, first: Snapshot, last: Snapshot, ancestor: Snapshot | None) -> Divergence:
    """Find out why `first` is not an ancestor of `last`.

    Args:
        ancestor: the newest common ancestor; None if there is no common ancestor.
    """
    start_branches, end_branches = _branches(meta, first), _branches(meta, last)
    common = f"start from the common ancestor {ancestor.snapshot_id}" if ancestor else "capture everything (start=None)"
    if (wap_id := _summary_value(first, _STAGED)) and not start_branches and not _was_current(meta, first):
        if published := _publication(meta, first, wap_id):
            reason = f"snapshot {first.snapshot_id} was staged (wap.id {wap_id!r}) and published as {published}"
            return Divergence(reason, f"start from {published}")
        publish = "publish it with cherrypick_snapshot and start from the resulting snapshot"
        return Divergence(
            f"snapshot {first.snapshot_id} is staged (wap.id {wap_id!r}) and not published", f"{common}, or {publish}"
        )
    if start_branches and not set(start_branches) & set(end_branches):
        location = f"on branch {end_branches[0]!r}" if end_branches else "not"
        return Divergence(
            f"snapshot {first.snapshot_id} is on branch {start_branches[0]!r}, "
            f"the end {last.snapshot_id} is {location}",
            f"end the window at that branch (end={start_branches[0]!r}), or {common}",
        )
    if (wap_id := _summary_value(last, _STAGED)) and not end_branches:
        return Divergence(
            f"the end {last.snapshot_id} is staged (wap.id {wap_id!r}) and does not follow from {first.snapshot_id}",
            f"{common}, or end the window at a published snapshot",
        )
    return Divergence(f"snapshot {first.snapshot_id} was rolled back", common)


def _branches(meta: TableMetadata, snapshot: Snapshot) -> list[str]:
    """Return the branches whose history contains a snapshot, main first."""
    heads = {n: r.snapshot_id for n, r in meta.refs.items() if r.snapshot_ref_type == SnapshotRefType.BRANCH}
    names = [
        name for name, head in heads.items() if any(s.snapshot_id == snapshot.snapshot_id for s in history(meta, head))
    ]
    return sorted(names, key=lambda name: (name != MAIN, name))


def _was_current(meta: TableMetadata, snapshot: Snapshot) -> bool:
    return any(entry.snapshot_id == snapshot.snapshot_id for entry in meta.snapshot_log)


def _publication(meta: TableMetadata, staged: Snapshot, wap_id: str) -> int | None:
    """Return the snapshot that published a staged one; None if it was not published."""
    for s in meta.snapshots:
        if _summary_value(s, _PUBLISHED) == wap_id or _summary_value(s, _SOURCE) == str(staged.snapshot_id):
            return s.snapshot_id
    return None


def _summary_value(snapshot: Snapshot, name: str) -> str | None:
    return snapshot.summary.additional_properties.get(name) if snapshot.summary else None

"""Explain why one snapshot is not an ancestor of another (rolled back, staged, on another branch)."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lake_assets.lake.metadata.snapshot_log import history

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

"""Why one snapshot is no ancestor of another (rolled back, staged, on another branch), and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lake_assets.lake.metadata.snapshot_log import history

# What Iceberg's write-audit-publish notes in the summary of a staged snapshot, and in that of its publication.
_STAGED, _PUBLISHED, _SOURCE = "wap.id", "published-wap-id", "source-snapshot-id"
MAIN = "main"


@dataclass(frozen=True)
class Apart:
    """Why the start of a window is no ancestor of its end.

    Attributes:
        reason: which case it is.
        advice: how to capture what was meant.
    """

    reason: str
    advice: str


def apart(meta: TableMetadata, first: Snapshot, last: Snapshot, ancestor: Snapshot | None) -> Apart:
    """Find out why `first` is no ancestor of `last`.

    Args:
        meta: the table's metadata.
        first: the start of a window.
        last: its end.
        ancestor: the newest snapshot that both come from; None: there is none.
    """
    there, ends = _branches(meta, first), _branches(meta, last)
    common = f"start from the common ancestor {ancestor.snapshot_id}" if ancestor else "capture everything (start=None)"
    if (wap_id := _fact(first, _STAGED)) and not there and not _was_current(meta, first):
        if published := _publication(meta, first, wap_id):
            reason = f"snapshot {first.snapshot_id} was staged (wap.id {wap_id!r}) and published as {published}"
            return Apart(reason, f"start from {published}")
        publish = "publish it with cherrypick_snapshot and start from the snapshot that this makes"
        return Apart(
            f"snapshot {first.snapshot_id} is staged (wap.id {wap_id!r}) and not published", f"{common}, or {publish}"
        )
    if there and not set(there) & set(ends):
        where = f"on branch {ends[0]!r}" if ends else "not"
        return Apart(
            f"snapshot {first.snapshot_id} is on branch {there[0]!r}, the end {last.snapshot_id} is {where}",
            f"end the window at that branch (end={there[0]!r}), or {common}",
        )
    if (wap_id := _fact(last, _STAGED)) and not ends:
        return Apart(
            f"the end {last.snapshot_id} is staged (wap.id {wap_id!r}) and does not follow from {first.snapshot_id}",
            f"{common}, or end the window at a published snapshot",
        )
    return Apart(f"snapshot {first.snapshot_id} was rolled back", common)


def _branches(meta: TableMetadata, snapshot: Snapshot) -> list[str]:
    """The branches whose history holds a snapshot, main first."""
    heads = {n: r.snapshot_id for n, r in meta.refs.items() if r.snapshot_ref_type == SnapshotRefType.BRANCH}
    names = [
        name for name, head in heads.items() if any(s.snapshot_id == snapshot.snapshot_id for s in history(meta, head))
    ]
    return sorted(names, key=lambda name: (name != MAIN, name))


def _was_current(meta: TableMetadata, snapshot: Snapshot) -> bool:
    return any(entry.snapshot_id == snapshot.snapshot_id for entry in meta.snapshot_log)


def _publication(meta: TableMetadata, staged: Snapshot, wap_id: str) -> int | None:
    """The snapshot that a staged one was published as."""
    for s in meta.snapshots:
        if _fact(s, _PUBLISHED) == wap_id or _fact(s, _SOURCE) == str(staged.snapshot_id):
            return s.snapshot_id
    return None


def _fact(snapshot: Snapshot, name: str) -> str | None:
    return snapshot.summary.additional_properties.get(name) if snapshot.summary else None

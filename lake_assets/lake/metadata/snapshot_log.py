"""The log of a table's snapshots: what one comes from, and what lies between two. Reads what was loaded only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True)
class Between:
    """What lies between two points of a table's history.

    Attributes:
        ancestor: the newest snapshot that both come from; None: there is none, it has expired, or there is no start.
        steps: what led from the ancestor to the end, oldest first; without an ancestor, all that led to the end and is
            still there.
        undone: what led from the ancestor to the start, oldest first: not empty after a rollback; without an ancestor,
            all that led to the start and is still there.
    """

    ancestor: Snapshot | None
    steps: tuple[Snapshot, ...]
    undone: tuple[Snapshot, ...]

    @property
    def is_forward(self) -> bool:
        """Whether the start is an ancestor of the end."""
        return self.ancestor is not None and not self.undone


def history(meta: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """A snapshot and what it comes from, newest first, as far as it has not expired; None: no snapshot."""
    by_id = {s.snapshot_id: s for s in meta.snapshots}
    while snapshot_id is not None and snapshot_id in by_id:
        snapshot = by_id[snapshot_id]
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def ancestors(table: Table, snapshot_id: int | None = None) -> Iterator[Snapshot]:
    """Snapshots from `snapshot_id` (default: the current one) back to the oldest that is still there."""
    return history(table.metadata, table.metadata.current_snapshot_id if snapshot_id is None else snapshot_id)


def between(meta: TableMetadata, start: int | None, end: int | None) -> Between:
    """Read what lies between two snapshots.

    Args:
        meta: the table's metadata.
        start: a snapshot; None: the beginning of the table.
        end: the snapshot to reach; None: that of an empty table.
    """
    steps: list[Snapshot] = []
    for snapshot in history(meta, end):
        if snapshot.snapshot_id == start:
            return Between(snapshot, tuple(reversed(steps)), ())
        steps.append(snapshot)
    undone = list(history(meta, start))
    ids = {s.snapshot_id: n for n, s in enumerate(undone)}
    for n, snapshot in enumerate(steps):
        if snapshot.snapshot_id in ids:
            beyond = undone[: ids[snapshot.snapshot_id]]
            return Between(snapshot, tuple(reversed(steps[:n])), tuple(reversed(beyond)))
    return Between(None, tuple(reversed(steps)), tuple(reversed(undone)))

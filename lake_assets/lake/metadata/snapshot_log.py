"""Walk a table's snapshots: the ancestors of one, and the commits between two. Reads loaded metadata only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True)
class Between:
    """The commits between two snapshots of a table.

    Attributes:
        ancestor: the newest common ancestor; None if it does not exist or has expired, or without a start.
        steps: snapshots from the ancestor (exclusive) to the end, oldest first; without an ancestor, the end and all
            its ancestors that have not expired.
        undone: snapshots from the ancestor (exclusive) to the start, oldest first: not empty after a rollback. Without
            an ancestor, the start and all its ancestors that have not expired.
    """

    ancestor: Snapshot | None
    steps: tuple[Snapshot, ...]
    undone: tuple[Snapshot, ...]

    @property
    def is_forward(self) -> bool:
        """Whether the start is an ancestor of the end."""
        return self.ancestor is not None and not self.undone


def history(meta: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors that have not expired, newest first; nothing for None."""
    by_id = {s.snapshot_id: s for s in meta.snapshots}
    while snapshot_id is not None and snapshot_id in by_id:
        snapshot = by_id[snapshot_id]
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def ancestors(table: Table, snapshot_id: int | None = None) -> Iterator[Snapshot]:
    """Yield `snapshot_id` (default: the current snapshot) and its ancestors that have not expired, newest first."""
    return history(table.metadata, table.metadata.current_snapshot_id if snapshot_id is None else snapshot_id)


def between(meta: TableMetadata, start: int | None, end: int | None) -> Between:
    """Find the commits between two snapshots.

    Args:
        start: a snapshot; None: the beginning of the table.
        end: the snapshot to reach; None: the empty table.
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

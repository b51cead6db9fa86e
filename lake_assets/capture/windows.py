"""Windows: the two snapshots to compare, and the operations between them.

A window is half-open, `(start, end]`: the contents of start are not part of it. Start may be missing (everything up to
end), or rolled back (then its changes after the common ancestor are reverted).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, Literal

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from lake_assets.capture.snapshot_points import Divergence, Point, divergence, find, point, time, utc
from lake_assets.errors import SnapshotNotFoundError, TableReplacedError, WindowError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.snapshot_log import between

Bound = int | str | datetime | None


class Empty(Enum):
    """The type of `EMPTY`."""

    EMPTY = "empty"

    def __repr__(self) -> str:
        return self.name


# The end of a window whose table has no current snapshot there: it was created or replaced without rows.
EMPTY: Final = Empty.EMPTY
End = Bound | Literal[Empty.EMPTY]


@dataclass(frozen=True)
class Window:
    """The interval `(start, end]` of one table's history."""

    table: TableId
    table_uuid: str
    start: Point | None
    """None for everything up to the end."""
    end: Point | None
    """None if the table has no current snapshot there: it is new, or was replaced by an empty table."""
    ancestor: Point | None
    """The newest common ancestor of start and end; None if it does not exist or has expired."""
    steps: tuple[Point, ...]
    """Snapshots from the ancestor (exclusive) to the end, oldest first."""
    undone: tuple[Point, ...]
    """Snapshots from the ancestor (exclusive) to the start: not empty after a rollback."""
    is_complete: bool
    """Whether all snapshots in between still exist; the net change does not need them."""
    schema_id: int
    """The schema of the rows: the end's."""
    divergence: Divergence | None = None
    """Why the start is not an ancestor of the end; None if it is one, or if its history is lost."""

    @property
    def start_snapshot_id(self) -> int | None:
        """The start's snapshot id."""
        return self.start.snapshot_id if self.start else None

    @property
    def end_snapshot_id(self) -> int | None:
        """The end's snapshot id."""
        return self.end.snapshot_id if self.end else None

    @property
    def start_sequence_number(self) -> int | None:
        """The start's sequence number."""
        return self.start.sequence_number if self.start else None

    @property
    def end_sequence_number(self) -> int | None:
        """The end's sequence number."""
        return self.end.sequence_number if self.end else None

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations in the window, oldest first."""
        return tuple(p.operation for p in self.steps)

    @property
    def is_forward(self) -> bool:
        """Whether start is known to be an ancestor of end (or missing)."""
        return self.start is None or self.start == self.ancestor

    @property
    def since(self) -> int | None:
        """The sequence number above which rows are new or updated; None after a rollback or without a start."""
        return self.start.sequence_number if self.start and self.is_forward else None

    @property
    def is_empty(self) -> bool:
        """Whether the snapshots alone show that nothing changed: same snapshot, or upkeep only."""
        if self.start_snapshot_id == self.end_snapshot_id:
            return True
        upkeep = all(p.operation == "replace" for p in self.steps)
        return self.start is not None and self.is_forward and self.is_complete and upkeep

    def __str__(self) -> str:
        return f"{self.table} ({self.start_snapshot_id or 'beginning'}, {self.end_snapshot_id or 'nothing'}]"


def resolve(
    table: Table, name: TableId, start: Bound = None, end: End = None, *, table_uuid: str | None = None
) -> Window:
    """Resolve two points of the history of a freshly loaded table to a window; reads only its metadata.

    Args:
        start: snapshot id, tag or branch, or a point in time of the main branch (UTC without a time zone); None:
            everything up to end.
        end: like `start`; None: the current snapshot; `EMPTY`: a table without rows. Rows have the schema of this
            snapshot, or the table's current schema if end is None, a branch or `EMPTY`.
        table_uuid: the uuid of the table that start belongs to, if known.

    Raises:
        TableReplacedError: the table's uuid is not `table_uuid`.
        SnapshotNotFoundError: no such snapshot, tag, branch or time.
        SnapshotExpiredError: the snapshot existed and has expired.
        WindowError: start is newer than end.
    """
    meta = table.metadata
    if table_uuid is not None and table_uuid != str(meta.table_uuid):
        raise TableReplacedError(
            f"{name} was dropped and created again, so it is not the table that was absorbed. Start from a full "
            f"capture (start=None). (uuid {table_uuid} before, {meta.table_uuid} now)"
        )
    if isinstance(start, datetime) and isinstance(end, datetime) and utc(start) > utc(end):
        raise WindowError(f"{name}: the window's start {start} is after its end {end}: swap them")
    first = None if start is None else find(table, name, start)
    if start is not None and first is None and not isinstance(start, datetime):
        raise SnapshotNotFoundError(f"{name}: branch {start!r} has no snapshot yet")
    if end is EMPTY:
        last = None
    elif end is None:
        last = meta.current_snapshot()
    else:
        last = find(table, name, end)
        if last is None:
            raise SnapshotNotFoundError(f"{name} had no snapshot at {end}: its first is later. Name a later end")
    reads_current = end is None or (isinstance(end, str) and _is_branch(meta, end))
    schema_id = last.schema_id if last and not reads_current else None
    window = _between(meta, name, first, last, meta.current_schema_id if schema_id is None else schema_id)
    if first and last and first is not last and not window.steps and not _was_rolled_back(meta, first, last):
        raise WindowError(
            f"{name}: the window's start {first.snapshot_id} ({time(first)}) is newer than its end {last.snapshot_id} "
            f"({time(last)}), and the table was never rolled back to it: swap them"
        )
    return window


def _between(meta: TableMetadata, name: TableId, first: Snapshot | None, last: Snapshot | None, schema: int) -> Window:
    log = between(meta, first.snapshot_id if first else None, last.snapshot_id if last else None)
    # That no common ancestor exists is only known if both histories are complete.
    is_known = log.ancestor is not None or all(c and c[0].parent_snapshot_id is None for c in (log.undone, log.steps))
    diverges = is_known and not log.is_forward
    is_from_beginning = first is None and (not log.steps or log.steps[0].parent_snapshot_id is None)
    return Window(
        table=name,
        table_uuid=str(meta.table_uuid),
        start=point(first) if first else None,
        end=point(last) if last else None,
        ancestor=point(log.ancestor) if log.ancestor else None,
        steps=tuple(map(point, log.steps)),
        undone=tuple(map(point, log.undone)),
        is_complete=log.ancestor is not None or is_from_beginning,
        schema_id=schema,
        divergence=_divergence(meta, first, last, log.ancestor) if diverges or last is None else None,
    )


def _divergence(
    meta: TableMetadata, first: Snapshot | None, last: Snapshot | None, ancestor: Snapshot | None
) -> Divergence | None:
    if first is None:
        return None
    if last is None:
        return Divergence("the table was replaced by an empty one", "capture the table before it was replaced")
    return divergence(meta, first, last, ancestor)


def _was_rolled_back(meta: TableMetadata, first: Snapshot, last: Snapshot) -> bool:
    """Whether a branch is at `last`, an ancestor of `first`, or main was there after `first`."""
    if any(
        r.snapshot_id == last.snapshot_id for r in meta.refs.values() if r.snapshot_ref_type == SnapshotRefType.BRANCH
    ):
        return True
    log = [entry.snapshot_id for entry in meta.snapshot_log]
    return first.snapshot_id in log and last.snapshot_id in log[log.index(first.snapshot_id) :]


def _is_branch(meta: TableMetadata, name: str) -> bool:
    ref = meta.refs.get(name)
    return ref is not None and ref.snapshot_ref_type == SnapshotRefType.BRANCH

"""What all steps share: finding the window from the target's watermark, and checking that it is still there."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table

from lake_assets.errors import TableReplacedError
from lake_assets.lake import TableId
from lake_assets.lake.watermark import Mark, read_marks


@dataclass(frozen=True)
class Window:
    """What one target has not absorbed of one source.

    Attributes:
        mark: how far it has come; None: it has not begun.
        head: the source as it is now, or up to where a step takes it.
        left: how many snapshots come after that.
    """

    source: TableId
    mark: Mark | None
    head: Mark
    left: int = 0

    @property
    def start(self) -> int | None:
        """The snapshot to go on from."""
        return self.mark.snapshot if self.mark else None

    @property
    def is_absorbed(self) -> bool:
        """Whether there is nothing to do."""
        return self.mark is not None and self.mark.snapshot == self.head.snapshot


def head_of(source: Table) -> Mark:
    """A table as it is now."""
    return Mark(str(source.metadata.table_uuid), source.metadata.current_snapshot_id)


def window_of(target: TableId, table: Table | None, source: TableId, loaded: Table) -> Window:
    """The window that `target` has still to absorb of `source`, from what was loaded of both (None: no such table).

    Raises:
        TableReplacedError: the source is another table than the one that was absorbed.
        SnapshotExpiredError: the target's own watermark is lost.
    """
    head = head_of(loaded)
    mark = read_marks(table).get(str(source)) if table else None
    if mark and mark.uuid != head.uuid:
        raise TableReplacedError(
            f"{target} absorbed {source} with uuid {mark.uuid}, and now {source} has uuid {head.uuid}: it was "
            f"dropped and "
            f"made again. What {target} holds may not be in it: drop {target} and run again to rebuild it"
        )
    return Window(source, mark, head)

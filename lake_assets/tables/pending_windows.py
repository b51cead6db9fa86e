"""What all steps share: finding the window from the target's watermark, and checking that it is still there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyiceberg.table import Table

from lake_assets.errors import HistoryError, SnapshotExpiredError, TableReplacedError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import Watermark, Watermarks, read_marks


@dataclass(frozen=True)
class LostHistory:
    """Why a window cannot be captured.

    Attributes:
        option: the option that decides what happens: `on_gap` where a snapshot has expired, `on_replaced` where the
            source is another table.
        why: what happened, as a sentence without its full stop.
    """

    option: Literal["on_gap", "on_replaced"]
    why: str

    def error(self, advice: str) -> HistoryError:
        """The error that stops a table, with what to do about it."""
        kind = SnapshotExpiredError if self.option == "on_gap" else TableReplacedError
        return kind(f"{self.why}. {advice}")


@dataclass(frozen=True)
class Window:
    """What one target has not absorbed of one source.

    Attributes:
        mark: how far it has come; None: it has not begun.
        head: the source as it is now, or up to where a step takes it.
        left: how many snapshots come after that.
        lost: why there is no way from what was absorbed to the head; then `mark` is None.
    """

    source: TableId
    mark: Watermark | None
    head: Watermark
    left: int = 0
    lost: LostHistory | None = None

    @property
    def start(self) -> int | None:
        """The snapshot to go on from."""
        return self.mark.snapshot if self.mark else None

    @property
    def is_absorbed(self) -> bool:
        """Whether there is nothing to do."""
        return self.mark is not None and self.mark.snapshot == self.head.snapshot


def head_of(source: Table) -> Watermark:
    """A table as it is now."""
    return Watermark(str(source.metadata.table_uuid), source.metadata.current_snapshot_id)


def known_marks(table: Table | None) -> Watermarks:
    """The target's watermarks; empty where there is no such table yet, or where its own watermark is lost."""
    try:
        return read_marks(table) if table is not None else {}
    except SnapshotExpiredError:
        return {}


def window_of(target: TableId, table: Table | None, source: TableId, loaded: Table) -> Window:
    """The window that `target` has still to absorb of `source`, from what was loaded of both (None: no such table).

    Reads metadata only. Where the history between the two is lost, the window says so, and starts at the beginning.
    """
    head = head_of(loaded)
    try:
        mark = read_marks(table).get(str(source)) if table else None
    except SnapshotExpiredError:
        why = f"{target} holds data, but the snapshot that says how far it has absorbed {source} has expired"
        return Window(source, None, head, lost=LostHistory("on_gap", why))
    if mark and mark.uuid != head.uuid:
        why = (
            f"{target} absorbed {source} with uuid {mark.uuid}, and now {source} has uuid {head.uuid}: it was dropped "
            f"and made again, so it may no longer hold what {target} was made of"
        )
        return Window(source, None, head, lost=LostHistory("on_replaced", why))
    if mark and mark.snapshot is not None and loaded.snapshot_by_id(mark.snapshot) is None:
        why = (
            f"{target} absorbed {source} up to snapshot {mark.snapshot}, which has expired since: what changed after "
            "it cannot be told"
        )
        return Window(source, None, head, lost=LostHistory("on_gap", why))
    return Window(source, mark, head)


def rebuild_advice(target: TableId, *sources: TableId, option: str = "") -> str:
    """How a table whose history is lost goes on.

    Args:
        target: the table.
        sources: what it is made of.
        option: the option that makes the pipeline do so by itself, where there is one.
    """
    held = f"{sources[0]} holds" if len(sources) == 1 else f"{', '.join(map(str, sources))} hold"
    command = f"`lake-assets rebuild {target}` computes {target} from what {held} now"
    return f"{command}; with `{option}: rebuild` declared, the next run does so by itself" if option else command

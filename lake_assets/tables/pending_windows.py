"""Find the pending window from the target's watermark, and check that its history still exists; for all steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from pyiceberg.table import Table

from lake_assets.capture import EMPTY
from lake_assets.capture.windows import End
from lake_assets.errors import HistoryError, SnapshotExpiredError, TableReplacedError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import Watermark, Watermarks, read_marks

# What has become of a table that was read before.
GONE = "no longer exists: it was dropped or renamed"


@dataclass(frozen=True)
class LostHistory:
    """Why a window cannot be captured.

    Attributes:
        option: the option that decides what to do: `on_gap` if a snapshot has expired, `on_replaced` if the source is
            another table.
        why: what happened, as a sentence without a full stop.
    """

    option: Literal["on_gap", "on_replaced"]
    why: str

    def error(self, advice: str) -> HistoryError:
        """Return the error that stops a table, with the remedy."""
        kind = SnapshotExpiredError if self.option == "on_gap" else TableReplacedError
        return kind(f"{self.why}. {advice}")


@dataclass(frozen=True)
class Window:
    """Pending changes of one source for one target.

    Attributes:
        mark: the target's watermark; None if it has absorbed nothing.
        head: the source's current snapshot, or the end of the batch; without a snapshot while the source is empty.
        left: number of snapshots after the batch.
        lost: why there is no history from the watermark to the head; then `mark` is None.
        is_due: whether a step is due even if the window has no snapshot, because of the declaration.
    """

    source: TableId
    mark: Watermark | None
    head: Watermark
    left: int = 0
    lost: LostHistory | None = None
    is_due: bool = False

    @property
    def start(self) -> int | None:
        """The snapshot to continue from; None for an empty source, and for the beginning."""
        return self.mark.snapshot if self.mark else None

    @property
    def end(self) -> End:
        """The end of a capture of the window."""
        return EMPTY if self.head.snapshot is None else self.head.snapshot

    @property
    def is_empty(self) -> bool:
        """Whether the source has no snapshot after the watermark."""
        return self.mark is not None and self.mark.snapshot == self.head.snapshot

    @property
    def is_absorbed(self) -> bool:
        """Whether nothing is pending."""
        return self.is_empty and not self.is_due


def head_of(source: Table) -> Watermark:
    """Return the current state of a table."""
    return Watermark(str(source.metadata.table_uuid), source.metadata.current_snapshot_id)


def continues(windows: Iterable[Window]) -> bool:
    """Whether a table has absorbed all of its sources: otherwise it is computed from the beginning."""
    return all(w.mark is not None for w in windows)


def known_marks(table: Table | None) -> Watermarks:
    """Return the target's watermarks; empty if the table does not exist yet, or its own watermark is lost."""
    try:
        return read_marks(table) if table is not None else {}
    except SnapshotExpiredError:
        return {}


def is_gone(target: Table | None, source: TableId) -> bool:
    """Whether a missing source existed once: its target has absorbed it."""
    return str(source) in known_marks(target)


def missing_sources(target: Table | None, missing: Iterable[TableId]) -> str:
    """Return what a table waits for: sources that do not exist yet, or that are gone."""
    return "; ".join(f"{s} {GONE}" if is_gone(target, s) else f"{s} does not exist yet" for s in missing)


def window_of(target: TableId, table: Table | None, source: TableId, loaded: Table) -> Window:
    """Return the pending window of `source` for `target`, from their loaded metadata (None: no such table).

    Reads metadata only. If the history between the two is lost, the window has the reason in `lost`, and starts at the
    beginning.
    """
    head = head_of(loaded)
    try:
        mark = read_marks(table).get(str(source)) if table else None
    except SnapshotExpiredError:
        why = f"{target} holds data, but the snapshot with its watermark of {source} has expired"
        return Window(source, None, head, lost=LostHistory("on_gap", why))
    if mark and mark.uuid != head.uuid and mark.snapshot is None:
        mark = replace(mark, uuid=head.uuid)  # no row of the former table was absorbed
    if mark and mark.uuid != head.uuid:
        why = (
            f"{source} was dropped and created again, so it may lack rows that {target} was computed from (uuid "
            f"{mark.uuid} before, {head.uuid} now)"
        )
        return Window(source, None, head, lost=LostHistory("on_replaced", why))
    if mark and mark.snapshot is not None and loaded.snapshot_by_id(mark.snapshot) is None:
        why = (
            f"the snapshot of {source} that {target} has absorbed has expired, so the changes after it are unknown "
            f"(snapshot {mark.snapshot})"
        )
        return Window(source, None, head, lost=LostHistory("on_gap", why))
    return Window(source, mark, head)


def rebuild_advice(target: TableId, *sources: TableId, option: str = "") -> str:
    """Return how to recover a table with lost history.

    `option` is the option that makes the pipeline recover by itself, if there is one.
    """
    contents = f"{sources[0]} contains" if len(sources) == 1 else f"{', '.join(map(str, sources))} contain"
    command = f"`lake-assets rebuild {target}` computes {target} from what {contents} now"
    return f"{command}; with `{option}: rebuild` declared, the next run does so by itself" if option else command

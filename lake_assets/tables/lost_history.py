"""What a table does whose source has lost history: it stops with advice, or starts again, as it is declared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, Protocol

from lake_assets.errors import (
    LOST_FILE_ADVICE,
    CorruptMetadataError,
    LakeError,
    LostEventsError,
    MissingDataFileError,
)
from lake_assets.lake import TableId
from lake_assets.lake.foreign_errors import named_errors
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.pending_windows import Window

log = logging.getLogger(__name__)
Policy = Literal["stop", "rebuild"]


class Declared(Protocol):
    """A table that declares what to do if history of its sources is lost."""

    @property
    def table(self) -> TableId:
        """The table."""
        ...

    @property
    def sources(self) -> tuple[TableId, ...]:
        """The tables whose changes it absorbs."""
        ...

    @property
    def on_gap(self) -> Policy:
        """What to do if the absorbed snapshot of a source has expired, or files of the past are missing."""
        ...

    @property
    def on_replaced(self) -> Policy:
        """What to do if a source was dropped and created again."""
        ...


def started_again(
    declared: Declared, windows: Mapping[TableId, Window], advice: Callable[[str], str], *, may_stop: bool = True
) -> dict[TableId, Window]:
    """Let all windows start at the beginning if the history of one is lost.

    Args:
        declared: the table.
        windows: by source.
        advice: how to recover, by the option that lets the next run do so.
        may_stop: whether the table stops where it is declared to; not if it computes everything in any case.

    Raises:
        TableReplacedError, SnapshotExpiredError: the history of a source is lost, and the table is declared to stop.
    """
    lost = [w.lost for w in windows.values() if w.lost]
    for why in lost if may_stop else ():
        if getattr(declared, why.option) == "stop":
            raise why.error(advice(why.option))
    return {s: replace(w, mark=None) for s, w in windows.items()} if lost else dict(windows)


def rebuilt_if_lost(declared: Declared, absorb: Callable[[str], Outcome], rebuild: str, advice: str) -> Outcome:
    """Run a step; if it needs events or files of the past that are gone, rebuild the table or stop, as declared.

    Args:
        declared: the table.
        absorb: the step, called with the reason for a rebuild; empty: it only absorbs changes.
        rebuild: the reason for a rebuild that was requested; empty: none was.
        advice: how to recover from lost events, if the table stops.

    Raises:
        LostEventsError, MissingDataFileError, CorruptMetadataError: the table is declared to stop; or a rebuild would
            need what is gone as well.
        LakeError: see the step.
    """
    lost: tuple[type[LakeError], ...] = (LostEventsError, MissingDataFileError, CorruptMetadataError)
    try:
        with named_errors(declared.table):
            return absorb(rebuild)
    except lost as e:
        # A rebuild would read the same broken table metadata.
        if rebuild or ".metadata.json" in str(e):
            raise
        if declared.on_gap == "stop":
            if isinstance(e, LostEventsError):
                raise LostEventsError(f"{e}. {advice}") from e
            raise  # an error about a file has advice already
        # The rebuild is what its advice was for.
        what = str(e).partition(LOST_FILE_ADVICE)[0].removesuffix(" Nothing was published. ").rstrip(" .")
        log.warning("%s: rebuilt: %s", declared.table, what)
        return absorb(f"the history of {', '.join(map(str, declared.sources))} is lost ({what})")

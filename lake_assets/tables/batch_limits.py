"""Limits of batches: windows are cut between snapshots of the source, and small changes wait for more.

A step that ends at an older snapshot of its source has the same result as a step that ran when that snapshot was
current. So the tables do not depend on where windows are cut.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.lake.metadata.row_counts import is_upkeep
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.tables.pending_windows import Window
from lake_assets.tables.specs import BatchSize

LEFT = "snapshots_left"


def cut(window: Window, source: Table, size: BatchSize) -> Window:
    """Cut the window at the snapshot that fills a batch, after at least one snapshot; reads only loaded metadata.

    A batch ends at a snapshot with the source's current columns, since the step knows no others. A window that does not
    lead from one snapshot to a later one (the source was rolled back, or its history is lost) is not cut.
    """
    is_cut = size.is_limited and window.lost is None
    steps = _steps(source, window.start, window.head.snapshot) if is_cut else None
    if not steps:
        return window
    for n, (snapshot, full) in enumerate(_filling(steps, size, window.start is None), 1):
        if full and n < len(steps) and snapshot.schema_id == source.metadata.current_schema_id:
            return replace(window, head=replace(window.head, snapshot=snapshot.snapshot_id), left=len(steps) - n)
    return window


def left_behind(*windows: Window) -> dict[str, object]:
    """Return an outcome's detail with the number of snapshots left for the next run."""
    remaining = sum(w.left for w in windows)
    return {LEFT: remaining} if remaining else {}


def seconds_left(source: Table, start: int | None, end: int, size: BatchSize, now: float | None = None) -> float:
    """Return how many seconds a pending window may still wait for more changes; 0 if it is due.

    Args:
        source: the table.
        start, end: the window's snapshots.
        size: the size of a full batch, and the longest wait.
        now: seconds since 1970.
    """
    steps = _steps(source, start, end) if size.wait and start is not None else None
    # A table that has absorbed nothing, and a rollback, do not wait.
    if not steps or any(full for _, full in _filling(steps, size)):
        return 0.0
    age = (time.time() if now is None else now) - steps[0].timestamp_ms / 1000
    # A snapshot is dated in the future if the clock was set back.
    return max(0.0, size.wait - age) if age >= 0 else 0.0


def _steps(source: Table, start: int | None, end: int | None) -> tuple[Snapshot, ...] | None:
    """Return the snapshots after `start` up to `end`, oldest first; None if `start` is not an ancestor of `end`."""
    log = between(source.metadata, start, end)
    return log.steps if start is None or log.is_forward else None


def _filling(steps: Sequence[Snapshot], size: BatchSize, is_all: bool = False) -> Iterator[tuple[Snapshot, bool]]:
    """Yield each snapshot, oldest first, and whether it fills the batch.

    `is_all`: whether the first snapshot includes the changes of expired ones before it.
    """
    files = rows = 0
    for n, snapshot in enumerate(steps):
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if n == 0 and is_all:
            files, rows = (int(summary.get(k) or 0) for k in ("total-data-files", "total-records"))
        elif not is_upkeep(snapshot):
            files += sum(int(summary.get(k) or 0) for k in _FILES)
            rows += sum(int(summary.get(k) or 0) for k in _ROWS)
        yield snapshot, size.is_full(files, rows)


_FILES = ("added-data-files", "deleted-data-files", "added-delete-files")
_ROWS = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")

"""Pending changes of tables, from metadata alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table

from lake_assets.formats.files.record_files import RecordFile
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.row_counts import is_upkeep
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.batch_limits import seconds_left
from lake_assets.tables.pending_windows import Window


@dataclass(frozen=True)
class PendingWindow:
    """Pending changes of one source of a table, from metadata alone.

    Attributes:
        source: a table, or a landing folder.
        start, end: snapshots (None for a folder, and for an empty table).
        files: landed files that are new (0 for a table).
        paths: these files.
        left: number of snapshots after `end` that remain for the next step, if batches are limited.
    """

    table: str
    source: str
    start: int | None = None
    end: int | None = None
    files: int = 0
    left: int = 0
    paths: tuple[RecordFile, ...] = field(default=(), repr=False, compare=False)


def pending_of(lake: LakeBase, spec: Spec) -> list[PendingWindow]:
    """Return the pending changes of one table."""
    name = str(spec.table)
    step = step_of(spec)
    if files := step.new_files(lake):
        return [PendingWindow(name, str(spec.landing), files=len(files), paths=tuple(files))]
    if not spec.sources:
        return []
    sources = _sources(lake, spec)
    windows = [w for w in step.windows(lake, lake.find(spec.table), sources) if step.is_due(w)]
    return [
        PendingWindow(name, str(w.source), w.start, w.head.snapshot)
        for w in windows
        if not _is_upkeep(w, sources[w.source])
    ]


def _is_upkeep(window: Window, source: Table) -> bool:
    """Whether a window consists of commits of upkeep: the next change of rows takes them along."""
    if window.is_due or window.lost or window.start is None or window.head.snapshot is None:
        return False
    commits = between(source.metadata, window.start, window.head.snapshot)
    return commits.is_forward and bool(commits.steps) and all(map(is_upkeep, commits.steps))


def _sources(lake: LakeBase, spec: Spec) -> dict[TableId, Table]:
    return {s: table for s in spec.sources if (table := lake.find(s)) is not None}


def after_redeclaration(lake: LakeBase, spec: Spec) -> str:
    """Return what the next run does with a table because its declaration has changed; empty: it has not.

    Reads metadata only.
    """
    table = lake.find(spec.table)
    return step_of(spec).after_redeclaration(lake, table, _sources(lake, spec)) if table is not None else ""


def next_batch(lake: LakeBase, spec: Spec, pending: Sequence[PendingWindow], pins: SnapshotPins) -> list[PendingWindow]:
    """Return the part of a table's pending windows that one step absorbs; reads metadata only.

    One step lands all new files, in several commits.

    Args:
        pins: snapshots that earlier models of the run have fixed.

    Raises:
        LakeError: see the steps.
    """
    if spec.landing:
        return list(pending)
    sources = _sources(lake, spec)
    if len(sources) < len(spec.sources):
        return list(pending)
    step = step_of(spec)
    windows = step.batch(lake, lake.find(spec.table), sources, pins)
    by_source = {str(w.source): w for w in windows if not w.is_absorbed}
    return [
        replace(p, end=w.head.snapshot, left=w.left)
        for p in pending
        if (w := by_source.get(p.source)) and step.is_due(w)
    ]


def may_wait(lake: LakeBase, spec: Spec, pending: Sequence[PendingWindow], now: float | None = None) -> float:
    """Return how many seconds a table may still wait for more changes; 0 if due. Files wait before they are listed."""
    windows = [(p, p.end) for p in pending if p.end is not None] if spec.batch.wait else []
    return min((seconds_left(lake.table(p.source), p.start, end, spec.batch, now) for p, end in windows), default=0.0)

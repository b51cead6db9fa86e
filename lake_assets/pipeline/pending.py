"""What tables have still to absorb of their sources, from metadata alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.target import pending_of as pending_of_final
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.landing import new_files
from lake_assets.ingest.landing import pending_of_table as pending_of_raw
from lake_assets.ingest.staging import pending_of as pending_of_staging
from lake_assets.lake import LakeBase
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.steps.model_runs import next_of, windows_of
from lake_assets.models.steps.snapshot_pins import Heads
from lake_assets.pipeline.table_graph import Spec, sources
from lake_assets.tables.batch_limits import cut, seconds_left
from lake_assets.tables.pending_windows import Window


@dataclass(frozen=True)
class Pending:
    """What one table has still to absorb of one source: found in metadata alone.

    Attributes:
        source: a table, or a landing folder.
        start, end: snapshots (None for a folder).
        files: landed files that are new (0 for a table).
        left: how many snapshots after `end` are left for the next step, where batches are limited.
    """

    table: str
    source: str
    start: int | None = None
    end: int | None = None
    files: int = 0
    left: int = 0


def pending_of(lake: LakeBase, spec: Spec) -> list[Pending]:
    """What one table has still to absorb of its sources as they are now."""
    name = str(spec.table)
    if isinstance(spec, RawSpec) and spec.landing:
        files = new_files(lake, spec)
        return [Pending(name, str(spec.landing), files=len(files))] if files else []
    table = lake.find(spec.table)
    loaded = {s: t for s in sources(spec) if (t := lake.find(s)) is not None}
    if isinstance(spec, ModelSpec):
        windows = list(windows_of(spec, table, loaded).values())
    else:
        windows = [_window(lake, spec, table, source)[0] for source in loaded.values()]
    return [
        Pending(name, str(w.source), w.start, w.head.snapshot)
        for w in windows
        if not w.is_absorbed and w.head.snapshot is not None
    ]


def next_batch(lake: LakeBase, spec: Spec, pending: Sequence[Pending], heads: Heads) -> list[Pending]:
    """What one step takes of a table's pending windows, as its sources are now; reads metadata only.

    New files are all taken in by one step, in several commits.

    Args:
        lake: the lake.
        spec: the table.
        pending: its windows.
        heads: what models before it in the run take.

    Raises:
        LakeError: see the steps.
    """
    if isinstance(spec, RawSpec) and spec.landing:
        return list(pending)
    table = lake.find(spec.table)
    loaded = {s: t for s in sources(spec) if (t := lake.find(s)) is not None}
    if len(loaded) < len(sources(spec)):
        return list(pending)
    if isinstance(spec, ModelSpec):
        windows = list(next_of(lake, spec, table, loaded, heads)[0].values())
    else:
        windows = []
        for source in loaded.values():
            window, is_rebuild = _window(lake, spec, table, source)
            windows.append(window if is_rebuild else cut(window, source, spec.batch))
    taken = {str(w.source): w for w in windows if not w.is_absorbed}
    return [
        replace(p, end=w.head.snapshot, left=w.left) for p in pending if (w := taken.get(p.source)) and w.head.snapshot
    ]


def _window(
    lake: LakeBase, spec: RawSpec | StagingSpec | FinalSpec, table: Table | None, source: Table
) -> tuple[Window, bool]:
    """What a table has still to absorb of its source, and whether that is all of it, once more."""
    match spec:
        case RawSpec():
            assert spec.source is not None
            return pending_of_raw(spec, table, spec.source, source), False
        case StagingSpec():
            window, again = pending_of_staging(spec, table, source)
        case FinalSpec():
            window, again = pending_of_final(lake, spec, table, source)
    return window, again is not None


def may_wait(lake: LakeBase, spec: Spec, pending: Sequence[Pending], now: float | None = None) -> float:
    """How many seconds a table's pending windows may still wait for more; 0: it is due. New files have waited."""
    windows = [(p, p.end) for p in pending if p.end is not None] if spec.batch.wait else []
    return min((seconds_left(lake.table(p.source), p.start, end, spec.batch, now) for p, end in windows), default=0.0)

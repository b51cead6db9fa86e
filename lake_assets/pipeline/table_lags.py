"""How old the changes are that tables have not absorbed, and how long their steps take: what targets are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lake_assets.journal.recent_steps import RecentSteps, recent_steps
from lake_assets.lake import LakeBase
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.pipeline.pending import PendingWindow
from lake_assets.pipeline.table_graph import Spec, after
from lake_assets.pipeline.target_lag import TableLag


def has_targets(specs: Sequence[Spec]) -> bool:
    """Whether any table has a target lag."""
    return any(spec.shown.target_lag is not None for spec in specs)


def table_lags(
    lake: LakeBase, specs: Sequence[Spec], pending: Mapping[str, Sequence[PendingWindow]], now: float
) -> list[TableLag]:
    """Return what the plan of targets needs to know of each table; reads metadata and the journal.

    Args:
        specs: the tables of a pipeline, upstream first.
        pending: by table, its pending windows.
        now: seconds since 1970: a table that is pending for another reason is so since now.
    """
    recent, upstream = recent_steps(lake), after(specs)
    own = {str(s.table) for s in specs}
    lags: list[TableLag] = []
    for spec in specs:
        name = str(spec.table)
        windows = pending.get(name)
        since = None if windows is None else min((_since(lake, w, recent, now) for w in windows), default=now)
        sources = tuple(str(s) for s in upstream[spec.table] if str(s) in own)
        # A batch that may wait to be filled has its longest wait for a target.
        target = spec.shown.target_lag or spec.batch.wait or None
        lags.append(TableLag(name, sources, target, since, recent.seconds.get(name, 0.0)))
    return lags


def _since(lake: LakeBase, window: PendingWindow, recent: RecentSteps, now: float) -> float:
    """Return when the oldest change of a window arrived, in seconds since 1970."""
    if window.files:
        return min((f.modified for f in window.paths if f.modified is not None), default=now)
    source = lake.find(window.source)
    oldest = now
    # A table that has absorbed nothing yet lacks everything: that is as old as the newest change.
    for snapshot in ancestors(source) if source is not None else ():
        if snapshot.snapshot_id == window.start:
            break
        oldest = min(oldest, recent.arrivals.get(snapshot.snapshot_id, snapshot.timestamp_ms / 1000))
        if window.start is None:
            break
    return oldest

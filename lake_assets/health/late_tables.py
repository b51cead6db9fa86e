"""Tables that are behind their target lag, or whose target no run can keep."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from lake_assets.errors import LakeError
from lake_assets.lake import LakeBase
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.config.setting_types import seconds_of
from lake_assets.pipeline.pending import PendingWindow, pending_of
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.table_lags import has_targets, table_lags
from lake_assets.pipeline.target_lag import TableLag, UnkeptTarget, unkept


def pipeline_lags(lake: LakeBase, specs: Sequence[Spec], now: float) -> list[TableLag]:
    """Return how far the tables of a pipeline are behind; reads metadata and the journal.

    A table whose pending changes cannot be told, because of its history or input, counts as pending since now: its
    step fails with the reason.
    """
    pending: dict[str, list[PendingWindow]] = {}
    for spec in specs:
        try:
            windows = pending_of(lake, spec)
        except LakeError:
            pending[str(spec.table)] = []
            continue
        if windows:
            pending[str(spec.table)] = windows
    return table_lags(lake, specs, pending, now)


def targets_of(lake: LakeBase, pipelines: Sequence[Pipeline]) -> dict[str, float]:
    """Return the declared lags by table, in seconds; pipelines that cannot be read are left out."""
    targets: dict[str, float] = {}
    for pipeline in pipelines:
        with contextlib.suppress(LakeError):
            specs = pipeline.specs(lake, alone=False)
            targets |= {str(s.table): s.shown.target_lag for s in specs if s.shown.target_lag is not None}
    return targets


def late_tables(lake: LakeBase, pipelines: Sequence[Pipeline], now: float | None = None) -> dict[str, UnkeptTarget]:
    """Return by table the targets that are exceeded now, or that no run can keep."""
    now = time.time() if now is None else now
    late: dict[str, UnkeptTarget] = {}
    for pipeline in pipelines:
        try:
            specs = pipeline.specs(lake, alone=False)
        except LakeError:  # which the status of the pipeline says
            continue
        if has_targets(specs):
            lags = pipeline_lags(lake, specs, now)
            # The plan takes the longest wait of a batch for a target, which nobody expects to be kept.
            declared = {str(s.table) for s in specs if s.shown.target_lag is not None}
            found = unkept(lags, now, seconds_of(pipeline.config.interval))
            late |= {t.table: t for t in found if t.table in declared}
    return late

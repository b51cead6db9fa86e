"""Finish a step: find its commit, audit the published rows, report the outcome."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.lake.metadata.row_counts import summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import Watermarks, to_properties
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.writing.commit_counts import counts
from lake_assets.tables.writing.publication import Commit


def published(
    commit: Commit,
    absorbed: tuple[Absorbed, ...],
    *,
    strategy: str,
    why: str,
    began: float,
    details: Mapping[str, object] | None = None,
) -> Outcome:
    """Return the outcome of a step that has committed.

    Args:
        commit: what it has committed; its audits are evaluated on the published rows.
        absorbed: the absorbed windows.
        strategy: how the changes were applied; `none`: no row changed.
        why: the reason for the strategy.
        began: `time.monotonic()` at the start of the step.
        details: anything else worth showing.
    """
    base, snapshot = commit.base, _commit_with(commit.lake.table(commit.table), commit.marks or {})
    inserted, updated, deleted = counts(snapshot)
    audits: tuple[Finding, ...] = ()
    if commit.gate and snapshot and strategy != "none":
        audits = commit.gate.audit_published(snapshot.snapshot_id, base.metadata.current_snapshot_id if base else None)
    return Outcome(
        str(commit.table), "absorbed", absorbed, inserted, updated, deleted, strategy, why, time.monotonic() - began,
        snapshot.snapshot_id if snapshot else None, dict(details or {}), audits=audits,
    )  # fmt: skip


def _commit_with(table: Table, marks: Watermarks) -> Snapshot | None:
    """Return the newest snapshot that carries some watermarks."""
    expected = to_properties(marks).items()
    return next((s for s in ancestors(table) if expected <= summary_of(s).items()), None)

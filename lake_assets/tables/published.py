"""The end of every step: find the commit that it made, audit what is published, report the outcome."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyiceberg.table import Table

from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.commits import counts, snapshot_of
from lake_assets.tables.outcome import Absorbed, Outcome


def published(
    lake: LakeBase,
    table: TableId,
    absorbed: tuple[Absorbed, ...],
    *,
    strategy: str,
    why: str,
    began: float,
    marks: Watermarks,
    base: Watermarks | None = None,
    former: Table | None = None,
    gate: Gate | None = None,
    details: Mapping[str, object] | None = None,
) -> Outcome:
    """The outcome of a step that has committed.

    Args:
        lake: the lake.
        table: what was written.
        absorbed: the windows that were taken in.
        strategy: how, with the reason in `why`; `none`: no row changed.
        why: the reason.
        began: `time.monotonic()` at the start of the step.
        marks: the watermarks that the commit carries.
        base: those that the step began from; None: the table was replaced, whatever it recorded.
        former: the table before the step.
        gate: the audits that are evaluated on what is published.
        details: anything else worth showing.

    Raises:
        ConcurrentWriteError: another run committed in between.
    """
    snapshot = snapshot_of(lake, table, marks, base)
    inserted, updated, deleted = counts(snapshot)
    audits: tuple[Finding, ...] = ()
    if gate and snapshot and strategy != "none":
        audits = gate.audit_published(snapshot.snapshot_id, former.metadata.current_snapshot_id if former else None)
    return Outcome(
        str(table), "absorbed", absorbed, inserted, updated, deleted, strategy, why, time.monotonic() - began,
        snapshot.snapshot_id if snapshot else None, dict(details or {}), audits=audits,
    )  # fmt: skip

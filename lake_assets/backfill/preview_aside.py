"""Compute the tables of a changed declaration beside production, and compare them with it.

It is a backfill that waits for a decision. Until somebody was shown what it changes, it is nobody's: it is discarded if
it fails, and the next preview discards it if its process was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lake_assets.backfill.backfill_plan import BackfillPlan, plan_redeclared
from lake_assets.backfill.backfill_record import BackfillRecord, Records
from lake_assets.backfill.backfills import Backfill, Progress
from lake_assets.backfill.comparison import TableComparison, compare
from lake_assets.backfill.declaration_preview import Preview
from lake_assets.errors import BackfillError
from lake_assets.facade import Lake
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.row_counts import is_upkeep, keeps_rows
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.pipeline import Pipeline
from lake_assets.runtime.processes import owner
from lake_assets.tables.pending_windows import known_marks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Aside:
    """The tables of a changed declaration, computed beside production.

    Attributes:
        record: the backfill that publishes or discards them.
        tables: what differs from production, upstream first.
        left_out: tables downstream that were not computed, with reasons.
        behind: by table, the sources of which production has not absorbed everything: their pending changes are among
            the differences.
    """

    record: BackfillRecord
    tables: tuple[TableComparison, ...]
    left_out: Mapping[str, str]
    behind: Mapping[str, tuple[str, ...]]


def discard_left(lake: Lake, pipeline: Pipeline) -> None:
    """Discard what killed previews of a pipeline left: nobody was shown any of it, and it keeps its tables waiting."""
    records = Records(lake)

    def is_left(record: BackfillRecord) -> bool:
        is_elsewhere = record.is_running and record.process != owner()
        return (record.is_unseen or record.state == "discarding") and record.is_open and not is_elsewhere

    for other in records.all():
        if other.pipeline != pipeline.name or not is_left(other):
            continue
        with records.exclusive():
            record = records.get(other.id)
            if not is_left(record):
                continue
            record = replace(record, state="discarding", process=owner())
            records.save(record)
        log.info("what an interrupted process left of %s is discarded", record.id)
        Backfill(lake, pipeline, record).discard()


def plan_aside(lake: Lake, pipeline: Pipeline, preview: Preview) -> BackfillPlan:
    """Plan how the changed tables of a preview, and everything downstream of them, are computed beside production.

    Raises:
        BackfillError: one of them cannot be; says why.
    """
    if stopped := next((t for t in preview.changed if t.how == "waits"), None):
        raise BackfillError(stopped.why)
    changed = {TableId.parse(t.table) for t in preview.recomputed}
    return plan_redeclared(lake, pipeline, changed, Records(lake).all())


def compute_aside(
    lake: Lake,
    pipeline: Pipeline,
    plan: BackfillPlan,
    samples: int = 5,
    on_progress: Progress = lambda record, table: None,
    *,
    shows_sensitive: bool = False,
) -> Aside:
    """Compute the tables of a plan beside production, and compare them. Nothing is left of it if that fails.

    Raises:
        BackfillError: another open backfill has one of the tables.
        AuditFailedError: rows do not pass the audits of their table.
        LakeError: see the steps.
    """
    behind = {t.table: names for t in plan.tables if (names := _behind(lake, TableId.parse(t.table)))}
    made = Backfill.begin(lake, pipeline, plan, publish="manual")
    try:
        made.build(on_progress)
        specs = pipeline.specs(lake, alone=False)
        compared = tuple(compare(lake, made.record, specs, samples, shows_sensitive=shows_sensitive))
        record = replace(made.record, process="", is_unseen=False)
        for c in compared:
            record = record.with_table(replace(record.of(c.table), compared=c.numbers()))
        Records(lake).save(record)
    except BaseException:
        made.discard()
        raise
    return Aside(record, compared, plan.left_out, behind)


def _behind(lake: LakeBase, name: TableId) -> tuple[str, ...]:
    """Return the sources of which a table has not absorbed all changes."""
    return tuple(source for source, mark in known_marks(lake.find(name)).items() if _has_changed(lake, source, mark))


def _has_changed(lake: LakeBase, source: str, mark: Watermark) -> bool:
    table = lake.find(source)
    if table is None or mark.snapshot == table.metadata.current_snapshot_id:
        return False
    commits = between(table.metadata, mark.snapshot, table.metadata.current_snapshot_id)
    return not commits.is_forward or not all(is_upkeep(s) or keeps_rows(s) for s in commits.steps)

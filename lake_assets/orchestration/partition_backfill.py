"""Backfills of partitions, and rebuilds, that Dagster launches: built aside, and published together.

Dagster runs a step per table, in one run or in several. The first of these steps to begin redoes the chosen partitions
of all tables aside and publishes them; the others wait for it. So a backfill that fails, or is cancelled, has changed
no table.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from lake_assets.backfill.backfill_plan import BackfillPlan, plan_tables
from lake_assets.backfill.backfill_record import BackfillRecord, Records
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.publishing import settled
from lake_assets.backfill.side_lake import can_build_aside
from lake_assets.errors import AuditFailedError, BackfillError, LakeError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.counts import plural
from lake_assets.orchestration._compat import (
    BACKFILL_ID_TAG,
    PARENT_BACKFILL_ID_TAG,
    ROOT_BACKFILL_ID_TAG,
    DagsterExecutionInterruptedError,
    leave_pool,
    partitions_of_backfill,
    was_cancelled,
)
from lake_assets.orchestration.asset_checks import evaluation
from lake_assets.orchestration.asset_names import REBUILD_TAG, asset_key
from lake_assets.orchestration.backfill_job import BACKFILL_TAG, comparisons, plan_event, progress
from lake_assets.orchestration.loaded_pipelines import loaded, named
from lake_assets.pipeline import Outcome, Pipeline, PipelineGroup, grouped, names_of
from lake_assets.pipeline.table_graph import ComputedSpec, Spec
from lake_assets.runtime.processes import owner

# Seconds between two looks at a backfill that another process builds.
_WAIT = 2.0
# Steps of one run are threads of one process.
_building: dict[str, threading.Lock] = defaultdict(threading.Lock)


@dataclass(frozen=True)
class Redone:
    """What a backfill did to one table.

    Attributes:
        outcome: as the outcome of a step.
        since: the table's snapshot before the backfill; None: it was not changed.
        has_news: whether it may also have brought changes of the sources that were pending.
    """

    outcome: Outcome
    since: int | None
    has_news: bool


def redo_together(
    context: dg.AssetExecutionContext, lake: Lake, pipeline: Pipeline, spec: Spec
) -> Generator[Any, None, Redone | None]:
    """Redo the chosen partitions, or all rows, of the tables of a run or its backfill, unless another step has done so.

    Args:
        context: the step's context.
        lake: the lake.
        pipeline: the pipeline of the step.
        spec: the step's table.

    Yields:
        From the step that does the work: the plan, failed audits, and the comparison of each table, as events.

    Returns:
        What the backfill did to the step's table; None if it is in no backfill, or alone in its run.

    Raises:
        BackfillError: the backfill failed, or somebody discarded or undid it.
    """
    backfill_id = context.run.tags.get(BACKFILL_ID_TAG)
    is_partitioned = context.has_partition_key or context.has_partition_key_range
    is_rebuild = REBUILD_TAG in context.run.tags
    if not (is_partitioned or backfill_id or is_rebuild) or not isinstance(spec, ComputedSpec):
        return None
    if not can_build_aside(lake):
        return None
    key = backfill_id or context.run.run_id
    record = _of(context, lake, pipeline, key)
    if spec.partitions is None and not is_rebuild:
        return None if record is None or record.is_open else _redone(record, spec)
    together = _together(context, lake, pipeline)
    chosen = _chosen(context, together.specs(lake, alone=False))
    if record is None and (spec.table not in chosen or (backfill_id is None and len(chosen) < 2)):
        return None
    # The tables are written aside, and published on top of what micro-batches commit meanwhile: these need not wait.
    leave_pool(context)
    with _building[key]:
        while True:
            record = _of(context, lake, pipeline, key)
            if record is not None and not record.is_open:
                return _redone(record, spec)
            # This process builds under the lock: a record that it is at work on, and does not build, was interrupted.
            if record is not None and record.is_running and record.process != owner():
                context.log.info(f"the backfill {record.id} is built by another step; this one waits for it")
                time.sleep(_WAIT)
                continue
            planned = plan_tables(lake, together, chosen, past=Records(lake).all()) if record is None else None
            if planned is not None:
                if not planned.tables:
                    return None
                first = TableId.parse(planned.tables[0].table)
                yield plan_event(context, first, planned)
            if record is not None:
                together = named(lake.config, names_of(record.pipeline))
            if backfill := _begun(context, lake, pipeline, together, record, planned, key):
                yield from _completed(context, lake, together, backfill)


def discard_cancelled(context: dg.SensorEvaluationContext, lake: Lake, pipeline: Pipeline) -> None:
    """Discard what backfills have built that were cancelled in Dagster; an error is logged."""
    try:
        for record in Records(lake).all():
            names = names_of(record.pipeline)
            is_left = record.is_open and not record.is_running and pipeline.name in names
            if is_left and record.run and was_cancelled(context.instance, record.run):
                Backfill.load(lake, named(lake.config, names), record.id).discard()
                context.log.info(f"the backfill {record.id} ({record.request}) was cancelled, and is discarded")
    except LakeError as error:  # of one backfill: nothing else may wait for it
        context.log.warning(f"a cancelled backfill is not discarded for now: {error}")


def _of(context: dg.AssetExecutionContext, lake: Lake, pipeline: Pipeline, key: str) -> BackfillRecord | None:
    """Return the record of a run's backfill, or the open one that it repeats; None if it has to begin."""
    records = [r for r in Records(lake).all() if r.run and pipeline.name in names_of(r.pipeline)]
    begun = [r for r in records if r.run == key and r.state != "discarded"]
    if not begun and (still_open := [r for r in records if r.is_open]):
        repeated = {*_repeated(context)}
        begun = [r for r in still_open if r.run in repeated]
    return settled(lake, begun[-1]) if begun else None


def _repeated(context: dg.AssetExecutionContext) -> Iterator[str | None]:
    """Yield what a run repeats, runs and backfills: one that repeats a run of an ended backfill is itself in none."""
    run = context.run
    yield from (run.tags.get(tag) for tag in (PARENT_BACKFILL_ID_TAG, ROOT_BACKFILL_ID_TAG))
    for earlier in {run.get_parent_run_id(), run.get_root_run_id()} - {None}:
        yield earlier
        if earlier and (earlier_run := context.instance.get_run_by_id(earlier)):
            yield earlier_run.tags.get(BACKFILL_ID_TAG)


def _together(context: dg.AssetExecutionContext, lake: Lake, pipeline: Pipeline) -> Pipeline | PipelineGroup:
    """Return the pipelines with tables in a run, or in its backfill."""
    if backfill := context.run.tags.get(BACKFILL_ID_TAG):
        selected = {*partitions_of_backfill(context.instance, backfill)}
    else:
        selected = {*context.job_def.asset_layer.selected_asset_keys}
    others = (p for p in loaded(lake.config) if p.name != pipeline.name)
    return grouped(
        [pipeline, *(p for p in others if any(asset_key(s.table) in selected for s in p.specs(lake, alone=False)))]
    )


def _chosen(context: dg.AssetExecutionContext, declared: Sequence[Spec]) -> dict[TableId, list[str] | None]:
    """Return the tables of a run, or of its backfill, with the chosen partitions.

    Tables without partitions have none, and follow the changes. In a rebuild, all of each table is chosen (None).
    """
    computed = {asset_key(s.table): s for s in declared if isinstance(s, ComputedSpec)}
    if backfill := context.run.tags.get(BACKFILL_ID_TAG):
        selected = partitions_of_backfill(context.instance, backfill)
    else:
        # Of a job that is launched as a whole, the run itself has no selection.
        run = context.job_def.asset_layer.selected_asset_keys
        keys = list(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else []
        selected = {k: keys if s.partitions else [] for k, s in computed.items() if k in run}
    is_rebuild = REBUILD_TAG in context.run.tags
    return {computed[k].table: None if is_rebuild else keys for k, keys in selected.items() if k in computed}


def _begun(
    context: dg.AssetExecutionContext,
    lake: Lake,
    pipeline: Pipeline,
    together: Pipeline | PipelineGroup,
    record: BackfillRecord | None,
    planned: BackfillPlan | None,
    key: str,
) -> Backfill | None:
    """Begin a planned backfill, or continue an open one; None if another run of it was faster."""
    try:
        if planned is not None:
            backfill = Backfill.begin(lake, together, planned, run=key)
        else:
            assert record is not None
            backfill = Backfill.load(lake, together, record.id, run=key)
    except BackfillError:
        now = _of(context, lake, pipeline, key)
        if now is None or (record is not None and now.is_open and not now.is_running):
            raise
        return None
    context.instance.add_run_tags(context.run.run_id, {BACKFILL_TAG: backfill.record.id})
    return backfill


def _completed(
    context: dg.AssetExecutionContext, lake: Lake, pipeline: Pipeline | PipelineGroup, backfill: Backfill
) -> Generator[Any, None, None]:
    """Build a backfill and publish it."""
    specs = {str(s.table): s for s in pipeline.specs(lake, alone=False)}
    advice = (
        f"nothing of the backfill {backfill.record.id} is published: re-execute it from failure in Dagster, or "
        f"`lake-assets resume {backfill.record.id}`, to continue it; `lake-assets discard {backfill.record.id}` drops "
        "it"
    )
    try:
        backfill.build(lambda record, at: context.log.info(progress(record, at)))
        backfill.publish()
    except DagsterExecutionInterruptedError:
        context.log.warning(f"interrupted; {advice}")
        raise
    except AuditFailedError as error:
        at_work = [t.table for t in backfill.record.tables if not t.is_done]
        if at_work:
            yield from (evaluation(specs[at_work[0]], finding) for finding in error.findings)
        raise BackfillError(f"{error}; {advice}") from error
    made = backfill.record
    context.log.info(
        f"the backfill {made.id} is published {made.way or '(no row differed)'}; `lake-assets undo {made.id}` undoes it"
    )
    yield from comparisons(lake, made, list(specs.values()))


def _redone(record: BackfillRecord, spec: Spec) -> Redone | None:
    """Return what a finished backfill did to a table; None if the table is not one of its tables."""
    table = next((t for t in record.tables if t.table == str(spec.table)), None)
    if table is None:
        return None
    if record.state != "published":
        raise BackfillError(f"the backfill {record.id} was {record.state}, so it cannot go on: launch a new one")
    others = len(record.tables) - 1
    with_others = f" with {plural(others, 'other table')}" if others else ""
    outcome = Outcome(
        table.table, "absorbed", (), table.inserted, table.updated, table.deleted, "backfill",
        f"{table.why}; published{with_others} as {record.id}", table.seconds, table.after,
    )  # fmt: skip
    return Redone(outcome, table.before, record.has_news or table.redo == "everything")

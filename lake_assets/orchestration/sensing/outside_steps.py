"""A sensor that shows in Dagster what commands and other programs have done to a pipeline's tables.

Each step leaves a record in the journal of the lake. The sensor reports those that no run of this instance has
executed as materializations, with their own times. Its cursor is the end of the last reported step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from lake_assets.facade import Lake
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import LakeConfig, TableId, thresholds
from lake_assets.lake.counts import plural
from lake_assets.orchestration import asset_metadata
from lake_assets.orchestration._compat import report_again
from lake_assets.orchestration.asset_names import asset_key, valid_name
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.column_texts import column_texts
from lake_assets.pipeline.table_graph import Spec


def outside_steps_sensor(pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig) -> dg.SensorDefinition:
    """Build the sensor of a pipeline; see the module."""
    tables = {str(s.table): s for s in specs}

    @dg.sensor(
        name=f"{valid_name(pipeline.name)}_outside_steps_sensor",
        minimum_interval_seconds=thresholds.OUTSIDE_STEPS_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Reports what `lake-assets run` and other programs have done to the tables of {pipeline.name} as "
            "materializations. Requests no runs."
        ),
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        lake = Lake(config)
        try:
            if not lake.is_there:
                return dg.SkipReason(f"there is no lake at {config.home} yet")
            step_journal.try_flush(lake)
            count = report(context, lake, pipeline, tables)
        finally:
            if "catalog" in vars(lake):
                lake.catalog.close()
        return dg.SkipReason(f"reported {plural(count, 'step')} of other programs" if count else "no steps of others")

    return sensor


def report(context: dg.SensorEvaluationContext, lake: Lake, pipeline: Pipeline, tables: dict[str, Spec]) -> int:
    """Report the steps since the cursor that no run of the instance has executed; return their number."""
    since = float(context.cursor) if context.cursor else 0.0
    # A step that was still at work when the last one was reported began before that one ended.
    began = max(since, datetime.now(UTC).timestamp() - timedelta(days=thresholds.JOURNAL_DAYS).total_seconds())
    first = datetime.fromtimestamp(began, UTC) - timedelta(seconds=thresholds.OUTSIDE_STEP_SECONDS)
    found = sorted(
        (r for r in step_journal.read(lake, first) if r.ended_at > since and r.table in tables),
        key=lambda r: r.ended_at,
    )
    outside = [r for r in found if r.status == "absorbed" and not _is_own(context.instance, r)]
    last, declared = {r.table: r for r in outside}, {s.table: s for s in tables.values()}
    for record in outside[-thresholds.OUTSIDE_STEPS_A_TICK :]:
        spec, is_last = tables[record.table], last[record.table] is record
        _report(context.instance, spec, record, _of_table(lake, pipeline, spec, declared) if is_last else {})
    if found:
        context.update_cursor(repr(found[-1].ended_at))
    return len(outside)


def _is_own(instance: dg.DagsterInstance, record: StepRecord) -> bool:
    """Whether a run of this instance has executed a step: another instance may work on the same lake."""
    kind, _, run = record.run.partition(" ")
    return kind == "dagster" and instance.has_run(run)


def _of_table(lake: Lake, pipeline: Pipeline, spec: Spec, declared: Mapping[TableId, Spec]) -> dict[str, Any]:
    """Return what describes the table now: it belongs to the last step."""
    texts = column_texts(lake, spec.table, declared, pipeline.config.external_tables)
    table = asset_metadata.of_table(lake, spec.table, texts)
    if lineage := asset_metadata.column_lineage(lake, spec):
        table["dagster/column_lineage"] = lineage
        table["column_sources"] = asset_metadata.column_sources_table(lineage)
    return table


def _report(instance: dg.DagsterInstance, spec: Spec, record: StepRecord, table: Mapping[str, Any]) -> None:
    """Report one step; `table` describes the table that it has left."""
    key = asset_key(spec.table)
    latest = instance.get_latest_materialization_event(key)
    if latest is not None and latest.timestamp >= record.ended_at:
        # It was reported before the cursor was stored; or a run has materialized the table since, and stays the last.
        return
    snapshot = {"snapshot": str(record.snapshot)} if record.snapshot is not None else {}
    metadata = {**asset_metadata.of_record(record, spec), **table, **snapshot}
    report_again(instance, dg.AssetMaterialization(key, metadata=metadata), record.ended_at)

"""Upkeep in Dagster: a check for each table, which does what is due and reports the table's health, and its sensor.

The check of a table takes the table's pool, so that it and the steps of the table take turns.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig, TableId
from lake_assets.lake.counts import plural
from lake_assets.orchestration.asset_names import PIPELINE_TAG, asset_key, pool, valid_name
from lake_assets.orchestration.runs.resources import PYSPARK
from lake_assets.orchestration.runs.run_history import ACTIVE
from lake_assets.orchestration.runs.step_failures import fail, open_lake
from lake_assets.orchestration.runs.zombie_runs import end_if_dead
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.config.upkeep_settings import UPKEEP_CHECK
from lake_assets.pipeline.table_graph import Spec
from lake_assets.upkeep.attend import TableUpkeep, attend, due_tables, look
from lake_assets.upkeep.attended import Attended
from lake_assets.upkeep.upkept_tables import policies

# A check begins no action after so many seconds: steps that wait for the table's pool get their turn.
_SECONDS = 10.0
_INTERVAL_SECONDS = 60


def upkeep_definitions(
    pipeline: Pipeline,
    specs: Sequence[Spec],
    config: LakeConfig,
    executor: dg.ExecutorDefinition,
) -> dg.Definitions:
    """Build the checks of a pipeline's tables, the job that runs them, and the sensor that requests it."""
    if not specs:
        return dg.Definitions()
    keys = {s.table: dg.AssetCheckKey(asset_key(s.table), UPKEEP_CHECK) for s in specs}
    job = dg.define_asset_job(
        f"{valid_name(pipeline.name)}_upkeep",
        selection=dg.AssetSelection.checks(*keys.values()),
        description=f"Combine small files, remove deleted rows and expire snapshots of pipeline {pipeline.name}, as "
        "far as it is due.",
        tags={PIPELINE_TAG: pipeline.name},
        executor_def=executor,
    )
    return dg.Definitions(
        asset_checks=[_check(pipeline, s, specs, config) for s in specs],
        jobs=[job],
        sensors=[_sensor(pipeline, specs, config, job)],
    )


def _check(pipeline: Pipeline, spec: Spec, specs: Sequence[Spec], config: LakeConfig) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset_key(spec.table),
        name=UPKEEP_CHECK,
        description="Combines small files, removes deleted rows and expires snapshots, if that is due, and reports "
        "how well the table's files are kept.",
        required_resource_keys={PYSPARK},
        pool=pool(spec.table),
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with open_lake(context, config) as lake:
            try:
                return _attended(lake, pipeline, spec, specs)
            except LakeError as error:
                fail(context, error)

    return check


def _attended(lake: Lake, pipeline: Pipeline, spec: Spec, specs: Sequence[Spec]) -> dg.AssetCheckResult:
    """Do what is due for a table, and for the tables beside it."""
    wanted = policies(pipeline, lake)
    mine = [t for t in wanted if _responsible(t, specs) == spec.table]
    done = attend(lake, {t: wanted[t] for t in mine}, beside=wanted.keys(), seconds=_SECONDS)
    if spec.table not in wanted:
        exists = lake.exists(spec.table)
        why = "it belongs to another pipeline, or to another program" if exists else "the table does not exist yet"
        return dg.AssetCheckResult(passed=True, description=why)
    return _result(look(lake, spec.table, wanted[spec.table]), done)


def _responsible(table: TableId, specs: Sequence[Spec]) -> TableId:
    """Return the table whose check looks after a table: itself; or of one without an asset, the one beside which it is.

    The ledger of landed files has the name of its raw table and an ending.
    """
    tables = [s.table for s in specs]
    if table in tables:
        return table
    beside = [t for t in tables if t.namespace == table.namespace and table.name.startswith(f"{t.name}_")]
    return max(beside, key=lambda t: len(t.name), default=tables[0])


def _result(table: TableUpkeep, attended: Sequence[Attended]) -> dg.AssetCheckResult:
    h = table.health
    failed = [a for a in attended if a.done is not None and a.done.error]
    left = [*failed, *(a for a in attended if a.done is None)]
    lines = [a.text for a in attended]
    metadata: dict[str, Any] = {
        "data_files": h.files,
        "small_files": h.small_files,
        "bytes": h.bytes,
        "deleted_rows": h.deleted_rows,
        "delete_files": h.delete_files,
        "manifests": h.manifests,
        "snapshots": h.snapshots,
        "metadata_bytes": h.metadata_bytes,
        "seconds": round(sum(a.done.seconds for a in attended if a.done), 3),
        **({"actions": dg.MetadataValue.md("\n".join(f"- {line}" for line in lines))} if lines else {}),
    }
    if told := [c.text for c in table.claims if c.is_warning and table.policy.is_on]:
        metadata["consumers"] = dg.MetadataValue.md("\n".join(f"- {text}" for text in told))
    due = [*(f"{a.kind}: {a.reason}" for a in table.due), *(a.text for a in left)]
    return dg.AssetCheckResult(
        passed=not due,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(due) if due else None if table.policy.is_on else "upkeep is declared off",
        metadata=metadata,
    )


def _sensor(pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig, job: Any) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"{valid_name(pipeline.name)}_upkeep_sensor",
        job=job,
        minimum_interval_seconds=_INTERVAL_SECONDS,
        # On from the start: it requests nothing for tables that no pipeline has filled.
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Requests upkeep of the tables of {pipeline.name} that are due for it. Reads metadata only.",
    )
    def sensor(context):  # type: ignore[no-untyped-def]
        return upkeep_tick(context, pipeline, specs, config, f"{valid_name(pipeline.name)}_upkeep")

    return sensor


def upkeep_tick(
    context: dg.SensorEvaluationContext, pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig, job: str
) -> dg.RunRequest | dg.SkipReason:
    """Request a run over the checks of the tables that are due, or skip.

    Raises:
        CatalogUnavailableError: the lake cannot be read. The next tick tries again.
    """
    for run in context.instance.get_runs(dg.RunsFilter(job_name=job, statuses=ACTIVE)):
        if dead := end_if_dead(context.instance, run):
            context.log.warning(dead)
        else:
            return dg.SkipReason(f"run {run.run_id[:8]} is {run.status.value.lower()}")
    lake = Lake(config)
    try:
        wanted = policies(pipeline, lake)
        due, reasons = due_tables(lake, wanted)
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()
    tables = list(dict.fromkeys(_responsible(t, specs) for t in due))
    if not tables:
        return dg.SkipReason("; ".join(reasons) or f"nothing is due for {plural(len(wanted), 'table')}")
    return dg.RunRequest(
        asset_check_keys=[dg.AssetCheckKey(asset_key(t), UPKEEP_CHECK) for t in tables],
        tags={"lake_assets/tables": str(len(tables))},
    )

"""Assets: one a table, whose step catches up with everything that is pending for it."""

import contextlib
import functools
from collections.abc import Generator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import dagster as dg
from dagster_shared.check import CheckError

from lake_assets.errors import LakeError, PipelineError
from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig
from lake_assets.merge.outcome import Outcome
from lake_assets.merge.specs import RawSpec
from lake_assets.models.heads import Heads
from lake_assets.orchestration import metadata
from lake_assets.orchestration.lineage import column_lineage
from lake_assets.orchestration.names import (
    PIPELINE_TAG,
    asset_key,
    has_patterns,
    new_tables_key,
    op_name,
    pool,
    valid_name,
)
from lake_assets.orchestration.resources import PYSPARK, session_of
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.pipeline import Spec, absorb, sources

RETRIES = 3
SECONDS_BETWEEN = 5


def table_asset(spec: Spec, config: LakeConfig) -> dg.AssetsDefinition:
    """The asset of one table. Materializing it absorbs what its sources have and it has not, in one step."""
    shown = spec.shown
    foreign = map(dg.AssetKey.from_user_string, shown.depends_on)
    asset = dg.AssetSpec(
        asset_key(spec.table),
        deps=[*(asset_key(s) for s in sources(spec)), *foreign],
        description=metadata.describe(spec),
        metadata={"dagster/table_name": f"{config.name}.{spec.table}", PIPELINE_TAG: spec.pipeline},
        # Landing appends through PyIceberg: it needs no Spark.
        kinds={"iceberg", *([] if isinstance(spec, RawSpec) else ["spark"]), *shown.kinds},
        tags={**shown.tags, "lake_assets/layer": valid_name(spec.table.namespace[0])},
        group_name=shown.group or valid_name(spec.pipeline),
        owners=list(shown.owners),
        freshness_policy=freshness_policy(spec),
    )

    @dg.multi_asset(
        name=op_name(*spec.table.parts),
        specs=[asset],
        pool=pool(spec.table),
        required_resource_keys={PYSPARK},
    )
    def step(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        with opened(context, config) as lake:
            try:
                outcome = absorb(lake, spec, heads_of(context.run.run_id))
            except LakeError as error:
                fail(context, error)
            _log(context, outcome)
            return result(lake, spec, outcome)

    return step


def freshness_policy(spec: Spec) -> dg.FreshnessPolicy | None:
    """The declared freshness as Dagster's.

    Raises:
        PipelineError: it is none to Dagster.
    """
    declared = spec.shown.freshness
    if declared is None:
        return None
    fail, warn, within = (
        None if s is None else timedelta(seconds=s) for s in (declared.fail, declared.warn, declared.within)
    )
    try:
        if declared.cron is not None and within is not None:
            return dg.FreshnessPolicy.cron(declared.cron, within, declared.timezone)
        assert fail is not None
        return dg.FreshnessPolicy.time_window(fail, warn)
    except (dg.DagsterError, CheckError) as e:
        raise PipelineError(f"pipeline {spec.pipeline!r}: {spec.table}: `freshness`: {e}") from e


@functools.lru_cache(maxsize=16)
def heads_of(run_id: str) -> Heads:
    """What the models of a run have read so far, for those of its steps that share a process."""
    return Heads()


def _log(context: dg.AssetExecutionContext, outcome: Outcome) -> None:
    context.log.info(summary(outcome))
    if warning := outcome.details.get("warning"):
        context.log.warning(str(warning))


def new_tables_asset(pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig) -> dg.AssetsDefinition:
    """The asset for tables that a pattern matches and a stream shows only after the code location was loaded.

    Dagster learns of new assets when definitions are loaded. Without this step the data of a new table would wait in
    raw until somebody reloads. It absorbs them and reports each as a materialization of the asset it will be.
    """
    loaded = [str(s.table) for s in specs]
    asset = dg.AssetSpec(
        new_tables_key(pipeline),
        deps=[asset_key(s.table) for s in specs if isinstance(s, RawSpec)],
        description=(
            "Tables that the streams have shown since this code location was loaded. They are kept up to date here, "
            "and become assets of their own when the code location is reloaded."
        ),
        metadata={PIPELINE_TAG: pipeline.name},
        kinds={"iceberg", "spark", *pipeline.config.kinds},
        tags=pipeline.config.tags,
        group_name=pipeline.config.group or valid_name(pipeline.name),
        owners=pipeline.config.owners,
    )

    @dg.multi_asset(
        name=op_name(pipeline.name, "new_tables"),
        specs=[asset],
        pool=f"lake_assets/{pipeline.name}/new_tables",
        required_resource_keys={PYSPARK},
        config_schema={
            "known": dg.Field(
                [str],
                is_required=False,
                description="tables that have an asset; default: those of the definitions that the run has loaded",
            )
        },
    )
    def step(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        # A run loads the definitions afresh and may know more tables than the code server that planned it.
        known: list[str] = context.op_execution_context.op_config.get("known", loaded)
        with opened(context, config) as lake:
            new = {str(s.table): s for s in pipeline.specs(lake, alone=False) if str(s.table) not in known}
            outcomes = pipeline.run(lake, select=new) if new else []
            for outcome in outcomes:
                _log(context, outcome)
                if outcome.status == "absorbed":
                    described = {**metadata.of_outcome(outcome), **metadata.of_table(lake, new[outcome.table].table)}
                    context.log_event(dg.AssetMaterialization(asset_key(new[outcome.table].table), metadata=described))
            failed = [o for o in outcomes if o.status == "failed"]
            if failed:
                errors = "; ".join(f"{o.table}: {o.error}" for o in failed)
                raise dg.Failure(f"{len(failed)} of {len(outcomes)} new tables failed: {errors}", allow_retries=False)
        return dg.MaterializeResult(metadata={"tables": dg.MetadataValue.json(sorted(new))})

    return step


def pipeline_assets(pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig) -> list[dg.AssetsDefinition]:
    """All assets of a pipeline."""
    assets = [table_asset(spec, config) for spec in specs]
    return [*assets, new_tables_asset(pipeline, specs, config)] if has_patterns(pipeline) else assets


@contextlib.contextmanager
def opened(context: dg.AssetExecutionContext, config: LakeConfig) -> Generator[Lake]:
    """The lake for one step, with the run's Spark session should the step need one."""
    resource: Any = getattr(context.resources, PYSPARK)
    lake = Lake(config, session=lambda: session_of(resource, config))
    try:
        yield lake
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()


def result(lake: Lake, spec: Spec, outcome: Outcome) -> dg.MaterializeResult[Any]:
    """What the step did and what the table is now."""
    table = metadata.of_table(lake, spec.table)
    if found := column_lineage(lake, spec):
        table["dagster/column_lineage"] = found
    # The snapshot is the data's version: a step that changed nothing does not make what lies below look outdated.
    version = dg.DataVersion(table["snapshot"]) if "snapshot" in table else None
    return dg.MaterializeResult(metadata={**metadata.of_outcome(outcome), **table}, data_version=version)


def summary(outcome: Outcome) -> str:
    """One line for the run's log."""
    if outcome.status == "failed":
        return f"{outcome.table}: failed: {outcome.error}"
    if outcome.status != "absorbed":
        return f"{outcome.table}: {'nothing new' if outcome.status == 'nothing' else 'its source is not there yet'}"
    return (
        f"{outcome.table}: {outcome.inserted} inserted, {outcome.updated} updated, {outcome.deleted} deleted in "
        f"{outcome.seconds:.2f} s ({outcome.strategy}: {outcome.why})"
    )


def fail(context: dg.AssetExecutionContext, error: LakeError) -> NoReturn:
    """End the step: a permanent error at once, a transient one after some tries.

    Raises:
        dagster.RetryRequested: it may pass.
        dagster.Failure: it will not, or did not.
    """
    if not error.permanent and context.retry_number < RETRIES:
        raise dg.RetryRequested(
            max_retries=RETRIES, seconds_to_wait=SECONDS_BETWEEN * 2**context.retry_number
        ) from error
    facts: Mapping[str, Any] = {"error": type(error).__name__, "permanent": error.permanent}
    raise dg.Failure(f"{type(error).__name__}: {error}", metadata=facts, allow_retries=False) from error

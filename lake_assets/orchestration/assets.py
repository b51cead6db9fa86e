"""Assets: one per table, whose step absorbs everything that is pending for it."""

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg
from dagster_shared.check import CheckError

from lake_assets.errors import AuditFailedError, LakeError, PipelineError
from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig, TableId
from lake_assets.orchestration import asset_metadata, dagster_partitions
from lake_assets.orchestration.asset_checks import check_results, check_specs, evaluation
from lake_assets.orchestration.asset_names import (
    PIPELINE_TAG,
    REBUILD_TAG,
    asset_key,
    has_patterns,
    new_tables_key,
    op_name,
    pool,
    valid_name,
)
from lake_assets.orchestration.column_lineage import column_lineage
from lake_assets.orchestration.runs.resources import PYSPARK
from lake_assets.orchestration.runs.step_context import fail, opened, retry
from lake_assets.pipeline import Outcome, Pipeline, SnapshotPins, with_context
from lake_assets.pipeline.published_audits import audit
from lake_assets.pipeline.recompute import recompute
from lake_assets.pipeline.step_retries import absorb
from lake_assets.pipeline.table_graph import ComputedSpec, Spec, after
from lake_assets.pipeline.table_rebuild import rebuild
from lake_assets.pipeline.table_steps import step_of


def table_asset(
    spec: Spec, config: LakeConfig, upstream: Sequence[TableId], declared: Mapping[TableId, Spec] | None = None
) -> dg.AssetsDefinition:
    """Build the asset of one table. Materializing it absorbs the pending changes of its sources in one step.

    The same step reports its audits as checks. Executed by themselves, they check the published table.

    Args:
        spec: the table.
        config: the lake's configuration.
        upstream: the tables that run before it.
        declared: the pipeline's tables.
    """
    checks, asset = check_specs(spec), _asset_spec(spec, config, upstream, declared or {})

    @dg.multi_asset(
        name=op_name(*spec.table.parts),
        specs=[asset],
        check_specs=checks,
        # If nothing was written, audits are neither evaluated nor reported.
        can_subset=bool(checks),
        pool=pool(spec.table),
        required_resource_keys={PYSPARK},
        backfill_policy=dagster_partitions.BACKFILL if asset.partitions_def else None,
    )
    # Dagster evaluates this annotation four times per asset: a union of classes takes longer than everything else.
    def step(context: dg.AssetExecutionContext) -> Any:
        with opened(context, config) as lake:
            try:
                if isinstance(spec, ComputedSpec) and not context.selected_asset_keys:
                    asked = frozenset(k.name for k in context.selected_asset_check_keys)
                    yield from check_results(spec, audit(lake, spec, asked))
                    return
                again = REBUILD_TAG in context.run.tags and not step_of(spec).why_not_rebuilt
                with with_context(context):
                    outcome = (rebuild if again else absorb)(lake, spec, heads_of(context.run.run_id))
                chosen = dagster_partitions.chosen(context, spec)
                if chosen and isinstance(spec, ComputedSpec):
                    _log(context, outcome)
                    outcome = _both(outcome, recompute(lake, spec, chosen))
                marks = dagster_partitions.mark(context, lake, spec, outcome, chosen)
                _log(context, outcome)
                # This reads the lake, which may fail too: a retry finds the table up to date.
                done = result(lake, spec, outcome, marks, is_partitioned=bool(chosen))
            except AuditFailedError as error:
                yield from check_results(spec, error.findings)
                fail(context, error)
            except LakeError as error:
                fail(context, error)
            yield done
            yield from check_results(spec, outcome.audits)

    return dagster_partitions.behind_gate(step) if asset.partitions_def else step


def _asset_spec(spec: Spec, config: LakeConfig, above: Sequence[TableId], made: Mapping[TableId, Spec]) -> dg.AssetSpec:
    """What Dagster shows of a table, and what it depends on; see `table_asset`."""
    shown = spec.shown
    foreign = map(dg.AssetKey.from_user_string, shown.depends_on)
    return dg.AssetSpec(
        asset_key(spec.table),
        deps=[
            *(
                dg.AssetDep(asset_key(t), partition_mapping=dagster_partitions.mapping(spec, made.get(t)))
                for t in above
            ),
            *foreign,
        ],
        partitions_def=dagster_partitions.definition(spec),
        description=asset_metadata.describe(spec),
        metadata={"dagster/table_name": f"{config.name}.{spec.table}", PIPELINE_TAG: spec.pipeline},
        kinds={"iceberg", *step_of(spec).kinds, *shown.kinds},
        tags={**shown.tags, "lake_assets/layer": valid_name(spec.table.namespace[0])},
        group_name=shown.group or valid_name(spec.pipeline),
        owners=list(shown.owners),
        freshness_policy=freshness_policy(spec),
    )


def _both(absorbed: Outcome, recomputed: Outcome) -> Outcome:
    """Combine the outcomes of a step that absorbed pending changes, then recomputed partitions."""
    return replace(
        recomputed,
        windows=absorbed.windows,
        inserted=absorbed.inserted + recomputed.inserted,
        updated=absorbed.updated + recomputed.updated,
        deleted=absorbed.deleted + recomputed.deleted,
        seconds=absorbed.seconds + recomputed.seconds,
        details=absorbed.details,
        audits=recomputed.audits or absorbed.audits,
    )


def freshness_policy(spec: Spec) -> dg.FreshnessPolicy | None:
    """Convert the declared freshness to Dagster's policy.

    Raises:
        PipelineError: Dagster refuses it.
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


def heads_of(run_id: str) -> SnapshotPins:
    """Return the snapshots that the models of a run have read so far, shared by its steps in this process."""
    # Without the lock, concurrent threads would each create one.
    with _asking:
        return _heads_of(run_id)


_asking = threading.Lock()


@functools.lru_cache(maxsize=16)
def _heads_of(_run_id: str) -> SnapshotPins:
    return SnapshotPins()


def _log(context: dg.AssetExecutionContext, outcome: Outcome) -> None:
    context.log.info(summary(outcome))
    if outcome.rejected:
        context.log.warning(
            f"{outcome.table}: {outcome.rejected:,} records were rejected and are in no staging or final table: see "
            "`lake-assets rejected list`"
        )
    if warning := outcome.details.get("warning"):
        context.log.warning(str(warning))
    for found in outcome.audits:
        if not found.passed:
            context.log.warning(f"{outcome.table}: audit {found}")


def new_tables_asset(pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig) -> dg.AssetsDefinition:
    """Build the asset for tables that match a pattern but appeared after the code location was loaded.

    Dagster learns of new assets when definitions are loaded. Without this step, data of a new table would wait in raw
    until somebody reloads. It absorbs such tables and reports each as a materialization of its future asset.
    """
    loaded = [str(s.table) for s in specs]
    asset = dg.AssetSpec(
        new_tables_key(pipeline),
        deps=[asset_key(s.table) for s in specs if step_of(s).brings_tables],
        description=(
            "Tables that appeared in the streams since this code location was loaded. They are kept up to date here, "
            "and become separate assets when the code location is reloaded."
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
                description="tables that have an asset; default: the tables of the definitions that the run loaded",
            )
        },
    )
    def step(context: dg.AssetExecutionContext) -> Iterator[Any]:
        # A run reloads the definitions and may know more tables than the code server that planned it.
        known: list[str] = context.op_execution_context.op_config.get("known", loaded)
        with opened(context, config) as lake:
            try:
                specs = pipeline.specs(lake, alone=False)
            except LakeError as error:
                fail(context, error)
            new = {str(s.table): s for s in specs if str(s.table) not in known}
            outcomes = pipeline.run(lake, select=new) if new else []
            for outcome in outcomes:
                _log(context, outcome)
                if outcome.status == "absorbed":
                    described = {
                        **asset_metadata.of_outcome(outcome, new[outcome.table]),
                        **asset_metadata.of_table(lake, new[outcome.table].table),
                    }
                    yield dg.AssetMaterialization(asset_key(new[outcome.table].table), metadata=described)
                for found in outcome.audits:
                    yield evaluation(new[outcome.table], found)
            failed = [o for o in outcomes if o.status == "failed"]
            if failed:
                for outcome in failed:
                    retry(context, outcome.exception)
                errors = "; ".join(f"{o.table}: {o.error}" for o in failed)
                raise dg.Failure(f"{len(failed)} of {len(outcomes)} new tables failed: {errors}", allow_retries=False)
        yield dg.MaterializeResult(metadata={"tables": dg.MetadataValue.json(sorted(new))})

    return step


def pipeline_assets(pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig) -> list[dg.AssetsDefinition]:
    """Build all assets of a pipeline."""
    upstream, declared = after(specs), {s.table: s for s in specs}
    assets = [table_asset(spec, config, upstream[spec.table], declared) for spec in specs]
    return [*assets, new_tables_asset(pipeline, specs, config)] if has_patterns(pipeline) else assets


def result(
    lake: Lake, spec: Spec, outcome: Outcome, more: Mapping[str, Any] | None = None, *, is_partitioned: bool = False
) -> dg.MaterializeResult[Any]:
    """Describe the step and the current table; in partition runs, figures of the whole step have another name."""
    table = asset_metadata.of_table(lake, spec.table)
    if found := column_lineage(lake, spec):
        table["dagster/column_lineage"] = found
    # The snapshot is the data version: a step without changes does not make downstream assets stale.
    version = dg.DataVersion(table["snapshot"]) if "snapshot" in table else None
    described = {**asset_metadata.of_outcome(outcome, spec), **table, **(more or {})}
    if is_partitioned:
        described = asset_metadata.for_each_partition(described)
    return dg.MaterializeResult(metadata=described, data_version=version)


def summary(outcome: Outcome) -> str:
    """Summarize an outcome in one line for the run's log."""
    if outcome.status == "failed":
        return f"{outcome.table}: failed: {outcome.error}"
    if outcome.status != "absorbed":
        if outcome.status == "nothing":
            return f"{outcome.table}: nothing new"
        return f"{outcome.table}: waiting: {outcome.why or 'its source does not exist yet'}"
    return (
        f"{outcome.table}: {outcome.inserted} inserted, {outcome.updated} updated, {outcome.deleted} deleted in "
        f"{outcome.seconds:.2f} s ({outcome.strategy}: {outcome.why})"
    )

"""Assets: one per table, whose step absorbs everything that is pending for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from lake_assets.errors import AuditFailedError, LakeError
from lake_assets.jobs.job_spec import with_context
from lake_assets.journal import step_journal
from lake_assets.lake import LakeConfig, TableId
from lake_assets.orchestration import asset_metadata, dagster_partitions, freshness, partition_marks
from lake_assets.orchestration.asset_checks import check_results, check_specs, evaluation
from lake_assets.orchestration.asset_names import (
    PIPELINE_TAG,
    REBUILD_TAG,
    asset_key,
    group_of,
    layer_of,
    new_tables_key,
    op_name,
    pool,
    valid_name,
)
from lake_assets.orchestration.foreign_tables import foreign_reads
from lake_assets.orchestration.partition_backfill import redo_together
from lake_assets.orchestration.runs.lake_io_manager import PARTITION_EXPR
from lake_assets.orchestration.runs.resources import PYSPARK
from lake_assets.orchestration.runs.step_failures import fail, open_lake, retry
from lake_assets.orchestration.sensing.pending_scan import pending_fingerprint
from lake_assets.orchestration.step_results import log_outcome, result, run_pins, step_metadata
from lake_assets.pipeline import Outcome, Pipeline
from lake_assets.pipeline.published_audits import audit
from lake_assets.pipeline.redo import redo, redo_partitions
from lake_assets.pipeline.step_retries import absorb
from lake_assets.pipeline.table_graph import ComputedSpec, JobSpec, Spec, after
from lake_assets.pipeline.table_steps import step_of


def table_asset(
    pipeline: Pipeline, spec: Spec, config: LakeConfig, upstream: Sequence[TableId], declared: Mapping[TableId, Spec]
) -> dg.AssetsDefinition:
    """Build the asset of one table. Materializing it absorbs the pending changes of its sources in one step.

    The same step reports its audits as checks. Executed by themselves, they check the published table.

    Args:
        upstream: the tables whose steps run before this one.
        declared: all tables of the pipeline by name.
    """
    checks, asset = check_specs(spec), _asset_spec(spec, config, upstream, declared)

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
    # Any: Dagster evaluates this annotation four times per asset, and evaluating a union of classes is slow.
    def step(context: dg.AssetExecutionContext) -> Any:
        with open_lake(context, config) as lake:
            try:
                if isinstance(spec, ComputedSpec | JobSpec) and not context.selected_asset_keys:
                    requested = frozenset(k.name for k in context.selected_asset_check_keys)
                    yield from check_results(spec, audit(lake, spec, requested))
                    return
                partitions = dagster_partitions.selected_partitions(context, spec)
                before = freshness.last_update(context.instance, spec)
                with with_context(context):
                    aside = yield from redo_together(context, lake, pipeline, spec)
                # What cannot be computed again absorbs what is pending.
                is_asked = aside is None and (bool(partitions) or REBUILD_TAG in context.run.tags)
                is_redone = is_asked and not step_of(spec).why_not_rebuilt(lake.find(spec.table))
                is_rebuild = is_redone and REBUILD_TAG in context.run.tags
                with with_context(context), step_journal.executed_by(f"dagster {context.run.run_id}"):
                    pins = run_pins(context.run, declared)
                    if is_rebuild:
                        outcome = redo(lake, spec, pins=pins, file=pipeline.path)
                    else:
                        outcome = absorb(lake, spec, pins, file=pipeline.path)
                since, has_news = None, outcome.status == "absorbed" or not partitions
                if aside is not None:
                    has_news = outcome.status == "absorbed" or aside.has_news
                    outcome, since = _combined(outcome, aside.outcome), aside.since
                elif partitions and is_redone and isinstance(spec, ComputedSpec):
                    log_outcome(context, outcome)
                    outcome = _combined(outcome, redo_partitions(lake, spec, partitions))
                marks = partition_marks.mark(context, lake, spec, outcome, partitions, since)
                log_outcome(context, outcome)
                # This reads the lake and may fail too. The retry then has nothing left to absorb.
                step_journal.try_flush(lake)
                metadata = {**step_metadata(lake, pipeline, spec, declared, outcome), **marks}
                reads = foreign_reads(lake, pipeline, spec, declared, outcome)
                events = [*reads, *result(spec, metadata, is_partitioned=bool(partitions))]
            except AuditFailedError as error:
                yield from check_results(spec, error.findings)
                fail(context, error, pending_fingerprint(lake, spec))
            except LakeError as error:
                fail(context, error, pending_fingerprint(lake, spec))
            yield from events
            if not has_news:
                freshness.restore(context.instance, spec, before)
            yield from check_results(spec, outcome.audits)

    return dagster_partitions.behind_gate(step) if asset.partitions_def else step


def _asset_spec(
    spec: Spec, config: LakeConfig, upstream: Sequence[TableId], declared: Mapping[TableId, Spec]
) -> dg.AssetSpec:
    """Build the asset spec of a table; see `table_asset`."""
    settings = spec.shown
    external = map(dg.AssetKey.from_user_string, settings.depends_on)
    return dg.AssetSpec(
        asset_key(spec.table),
        deps=[
            *(
                dg.AssetDep(asset_key(t), partition_mapping=dagster_partitions.mapping(spec, declared.get(t)))
                for t in upstream
            ),
            *external,
        ],
        partitions_def=dagster_partitions.definition(spec),
        description=asset_metadata.describe(spec),
        metadata={
            "dagster/table_name": f"{config.name}.{spec.table}",
            PIPELINE_TAG: spec.pipeline,
            **({PARTITION_EXPR: spec.partitions.by} if spec.partitions else {}),
            **asset_metadata.of_code(step_of(spec).code),
        },
        kinds={layer_of(spec.table), "iceberg", *step_of(spec).kinds, *settings.kinds},
        tags={**settings.tags, "lake_assets/layer": layer_of(spec.table)},
        group_name=settings.group or group_of(spec.pipeline, spec.table),
        owners=list(settings.owners),
        freshness_policy=freshness.policy(spec),
    )


def _combined(absorbed: Outcome, recomputed: Outcome) -> Outcome:
    """Combine the outcomes of a step that absorbed pending changes, and recomputed partitions."""
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


def new_tables_asset(pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig) -> dg.AssetsDefinition:
    """Build the asset for tables that match a pattern but appeared after the code location was loaded.

    Dagster learns of new assets only when definitions are loaded. Without this step, data of a new table would wait in
    raw until somebody reloads them. It absorbs such tables and reports each as a materialization of its future asset.
    """
    loaded = {str(s.table) for s in specs}
    asset = dg.AssetSpec(
        new_tables_key(pipeline),
        deps=[asset_key(s.table) for s in specs if step_of(s).brings_tables],
        description=(
            "Tables that appeared in the streams since this code location was loaded. This asset keeps them up to "
            "date. Reload the code location to make them separate assets."
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
    )
    def step(context: dg.AssetExecutionContext) -> Iterator[Any]:
        with open_lake(context, config) as lake:
            try:
                specs = pipeline.specs(lake, alone=False)
            except LakeError as error:
                fail(context, error)
            new = {str(s.table): s for s in specs if str(s.table) not in loaded}
            with step_journal.executed_by(f"dagster {context.run.run_id}"):
                outcomes = pipeline.run(lake, select=new) if new else []
            for outcome in outcomes:
                log_outcome(context, outcome)
                if outcome.status == "absorbed":
                    metadata = {
                        **asset_metadata.of_outcome(outcome, new[outcome.table]),
                        **asset_metadata.of_table(lake, new[outcome.table].table),
                    }
                    yield dg.AssetMaterialization(asset_key(new[outcome.table].table), metadata=metadata)
                for finding in outcome.audits:
                    yield evaluation(new[outcome.table], finding)
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
    assets = [table_asset(pipeline, spec, config, upstream[spec.table], declared) for spec in specs]
    return [*assets, new_tables_asset(pipeline, specs, config)] if pipeline.has_patterns else assets

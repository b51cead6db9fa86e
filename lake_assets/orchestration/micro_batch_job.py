"""The job of a pipeline that absorbs by hand what is pending in all of its tables, as a run of the sensor does.

For a job over assets, Dagster's UI asks which partitions to materialize. A micro-batch has none: which partitions it
changes is known after the commit. So this is a job of ops, one per table, which report what they did to the assets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from lake_assets.errors import AuditFailedError, LakeError
from lake_assets.facade import Lake
from lake_assets.jobs.job_spec import with_context
from lake_assets.journal import step_journal
from lake_assets.lake import LakeConfig, TableId
from lake_assets.orchestration import partition_marks
from lake_assets.orchestration.asset_checks import evaluation
from lake_assets.orchestration.asset_names import PIPELINE_TAG, asset_key, micro_batch_name, op_name, pool
from lake_assets.orchestration.foreign_tables import foreign_reads
from lake_assets.orchestration.runs.resources import PYSPARK
from lake_assets.orchestration.runs.step_failures import fail, open_lake
from lake_assets.orchestration.sensing.pending_scan import pending_fingerprint
from lake_assets.orchestration.step_results import log_outcome, run_pins, step_metadata
from lake_assets.pipeline import Outcome, Pipeline
from lake_assets.pipeline.step_retries import absorb
from lake_assets.pipeline.table_graph import Spec, after


def micro_batch_job(
    pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig, executor: dg.ExecutorDefinition
) -> dg.JobDefinition:
    """Build the job `NAME_micro_batch` of a pipeline; see the module."""
    upstream, declared = after(specs), {s.table: s for s in specs}
    ops = {s.table: _op(pipeline, s, config, upstream[s.table], declared) for s in specs}
    dependencies = {
        op.name: {
            _input(t): dg.DependencyDefinition(ops[t].name, "result") for t in upstream[table] if t in ops
        }
        for table, op in ops.items()
    }  # fmt: skip
    graph = dg.GraphDefinition(
        name=micro_batch_name(pipeline.name), node_defs=[*ops.values()], dependencies=dependencies
    )  # fmt: skip
    return graph.to_job(
        description=f"Absorb what is pending in all tables of {pipeline.name} now, with or without partitions, as the "
        "capture sensor would. Asks for no partitions: launch it as it is.",
        tags={PIPELINE_TAG: pipeline.name},
        executor_def=executor,
    )


def _input(table: TableId) -> str:
    return f"after_{op_name(*table.parts)}"


def _op(
    pipeline: Pipeline,
    spec: Spec,
    config: LakeConfig,
    upstream: Sequence[TableId],
    declared: Mapping[TableId, Spec],
) -> dg.OpDefinition:
    # Names of ops are unique in a code location, and the table's own name is that of its asset's.
    @dg.op(
        name=f"batch__{op_name(*spec.table.parts)}",
        ins={_input(t): dg.In(dg.Nothing) for t in upstream if t in declared},
        out=dg.Out(dg.Nothing),
        pool=pool(spec.table),
        required_resource_keys={PYSPARK},
    )
    def batch(context) -> Any:  # type: ignore[no-untyped-def]
        with open_lake(context, config) as lake:
            try:
                with with_context(context), step_journal.executed_by(f"dagster {context.run_id}"):
                    outcome = absorb(lake, spec, run_pins(context.run, declared), file=pipeline.path)
                marks = partition_marks.mark(context, lake, spec, outcome, None)
                log_outcome(context, outcome)
                step_journal.try_flush(lake)
                events = [*_events(lake, pipeline, spec, declared, outcome, marks)]
            except AuditFailedError as error:
                yield from (evaluation(spec, finding) for finding in error.findings)
                fail(context, error, pending_fingerprint(lake, spec))
            except LakeError as error:
                fail(context, error, pending_fingerprint(lake, spec))
        yield from events
        yield dg.Output(None)

    return batch


def _events(
    lake: Lake,
    pipeline: Pipeline,
    spec: Spec,
    declared: Mapping[TableId, Spec],
    outcome: Outcome,
    marks: Mapping[str, Any],
) -> Iterator[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    if outcome.status == "absorbed":
        yield from foreign_reads(lake, pipeline, spec, declared, outcome)
        metadata = {**step_metadata(lake, pipeline, spec, declared, outcome), **marks}
        version = {partition_marks.DATA_VERSION_TAG: metadata["snapshot"]} if "snapshot" in metadata else {}
        yield dg.AssetMaterialization(asset_key(spec.table), metadata=metadata, tags=version)
    yield from (evaluation(spec, finding) for finding in outcome.audits)

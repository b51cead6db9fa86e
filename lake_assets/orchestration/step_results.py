"""What a step hands to Dagster: the pins that it shares with its run, its log, its metadata and its result."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.orchestration import asset_metadata
from lake_assets.orchestration.asset_names import asset_key
from lake_assets.orchestration.shown_values import row_preview
from lake_assets.pipeline import Outcome, Pipeline, SnapshotPins
from lake_assets.pipeline.column_texts import column_texts
from lake_assets.pipeline.table_graph import Spec


def run_pins(run: dg.DagsterRun, declared: Mapping[TableId, Spec]) -> SnapshotPins:
    """Return the snapshots that the models of a run have read so far, shared by its steps in this process.

    Args:
        declared: the tables of the pipeline by name.
    """
    with _pins_lock:
        if run.run_id not in _pins:
            if len(_pins) >= _PINNED_RUNS:
                del _pins[next(iter(_pins))]
            chosen = run.asset_selection
            _pins[run.run_id] = SnapshotPins.for_run(
                spec for table, spec in declared.items() if not chosen or asset_key(table) in chosen
            )
        return _pins[run.run_id]


# A process that executes runs one after the other (in tests, say) forgets the oldest.
_PINNED_RUNS = 16
_pins: dict[str, SnapshotPins] = {}
_pins_lock = threading.Lock()


def log_outcome(context: dg.AssetExecutionContext | dg.OpExecutionContext, outcome: Outcome) -> None:
    """Write what a step did to the log of its run."""
    context.log.info(summary(outcome))
    if outcome.rejected:
        context.log.warning(
            f"{outcome.table}: {outcome.rejected:,} records were rejected and are in no staging or final table: see "
            "`lake-assets rejected list`"
        )
    if warning := outcome.details.get("warning"):
        context.log.warning(str(warning))
    for finding in outcome.audits:
        if not finding.passed:
            context.log.warning(f"{outcome.table}: audit {finding}")


def step_metadata(
    lake: Lake, pipeline: Pipeline, spec: Spec, declared: Mapping[TableId, Spec], outcome: Outcome
) -> dict[str, Any]:
    """Return the metadata of a step and of the table that it has left.

    Args:
        lake: the lake.
        pipeline: the pipeline of the table.
        spec: the table.
        declared: the tables of the pipeline by name.
        outcome: what the step did.
    """
    texts = column_texts(lake, spec.table, declared, pipeline.config.external_tables)
    metadata = {**asset_metadata.of_outcome(outcome, spec), **asset_metadata.of_table(lake, spec.table, texts)}
    if lineage := asset_metadata.column_lineage(lake, spec):
        metadata["dagster/column_lineage"] = lineage
        metadata["column_sources"] = asset_metadata.column_sources_table(lineage)
    return {**metadata, **row_preview(lake, spec, outcome)}


def result(
    spec: Spec, metadata: dict[str, Any], *, is_partitioned: bool
) -> Iterator[dg.AssetObservation | dg.MaterializeResult[Any]]:
    """Yield Dagster's result of a step: its metadata, and the table's current snapshot as data version.

    If the run has a partition key, the figures of the whole step are in an observation before it.
    """
    # The snapshot is the data version: a step without changes does not make downstream assets stale.
    version = dg.DataVersion(metadata["snapshot"]) if "snapshot" in metadata else None
    if is_partitioned:
        metadata, whole = asset_metadata.by_partition(metadata)
        yield dg.AssetObservation(asset_key(spec.table), metadata=whole)
    yield dg.MaterializeResult(metadata=metadata, data_version=version)


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

"""Partitions in Dagster: their definitions, the marks of a micro-batch, and runs without a partition key.

Which partitions a micro-batch changes is known only after its commit. So its run has no partition key: the step marks
each changed partition as materialized, then records, in an observation, the snapshot up to which partitions are marked.
If the step is killed in between, the next one starts from the recorded snapshot.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from lake_assets.errors import HistoryError
from lake_assets.facade import Lake
from lake_assets.lake import LakeBase, TableId
from lake_assets.orchestration.asset_names import asset_key, inner_op_name, op_name
from lake_assets.orchestration.runs.run_retries import shortened
from lake_assets.pipeline import Outcome
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.partitioning.partition_changes import PartitionChange, counted, partition_changes
from lake_assets.tables.partitioning.partition_keys import OTHER, key_of_text
from lake_assets.tables.partitioning.table_partitions import Partitions

# One object for all assets: Dagster combines assets of a backfill in one run only if they share it.
BACKFILL = dg.BackfillPolicy.single_run()
DATA_VERSION_TAG = "dagster/data_version"
_PROGRESS = "lake_assets/marked"
# Search this many of the newest observations for ours: other code may record observations too.
_MAX_OBSERVATIONS = 50
# Record at most this many partitions that lie in the future.
_MAX_AHEAD = 1_000


def definition(spec: Spec) -> dg.PartitionsDefinition[str] | None:
    """Return Dagster's partitions definition of a table; time partitions end with the current hour, day or month."""
    partitions = spec.partitions
    if partitions is None:
        return None
    if partitions.every is not None:
        assert partitions.start is not None
        classes = {
            "hour": dg.HourlyPartitionsDefinition,
            "day": dg.DailyPartitionsDefinition,
            "month": dg.MonthlyPartitionsDefinition,
        }
        return classes[partitions.every](start_date=partitions.start, timezone=partitions.timezone, end_offset=1)
    if partitions.values is not None:
        return dg.StaticPartitionsDefinition([*map(key_of_text, partitions.values), OTHER])
    return dg.DynamicPartitionsDefinition(name=str(spec.table))


def mapping(spec: Spec, upstream: Spec | None) -> dg.PartitionMapping | None:
    """Return the mapping from a table's partitions to those of its upstream table, if Dagster needs one.

    A table may begin earlier than its upstream table. Dagster cannot map time windows between time zones: then each
    partition depends on all partitions upstream.
    """
    by_time = [p for s in (spec, upstream) if s is not None and (p := s.partitions) is not None and p.every]
    if len(by_time) < 2:
        return None
    if by_time[0].timezone != by_time[1].timezone:
        return dg.AllPartitionMapping()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)


# --- runs without a partition key -----------------------------------------------------------------------------------


def behind_gate(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Let the asset's step wait for its upstream assets through a step that does nothing.

    Before a step of a partitioned asset begins, Dagster looks up the data versions of its upstream partitions by the
    run's partition key, and fails if the run has none. It does so only for the step's own asset inputs. Behind the
    gate, the step has no such inputs, while order and lineage stay the same.
    """
    op = asset.op
    names = [*op.ins]

    @dg.op(name=f"{op.name}__after", ins={name: dg.In(dg.Nothing) for name in names}, out=dg.Out(dg.Nothing))
    def gate() -> None:
        """Do nothing; Dagster starts this once the upstream assets are done."""

    step = op.with_replaced_properties(name=inner_op_name(op.name), ins={"after": dg.In(dg.Nothing)})
    graph = dg.GraphDefinition(
        name=op.name,
        node_defs=[gate, step],
        dependencies={step.name: {"after": dg.DependencyDefinition(gate.name, "result")}},
        input_mappings=[
            dg.InputMapping(graph_input_name=n, mapped_node_name=gate.name, mapped_node_input_name=n) for n in names
        ],
        output_mappings=[
            dg.OutputMapping(graph_output_name=n, mapped_node_name=step.name, mapped_node_output_name=n)
            for n in op.outs
        ],
    )
    return dg.AssetsDefinition(
        keys_by_input_name=asset.keys_by_input_name,
        keys_by_output_name=asset.keys_by_output_name,
        node_def=graph,
        can_subset=asset.can_subset,
        specs=list(asset.specs),
        check_specs_by_output_name=asset.check_specs_by_output_name,
        backfill_policy=asset.backfill_policy,
    )


def step_key(spec: Spec) -> str:
    """Return the key of a table's step."""
    name = op_name(*spec.table.parts)
    return name if spec.partitions is None else f"{name}.{inner_op_name(name)}"


def selected_partitions(context: dg.AssetExecutionContext, spec: Spec) -> list[str] | None:
    """Return the partitions selected for a run; None if none are selected, or the table has no partitions."""
    if spec.partitions is None or not (context.has_partition_key or context.has_partition_key_range):
        return None
    return list(context.partition_keys)


# --- marks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MarkProgress:
    """How far a table's partitions are marked in Dagster.

    Attributes:
        uuid: the table's uuid.
        snapshot: the snapshot up to which partitions are marked.
        declared: the declaration of the partitions as text; after a change, all partitions are marked again.
        ahead: partitions with rows dated in the future, which are marked once they begin.
    """

    uuid: str
    snapshot: int
    declared: str
    ahead: tuple[str, ...] = ()


def mark_progress(instance: dg.DagsterInstance, table: TableId) -> MarkProgress | None:
    """Return how far the partitions of a table are marked in Dagster's instance; None if they never were."""
    observations = instance.fetch_observations(asset_key(table), limit=_MAX_OBSERVATIONS)
    for record in observations.records:
        progress = record.asset_observation.metadata.get(_PROGRESS) if record.asset_observation else None
        if progress is not None:
            value = json.loads(str(progress.value))
            return MarkProgress(value["uuid"], int(value["snapshot"]), value["declared"], tuple(value["ahead"]))
    return None


def has_unmarked(instance: dg.DagsterInstance, lake: Lake, spec: Spec) -> bool:
    """Whether a table has changed but unmarked partitions, after a killed run or another writer's commit.

    Reads metadata only.
    """
    partitions, table = spec.partitions, lake.find(spec.table)
    if partitions is None or table is None or table.metadata.current_snapshot_id is None:
        return False
    since = _marked_snapshot(instance, spec.table, partitions, table)
    if since == table.metadata.current_snapshot_id:
        return False
    try:
        return not lake.capture(spec.table, since).is_empty
    except HistoryError:
        return since is not None


def _marked_snapshot(instance: dg.DagsterInstance, table: TableId, partitions: Partitions, loaded: Table) -> int | None:
    progress = mark_progress(instance, table)
    is_current = progress and progress.uuid == str(loaded.metadata.table_uuid) and progress.declared == partitions.text
    return progress.snapshot if progress and is_current else None


def mark(
    context: dg.AssetExecutionContext,
    lake: LakeBase,
    spec: Spec,
    outcome: Outcome,
    selected: Sequence[str] | None,
    redone_since: int | None = None,
) -> dict[str, Any]:
    """Mark the partitions that changed since the last mark, each with its own metadata.

    Args:
        selected: the partitions selected for the run. Dagster marks them when the step is done; this adds metadata.
        redone_since: the snapshot before the selected partitions were redone, if an earlier step may have marked that.

    Returns:
        Metadata of the whole step.

    Raises:
        HistoryError: the table's metadata cannot be read.
    """
    partitions, table, asset = spec.partitions, lake.find(spec.table), asset_key(spec.table)
    head = table.metadata.current_snapshot_id if table else None
    if partitions is None or table is None or head is None:
        return {}
    instance = context.instance
    previous, since = mark_progress(instance, spec.table), _marked_snapshot(instance, spec.table, partitions, table)
    changed = _touched_since(lake, spec.table, partitions, since, head)
    outside = _outside(spec, partitions, changed)
    begun = {} if previous is None or since is None else _begun(spec, partitions, previous.ahead)
    inside = {name: change for name, change in changed.items() if name is not None and name not in outside}
    _warn(context, spec, partitions, changed, outside)
    if partitions.is_dynamic and inside:
        # Dagster does not show marks of unknown partitions, so partitions are added first.
        instance.add_dynamic_partitions(str(spec.table), sorted(inside))
    # Selected partitions without changes get metadata too: otherwise Dagster shows the metadata of the whole step.
    known = dict.fromkeys(selected or (), PartitionChange())
    if selected and redone_since is not None and not inside.keys() >= known.keys():
        redone = _touched_since(lake, spec.table, partitions, redone_since, head)
        known |= {name: change for name, change in redone.items() if name is not None and name in known}
    for name, change in sorted({**known, **begun, **inside}.items()):
        metadata = _partition_metadata(change, head, outcome.updated)
        if selected is not None and name in selected:
            context.add_asset_metadata(metadata, asset_key=asset, partition_key=name)
            continue
        context.log_event(
            dg.AssetMaterialization(asset, partition=name, metadata=metadata, tags={DATA_VERSION_TAG: str(head)})
        )
    ahead = sorted(
        {
            *(previous.ahead if previous and since is not None else ()),
            *(name for name in outside if name > partitions.first),
        }
        - {*begun}
    )
    progress = MarkProgress(str(table.metadata.table_uuid), head, partitions.text, tuple(ahead[:_MAX_AHEAD]))
    if previous != progress:
        context.log_event(dg.AssetObservation(asset, metadata={_PROGRESS: _progress_json(progress)}))
    return {"partitions_touched": len(inside), **({"partitions": shortened(sorted(inside), 1_000)} if inside else {})}


def _touched_since(
    lake: LakeBase, table: TableId, partitions: Partitions, since: int | None, head: int
) -> dict[str | None, PartitionChange]:
    if since is not None:
        try:
            return partition_changes(lake, table, partitions, since, head)
        except HistoryError:
            # The snapshot has expired: mark all partitions of the table, possibly too many, but none is missed.
            pass
    return partition_changes(lake, table, partitions, None, head)


def _outside(spec: Spec, partitions: Partitions, names: Collection[str | None]) -> set[str]:
    """Return the partitions before the first declared one and after the current one."""
    if partitions.every is None:
        return set()
    newest = _newest(spec)
    return {name for name in names if name is not None and (partitions.is_before(name) or name > newest)}


def _newest(spec: Spec) -> str:
    partitions = definition(spec)
    return (partitions.get_last_partition_key() if partitions else None) or ""


def _begun(spec: Spec, partitions: Partitions, ahead: Sequence[str]) -> dict[str, PartitionChange]:
    """Return the partitions that were in the future at the last mark and have begun since."""
    newest = _newest(spec) if ahead and partitions.every else ""
    return {name: PartitionChange(None, None, None, None) for name in ahead if name <= newest}


def _warn(
    context: dg.AssetExecutionContext,
    spec: Spec,
    partitions: Partitions,
    changed: Mapping[str | None, PartitionChange],
    outside: Collection[str],
) -> None:
    if outside:
        context.log.warning(
            f"OutsidePartitionsWarning: {spec.table}: the table has rows with {partitions.by} in "
            f"{shortened(sorted(outside))}, but Dagster's partitions are {partitions.first} to {_newest(spec)}. Future "
            "partitions are marked once they begin; for earlier rows, declare an earlier `start`"
        )
    if None in changed:
        context.log.warning(
            f"OutsidePartitionsWarning: {spec.table}: rows whose {partitions.by} is null belong to no Dagster partition"
        )
    if OTHER in changed and partitions.values is not None:
        context.log.warning(
            f"OtherPartitionWarning: {spec.table}: rows whose {partitions.by} is null or not listed in `values` are in "
            f"the partition {OTHER}. List their values to give them separate partitions"
        )


def _partition_metadata(change: PartitionChange, snapshot: int, updated: int) -> dict[str, Any]:
    metadata = {
        "rows_written": change.came,
        "rows_removed": change.went,
        "files": change.files,
        "bytes": change.bytes,
        **counted(change, updated),
    }
    return {name: value for name, value in metadata.items() if value is not None} | {"snapshot": str(snapshot)}


def _progress_json(progress: MarkProgress) -> str:
    content = {
        "uuid": progress.uuid,
        # As text: a snapshot id has more digits than a JavaScript number.
        "snapshot": str(progress.snapshot),
        "declared": progress.declared,
        "ahead": list(progress.ahead),
    }
    return json.dumps(content)

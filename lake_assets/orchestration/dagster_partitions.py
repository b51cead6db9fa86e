"""Partitions in Dagster: their definitions, the marks of a micro-batch, and runs without a partition key.

A micro-batch only knows afterwards which partitions it touched. So its run has no partition key: the step marks each
touched partition itself, then records the snapshot up to which it has marked, as an observation. If it is killed in
between, the next step marks from that snapshot on.
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
from lake_assets.orchestration.sensing.sensor_planning import shortened
from lake_assets.pipeline import OTHER, Outcome, Partitions, Touched, counted, key_of_text, touched
from lake_assets.pipeline.table_graph import Spec

# One object for all assets: Dagster combines assets of a backfill in one run only if they share it.
BACKFILL = dg.BackfillPolicy.single_run()
DATA_VERSION_TAG = "dagster/data_version"
_PROGRESS = "lake_assets/marked"
# Search this many observations for ours, since others may record some too.
_LOOKED_THROUGH = 50
_MOST_AHEAD = 1_000


def definition(spec: Spec) -> dg.PartitionsDefinition[str] | None:
    """Return Dagster's partitions definition of a table; time partitions end with the current hour, day or month."""
    by = spec.partitions
    if by is None:
        return None
    if by.every is not None:
        assert by.start is not None
        made = {
            "hour": dg.HourlyPartitionsDefinition,
            "day": dg.DailyPartitionsDefinition,
            "month": dg.MonthlyPartitionsDefinition,
        }
        return made[by.every](start_date=by.start, timezone=by.timezone, end_offset=1)
    if by.values is not None:
        return dg.StaticPartitionsDefinition([*map(key_of_text, by.values), OTHER])
    return dg.DynamicPartitionsDefinition(name=str(spec.table))


def mapping(spec: Spec, above: Spec | None) -> dg.PartitionMapping | None:
    """Return the mapping from a table's partitions to those of its upstream table, if Dagster needs one.

    A table may begin earlier than its upstream table. Dagster does not map windows of different time zones: then each
    partition depends on all.
    """
    times = [p for s in (spec, above) if s is not None and (p := s.partitions) is not None and p.every]
    if len(times) < 2:
        return None
    if times[0].timezone != times[1].timezone:
        return dg.AllPartitionMapping()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)


# --- runs without a partition key -----------------------------------------------------------------------------------


def behind_gate(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Let the asset's step wait for its upstream assets through a step that does nothing.

    Before a step of a partitioned asset begins, Dagster looks up the data versions of its upstream partitions by the
    run's partition key, and fails if the run has none. It does so for the asset inputs of the step itself. Behind the
    gate, the step has no such inputs; order and lineage stay.
    """
    op = asset.op
    names = [*op.ins]

    @dg.op(name=f"{op.name}__after", ins={name: dg.In(dg.Nothing) for name in names}, out=dg.Out(dg.Nothing))
    def gate() -> None:
        """Do nothing: the upstream assets are done."""

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


def chosen(context: dg.AssetExecutionContext, spec: Spec) -> list[str] | None:
    """Return the partitions selected for a run; None if none are selected, or the table has no partitions."""
    if spec.partitions is None or not (context.has_partition_key or context.has_partition_key_range):
        return None
    return list(context.partition_keys)


# --- marks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Marked:
    """Progress of marking a table's partitions.

    Attributes:
        uuid: the table's uuid.
        snapshot: the snapshot up to which partitions are marked.
        declared: the declared partitions as text; if they change, all partitions are marked again.
        ahead: keys of rows dated in the future.
    """

    uuid: str
    snapshot: int
    declared: str
    ahead: tuple[str, ...] = ()


def marked(instance: dg.DagsterInstance, table: TableId) -> Marked | None:
    """Return up to where the partitions of a table are marked in Dagster's instance; None if never."""
    found = instance.fetch_observations(asset_key(table), limit=_LOOKED_THROUGH)
    for record in found.records:
        said = record.asset_observation.metadata.get(_PROGRESS) if record.asset_observation else None
        if said is not None:
            value = json.loads(str(said.value))
            return Marked(value["uuid"], int(value["snapshot"]), value["declared"], tuple(value["ahead"]))
    return None


def is_unmarked(instance: dg.DagsterInstance, lake: Lake, spec: Spec) -> bool:
    """Whether a table has touched but unmarked partitions, after a killed run or another writer's commit.

    Reads metadata only.
    """
    by, table = spec.partitions, lake.find(spec.table)
    if by is None or table is None or table.metadata.current_snapshot_id is None:
        return False
    last = _since(instance, spec.table, by, table)
    if last == table.metadata.current_snapshot_id:
        return False
    try:
        return not lake.capture(spec.table, last).is_empty
    except HistoryError:
        return last is not None


def _since(instance: dg.DagsterInstance, table: TableId, by: Partitions, loaded: Table) -> int | None:
    last = marked(instance, table)
    alike = last and last.uuid == str(loaded.metadata.table_uuid) and last.declared == by.text
    return last.snapshot if last and alike else None


def mark(
    context: dg.AssetExecutionContext, lake: LakeBase, spec: Spec, outcome: Outcome, asked: Sequence[str] | None
) -> dict[str, Any]:
    """Mark the partitions touched since the last mark, each with separate metadata.

    Args:
        context: the step's context.
        lake: the lake.
        spec: the table.
        outcome: the step's outcome.
        asked: the partitions selected for the run: Dagster marks them when the step is done; this adds their metadata.

    Returns:
        Metadata of the whole step.

    Raises:
        HistoryError: the table's metadata cannot be read.
    """
    by, table, key = spec.partitions, lake.find(spec.table), asset_key(spec.table)
    head = table.metadata.current_snapshot_id if table else None
    if by is None or table is None or head is None:
        return {}
    instance = context.instance
    last, since = marked(instance, spec.table), _since(instance, spec.table, by, table)
    found = _touched(lake, spec.table, by, since, head)
    outside = _outside(spec, by, found)
    due = {} if last is None or since is None else _due(spec, by, last.ahead)
    inside = {k: part for k, part in found.items() if k is not None and k not in outside}
    _warn(context, spec, by, found, outside)
    if by.is_dynamic and inside:
        # Added before they are marked, since Dagster does not show marks of unknown partitions.
        instance.add_dynamic_partitions(str(spec.table), sorted(inside))
    # Unchanged partitions of the selection get metadata too: otherwise Dagster shows them that of the whole step.
    unchanged = dict.fromkeys(asked or (), Touched())
    for k, part in sorted({**unchanged, **due, **inside}.items()):
        described = _described(part, head, outcome.updated)
        if asked is not None and k in asked:
            context.add_asset_metadata(described, asset_key=key, partition_key=k)
            continue
        context.log_event(
            dg.AssetMaterialization(key, partition=k, metadata=described, tags={DATA_VERSION_TAG: str(head)})
        )
    ahead = sorted(
        {*(last.ahead if last and since is not None else ()), *(k for k in outside if k > by.first)} - {*due}
    )
    progress = Marked(str(table.metadata.table_uuid), head, by.text, tuple(ahead[:_MOST_AHEAD]))
    if last != progress:
        context.log_event(dg.AssetObservation(key, metadata={_PROGRESS: _text(progress)}))
    return {"partitions_touched": len(inside), **({"partitions": shortened(sorted(inside), 1_000)} if inside else {})}


def _touched(lake: LakeBase, table: TableId, by: Partitions, since: int | None, head: int) -> dict[str | None, Touched]:
    if since is not None:
        try:
            return touched(lake, table, by, since, head)
        except HistoryError:
            # The snapshot has expired: mark all partitions of the table, which is too many but omits none.
            pass
    return touched(lake, table, by, None, head)


def _outside(spec: Spec, by: Partitions, found: Collection[str | None]) -> set[str]:
    """Return the keys before the first partition and after the current one."""
    if by.every is None:
        return set()
    newest = _newest(spec)
    return {k for k in found if k is not None and (by.is_before(k) or k > newest)}


def _newest(spec: Spec) -> str:
    found = definition(spec)
    return (found.get_last_partition_key() if found else None) or ""


def _due(spec: Spec, by: Partitions, ahead: Sequence[str]) -> dict[str, Touched]:
    """Return the partitions with rows that were dated in the future and no longer are."""
    newest = _newest(spec) if ahead and by.every else ""
    return {k: Touched(None, None, None, None) for k in ahead if k <= newest}


def _warn(
    context: dg.AssetExecutionContext,
    spec: Spec,
    by: Partitions,
    found: Mapping[str | None, Touched],
    outside: Collection[str],
) -> None:
    if outside:
        context.log.warning(
            f"OutsidePartitionsWarning: {spec.table}: rows with {by.by} in {shortened(sorted(outside))} are in the "
            f"table, and Dagster has partitions from {by.first} to {_newest(spec)} only. Future partitions are marked "
            "once they begin; for earlier rows, declare an earlier `start`"
        )
    if None in found:
        context.log.warning(
            f"OutsidePartitionsWarning: {spec.table}: rows without {by.by} are in the table, but in no Dagster "
            "partition"
        )
    if OTHER in found and by.values is not None:
        context.log.warning(
            f"OtherPartitionWarning: {spec.table}: rows whose {by.by} is null or not listed in `values` are in the "
            f"partition {OTHER}. List their values to give them separate partitions"
        )


def _described(part: Touched, snapshot: int, updated: int) -> dict[str, Any]:
    said = {
        "rows_written": part.came,
        "rows_removed": part.went,
        "files": part.files,
        "bytes": part.bytes,
        **counted(part, updated),
    }
    return {k: v for k, v in said.items() if v is not None} | {"snapshot": str(snapshot)}


def _text(progress: Marked) -> str:
    said = {
        "uuid": progress.uuid,
        # As text: a snapshot id has more digits than a JavaScript number.
        "snapshot": str(progress.snapshot),
        "declared": progress.declared,
        "ahead": list(progress.ahead),
    }
    return json.dumps(said)

"""Partitions in Dagster: their definitions, the marks of a micro-batch, and runs without a partition key.

A micro-batch learns which partitions it touched when it has touched them. So its run has no partition key; the step
marks each touched partition itself, then notes up to which snapshot it has, as an observation. Killed in between, the
next step marks from that snapshot on.
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
from lake_assets.orchestration.sensor_planning import shortened
from lake_assets.pipeline import OTHER, Outcome, Partitions, Touched, counted, key_of_text, touched
from lake_assets.pipeline.table_graph import Spec

# One object for all assets: Dagster puts assets of one backfill into one run only where they share it.
BACKFILL = dg.BackfillPolicy.single_run()
DATA_VERSION_TAG = "dagster/data_version"
_PROGRESS = "lake_assets/marked"
# Observations of other people's are looked through for ours.
_LOOKED_THROUGH = 50
_MOST_AHEAD = 1_000


def definition(spec: Spec) -> dg.PartitionsDefinition[str] | None:
    """What Dagster knows the partitions of a table by; the last one is the hour, day or month that is not over yet."""
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
    """Which partitions of `above` those of a table are made of, where Dagster has to be told.

    A table may begin earlier than one that it is made of. Windows of two time zones Dagster does not map: then each
    partition is made of all.
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
    """The same asset, whose step waits for those above it through a step that does nothing.

    Before a step of a partitioned asset begins, Dagster looks up the data versions of the partitions that it is made
    of, by the run's partition key, and fails where the run has none. It does so for inputs of the step itself that are
    assets. Behind the gate, the step has none; order and lineage stay.
    """
    op = asset.op
    names = [*op.ins]

    @dg.op(name=f"{op.name}__after", ins={name: dg.In(dg.Nothing) for name in names}, out=dg.Out(dg.Nothing))
    def gate() -> None:
        """Nothing: what it comes after is done."""

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
    """The key of a table's step."""
    name = op_name(*spec.table.parts)
    return name if spec.partitions is None else f"{name}.{inner_op_name(name)}"


def chosen(context: dg.AssetExecutionContext, spec: Spec) -> list[str] | None:
    """The partitions that a run is about; None: it is no run of partitions, or the table has none."""
    if spec.partitions is None or not (context.has_partition_key or context.has_partition_key_range):
        return None
    return list(context.partition_keys)


# --- marks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Marked:
    """Up to where the partitions of a table are marked.

    Attributes:
        uuid: of the table.
        declared: the partitions, in a line: others are marked anew.
        ahead: keys of rows whose time had not come.
    """

    uuid: str
    snapshot: int
    declared: str
    ahead: tuple[str, ...] = ()


def marked(instance: dg.DagsterInstance, table: TableId) -> Marked | None:
    """Up to where the partitions of a table are marked, as Dagster's instance has it; None: not at all."""
    found = instance.fetch_observations(asset_key(table), limit=_LOOKED_THROUGH)
    for record in found.records:
        said = record.asset_observation.metadata.get(_PROGRESS) if record.asset_observation else None
        if said is not None:
            value = json.loads(str(said.value))
            return Marked(value["uuid"], int(value["snapshot"]), value["declared"], tuple(value["ahead"]))
    return None


def is_unmarked(instance: dg.DagsterInstance, lake: Lake, spec: Spec) -> bool:
    """Whether partitions of a table were touched that are not marked: a run was killed, or somebody else wrote.

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
    """Mark the partitions that were touched since the last time, each with its own metadata.

    Args:
        context: of the step.
        lake: the lake.
        spec: the table.
        outcome: of the step.
        asked: the partitions that the run is about: Dagster marks these itself when the step is done; here they are
            given their metadata.

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
        # Known before they are marked: marks of what is no partition are not shown.
        instance.add_dynamic_partitions(str(spec.table), sorted(inside))
    # A chosen partition in which nothing changed says so: Dagster would show it what the step did elsewhere.
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
            # The snapshot was expired: all that the table holds is marked, which is too much but leaves nothing out.
            pass
    return touched(lake, table, by, None, head)


def _outside(spec: Spec, by: Partitions, found: Collection[str | None]) -> set[str]:
    """Keys of times before the first partition and after the last one that there is yet."""
    if by.every is None:
        return set()
    newest = _newest(spec)
    return {k for k in found if k is not None and (by.is_before(k) or k > newest)}


def _newest(spec: Spec) -> str:
    found = definition(spec)
    return (found.get_last_partition_key() if found else None) or ""


def _due(spec: Spec, by: Partitions, ahead: Sequence[str]) -> dict[str, Touched]:
    """Partitions whose rows came before their time, and whose time has come."""
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
            f"table, and Dagster has partitions from {by.first} to {_newest(spec)} only. Those to come are marked "
            "when their time has come; for those before, declare an earlier `start`"
        )
    if None in found:
        context.log.warning(
            f"OutsidePartitionsWarning: {spec.table}: rows without {by.by} are in the table, and belong to no "
            "partition of Dagster's"
        )
    if OTHER in found and by.values is not None:
        context.log.warning(
            f"OtherPartitionWarning: {spec.table}: rows with a {by.by} that `values` does not name, or with none, are "
            f"in the partition {OTHER}. Name their values to give them partitions of their own"
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
        # As text: a snapshot id has more digits than a number in a browser.
        "snapshot": str(progress.snapshot),
        "declared": progress.declared,
        "ahead": list(progress.ahead),
    }
    return json.dumps(said)

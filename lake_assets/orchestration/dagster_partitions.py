"""Partitions in Dagster: their definitions, how they map to upstream ones, and runs without a partition key."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import dagster as dg

from lake_assets.orchestration.asset_names import inner_op_name, op_name
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.partitioning.partition_keys import OTHER, key_of_text

# One object for all assets: Dagster combines assets of a backfill in one run only if they share it.
BACKFILL = dg.BackfillPolicy.single_run()


def definition(spec: Spec) -> dg.PartitionsDefinition[str] | None:
    """Return Dagster's partitions definition of a table; time partitions end with the current hour, day or month,
    or before a declared end."""
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
        return classes[partitions.every](
            start_date=partitions.start, end_date=partitions.end, timezone=partitions.timezone, end_offset=1
        )
    if partitions.values is not None:
        return dg.StaticPartitionsDefinition([*map(key_of_text, partitions.values), OTHER])
    return dg.DynamicPartitionsDefinition(name=str(spec.table))


def mapping(spec: Spec, upstream: Spec | None) -> dg.PartitionMapping | None:
    """Return the mapping from a table's partitions to those of its upstream table, if Dagster needs one.

    A table may begin earlier than its upstream table. Dagster cannot map time windows between time zones: then each
    partition depends on all partitions upstream. Otherwise, partitions depend on none, and the table absorbs what
    changes upstream: Dagster refuses definitions whose partitions are of unlike kinds, and backfills of a partition
    whose counterpart upstream does not exist, as can happen where partitions come from the rows.
    """
    below, unmapped = spec.partitions, dg.SpecificPartitionsPartitionMapping([])
    if below is None:
        return None
    if upstream is None:  # of another pipeline, with whatever partitions: Dagster itself maps time windows
        return None if below.every else unmapped
    above = upstream.partitions
    if above is None:
        return None
    if below.every and above.every:
        if below.timezone != above.timezone:
            return dg.AllPartitionMapping()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            return dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)
    if below.by == above.by and below.values is not None and above.values is not None:
        return _by_value([*map(key_of_text, below.values)], [*map(key_of_text, above.values)])
    return unmapped


def _by_value(below: Sequence[str], above: Sequence[str]) -> dg.PartitionMapping:
    """Return the mapping between two lists of values of one column; what a list does not name is in its other rows."""
    keys = {key: {key if key in below else OTHER} for key in above}
    return dg.StaticPartitionMapping({**keys, OTHER: {OTHER, *(key for key in below if key not in above)}})


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

"""Marks of partitions in Dagster: which of them a step has materialized.

Which partitions a micro-batch changes is known only after its commit. So its run has no partition key: the step marks
each changed partition as materialized, then records, in an observation, the snapshot up to which partitions are marked.
If the step is killed in between, the next one starts from the recorded snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pyiceberg.table import Table

from lake_assets.errors import HistoryError
from lake_assets.facade import Lake
from lake_assets.lake import LakeBase, TableId
from lake_assets.orchestration.asset_names import asset_key
from lake_assets.orchestration.dagster_partitions import definition
from lake_assets.orchestration.runs.run_retries import shortened
from lake_assets.pipeline import Outcome
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.partitioning.partition_changes import PartitionChange, counted, partition_changes
from lake_assets.tables.partitioning.partition_keys import OTHER
from lake_assets.tables.partitioning.table_partitions import Partitions

# One object for all assets: Dagster combines assets of a backfill in one run only if they share it.
DATA_VERSION_TAG = "dagster/data_version"
_PROGRESS = "lake_assets/marked"
# Search this many of the newest observations for ours: other code may record observations too.
_MAX_OBSERVATIONS = 50
# Record at most this many partitions that lie in the future.
_MAX_AHEAD = 1_000


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
            *(name for name in outside if name > partitions.first and not partitions.is_after(name)),
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
    """Return the partitions before the first declared one, after the last declared one and after the current one."""
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
            "partitions are marked once they begin; for earlier rows, declare an earlier `start`, for rows after the "
            "declared `end` a later one"
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

"""Private APIs of Dagster that nothing public replaces; `tests/orchestration/test_dagster_compat.py` checks them."""

from __future__ import annotations

import asyncio
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    DagsterInstance,
    DagsterLogManager,
    DagsterRunStatus,
)
from dagster._core.definitions.assets.definition.asset_spec import SYSTEM_METADATA_KEY_AUTO_CREATED_STUB_ASSET
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType
from dagster._core.definitions.partitions.context import partition_loading_context
from dagster._core.errors import DagsterExecutionInterruptedError as DagsterExecutionInterruptedError
from dagster._core.events import DagsterEvent as DagsterEvent
from dagster._core.events import DagsterEventType, StepMaterializationData
from dagster._core.events import EngineEventData as EngineEventData
from dagster._core.events import JobFailureData as JobFailureData
from dagster._core.events import RunFailureReason as RunFailureReason
from dagster._core.execution.api import ExecuteRunWithPlanIterable as ExecuteRunWithPlanIterable
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.execution.compute_logs import create_compute_log_file_key as create_compute_log_file_key
from dagster._core.execution.context.system import PlanExecutionContext as PlanExecutionContext
from dagster._core.execution.context.system import PlanOrchestrationContext as PlanOrchestrationContext
from dagster._core.execution.context.system import StepExecutionContext as StepExecutionContext
from dagster._core.execution.context_creation_job import PlanExecutionContextManager as PlanExecutionContextManager
from dagster._core.execution.plan import execute_plan
from dagster._core.execution.plan.active import ActiveExecution as ActiveExecution
from dagster._core.execution.plan.execute_plan import dagster_event_sequence_for_step as dagster_event_sequence_for_step
from dagster._core.execution.plan.instance_concurrency_context import (
    InstanceConcurrencyContext as InstanceConcurrencyContext,
)
from dagster._core.execution.plan.plan import ExecutionPlan as ExecutionPlan
from dagster._core.execution.retries import RetryMode as RetryMode
from dagster._core.execution.retries import get_retries_config as get_retries_config
from dagster._core.execution.step_dependency_config import StepDependencyConfig as StepDependencyConfig
from dagster._core.execution.step_dependency_config import (
    get_step_dependency_config_field as get_step_dependency_config_field,
)
from dagster._core.executor.base import Executor as Executor
from dagster._core.instance.config import PoolGranularity as PoolGranularity
from dagster._core.instance.ref import InstanceRef as InstanceRef
from dagster._core.instance.utils import RUNLESS_JOB_NAME, RUNLESS_RUN_ID
from dagster._core.launcher import DefaultRunLauncher as DefaultRunLauncher
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME as INDEX_SHARD_NAME
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage as SqliteEventLogStorage
from dagster._core.storage.tags import BACKFILL_ID_TAG as BACKFILL_ID_TAG
from dagster._core.storage.tags import GRPC_INFO_TAG as GRPC_INFO_TAG
from dagster._core.storage.tags import PARENT_BACKFILL_ID_TAG as PARENT_BACKFILL_ID_TAG
from dagster._core.storage.tags import ROOT_BACKFILL_ID_TAG as ROOT_BACKFILL_ID_TAG
from dagster._utils.error import serializable_error_info_from_exc_info as serializable_error_info_from_exc_info

from lake_assets.orchestration.asset_names import REBUILD_TAG

# Metadata of an asset that only occurs as a dependency.
STUB = SYSTEM_METADATA_KEY_AUTO_CREATED_STUB_ASSET
trigger_hook = execute_plan._trigger_hook  # pyright: ignore[reportPrivateUsage]


def log_handler(log: DagsterLogManager) -> Any:
    """Return the handler that turns records of Python's loggers into events of a step."""
    return log._dagster_handler  # pyright: ignore[reportPrivateUsage]


def set_event_loop(context: StepExecutionContext, loop: asyncio.AbstractEventLoop) -> None:
    """Give a step the event loop that runs the asynchronous functions of users."""
    context._event_loop = loop  # pyright: ignore[reportPrivateUsage]


def partitions_of_backfill(instance: DagsterInstance, backfill: str) -> dict[AssetKey, list[str]]:
    """Return the assets of a backfill with the chosen partitions.

    Assets without partitions have none, nor do those whose partitions Dagster cannot map from the chosen ones.
    """
    stored = instance.get_backfill(backfill)
    if stored is None or (data := stored.asset_backfill_data) is None:  # of a job's partitions, or deleted
        return {}
    with partition_loading_context(dynamic_partitions_store=instance):
        partitions = {
            key: list(subset.get_partition_keys())
            for key, subset in data.target_subset.partitions_subsets_by_asset_key.items()
        }
    return {**{key: [] for key in stored.asset_selection or ()}, **partitions}


def recorded(key: str) -> str | None:
    """Return what the code server has recorded when it loaded the definitions; None in the code server itself."""
    context = DefinitionsLoadContext.get()
    is_run = context.load_type == DefinitionsLoadType.RECONSTRUCTION
    return context.reconstruction_metadata.get(key) if is_run else None


def record(key: str, text: str) -> None:
    """Record something for the processes that execute runs of the definitions that are being loaded."""
    DefinitionsLoadContext.get().add_to_pending_reconstruction_metadata(key, text)


def leave_pool(context: AssetExecutionContext) -> None:
    """Give a step's slot in its pool to whoever waits for it; the step goes on without.

    The executor gives it back once more when the step ends, which does nothing then.
    """
    steps = context.op_execution_context.get_step_execution_context()
    context.instance.event_log_storage.free_concurrency_slot_for_step(context.run.run_id, steps.step.key)


def report_again(instance: DagsterInstance, event: AssetMaterialization, timestamp: float) -> None:
    """Store a materialization without a run, as `report_runless_asset_event` does, with a time in the past."""
    data = StepMaterializationData(event)
    runless = DagsterEvent(DagsterEventType.ASSET_MATERIALIZATION.value, RUNLESS_JOB_NAME, event_specific_data=data)
    instance.report_dagster_event(runless, RUNLESS_RUN_ID, timestamp=timestamp)


def was_cancelled(instance: DagsterInstance, begun_by: str) -> bool:
    """Whether a user has cancelled a backfill, a run over partitions or a rebuild; False also if the id is unknown."""
    if (backfill := instance.get_backfill(begun_by)) is not None:
        return backfill.status == BulkActionStatus.CANCELED
    run = instance.get_run_by_id(begun_by)
    if run is None or run.status != DagsterRunStatus.CANCELED:
        return False
    return run.is_partitioned or REBUILD_TAG in run.tags

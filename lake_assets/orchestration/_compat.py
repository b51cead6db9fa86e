"""Private APIs of Dagster that nothing public replaces; `tests/orchestration/test_dagster_compat.py` checks them."""

from __future__ import annotations

import asyncio
from typing import Any

from dagster import DagsterLogManager
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.events import DagsterEvent, EngineEventData, JobFailureData, RunFailureReason
from dagster._core.execution.api import ExecuteRunWithPlanIterable
from dagster._core.execution.compute_logs import create_compute_log_file_key
from dagster._core.execution.context.system import (
    PlanExecutionContext,
    PlanOrchestrationContext,
    StepExecutionContext,
)
from dagster._core.execution.context_creation_job import PlanExecutionContextManager
from dagster._core.execution.plan import execute_plan
from dagster._core.execution.plan.active import ActiveExecution
from dagster._core.execution.plan.execute_plan import dagster_event_sequence_for_step
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode, get_retries_config
from dagster._core.execution.step_dependency_config import StepDependencyConfig, get_step_dependency_config_field
from dagster._core.executor.base import Executor
from dagster._core.instance.config import PoolGranularity
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._utils.error import serializable_error_info_from_exc_info

__all__ = [
    "GRPC_INFO_TAG",
    "INDEX_SHARD_NAME",
    "ActiveExecution",
    "DagsterEvent",
    "DagsterExecutionInterruptedError",
    "EngineEventData",
    "ExecuteRunWithPlanIterable",
    "ExecutionPlan",
    "Executor",
    "InstanceConcurrencyContext",
    "JobFailureData",
    "PlanExecutionContext",
    "PlanExecutionContextManager",
    "PlanOrchestrationContext",
    "PoolGranularity",
    "RetryMode",
    "RunFailureReason",
    "SqliteEventLogStorage",
    "StepDependencyConfig",
    "StepExecutionContext",
    "create_compute_log_file_key",
    "dagster_event_sequence_for_step",
    "get_retries_config",
    "get_step_dependency_config_field",
    "log_handler",
    "serializable_error_info_from_exc_info",
    "set_event_loop",
    "trigger_hook",
]

trigger_hook = execute_plan._trigger_hook  # pyright: ignore[reportPrivateUsage]


def log_handler(log: DagsterLogManager) -> Any:
    """Return the handler that turns records of Python's loggers into events of a step."""
    return log._dagster_handler  # pyright: ignore[reportPrivateUsage]


def set_event_loop(context: StepExecutionContext, loop: asyncio.AbstractEventLoop) -> None:
    """Give a step the event loop that runs the asynchronous functions of users."""
    context._event_loop = loop  # pyright: ignore[reportPrivateUsage]

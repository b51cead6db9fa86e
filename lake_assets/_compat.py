"""Private APIs of Dagster that the run launcher needs; `tests/orchestration/test_dagster_compat.py` checks them."""

from __future__ import annotations

from dagster._core.events import JobFailureData, RunFailureReason
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, LaunchRunContext, WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, ManagedGrpcPythonEnvCodeLocationOrigin
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClassData, deserialize_value, serialize_value
from dagster._utils import get_run_crash_explanation

__all__ = [
    "CheckRunHealthResult",
    "ConfigurableClassData",
    "DefaultRunLauncher",
    "ExecuteRunArgs",
    "GrpcServerCodeLocationOrigin",
    "JobFailureData",
    "LaunchRunContext",
    "ManagedGrpcPythonEnvCodeLocationOrigin",
    "RunFailureReason",
    "WorkerStatus",
    "deserialize_value",
    "execute_run",
    "get_run_crash_explanation",
    "serialize_value",
]


def execute_run(args: str) -> None:
    """Execute the run that Dagster's serialized arguments name; exits the process with 1 if it failed."""
    from dagster._cli.api import execute_run_command  # imported by the processes of runs alone

    execute_run_command.main([args], standalone_mode=False)

"""Private APIs of Dagster that the run launcher needs; `tests/orchestration/test_dagster_compat.py` checks them."""

from __future__ import annotations

from dagster._core.events import JobFailureData as JobFailureData
from dagster._core.events import RunFailureReason as RunFailureReason
from dagster._core.launcher import CheckRunHealthResult as CheckRunHealthResult
from dagster._core.launcher import DefaultRunLauncher as DefaultRunLauncher
from dagster._core.launcher import LaunchRunContext as LaunchRunContext
from dagster._core.launcher import WorkerStatus as WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin as GrpcServerCodeLocationOrigin
from dagster._core.remote_origin import ManagedGrpcPythonEnvCodeLocationOrigin as ManagedGrpcPythonEnvCodeLocationOrigin
from dagster._grpc.types import ExecuteRunArgs as ExecuteRunArgs
from dagster._serdes import ConfigurableClassData as ConfigurableClassData
from dagster._serdes import deserialize_value as deserialize_value
from dagster._serdes import serialize_value as serialize_value
from dagster._utils import get_run_crash_explanation as get_run_crash_explanation


def execute_run(args: str) -> None:
    """Execute the run that Dagster's serialized arguments name; exits the process with 1 if it failed."""
    from dagster._cli.api import execute_run_command  # imported by the processes of runs alone

    execute_run_command.main([args], standalone_mode=False)

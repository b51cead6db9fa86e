"""Private APIs of Dagster in use: an upgrade that moves one fails here, by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from dagster import DagsterLogManager

from lake_assets import _compat as _launcher
from lake_assets.orchestration import _compat


@pytest.mark.parametrize(
    ("called", "parameters"),
    [
        (_compat.ExecuteRunWithPlanIterable, {"execution_plan", "iterator", "execution_context_manager"}),
        (_compat.InstanceConcurrencyContext, {"instance", "dagster_run"}),
        (_compat.JobFailureData, {"error", "failure_reason"}),
        (_compat.dagster_event_sequence_for_step, {"step_context"}),
        (_compat.trigger_hook, {"step_context", "step_event_list"}),
        (_compat.create_compute_log_file_key, set[str]()),
        (_compat.DagsterEvent.engine_event, {"plan_context", "message", "event_specific_data"}),
        (_compat.EngineEventData.in_process, {"pid", "step_keys_to_execute"}),
        (
            _compat.PlanExecutionContextManager,
            {
                "job",
                "retry_mode",
                "execution_plan",
                "run_config",
                "dagster_run",
                "instance",
                "raise_on_error",
                "output_capture",
                "step_dependency_config",
            },
        ),
        (_compat.SqliteEventLogStorage.path_for_shard, {"self", "run_id"}),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_private_functions_accept_our_arguments(called: Callable[..., Any], parameters: set[str]) -> None:
    signature = inspect.signature(called)
    required = {p.name for p in signature.parameters.values() if p.default is p.empty and p.kind not in (2, 4)}
    assert parameters <= set(signature.parameters)
    assert required <= parameters | {"args", "kwargs"}


def test_private_names_exist() -> None:
    assert {"execute", "retries", "step_dependency_config"} <= set(dir(_compat.Executor))
    assert {"OP", "RUN"} <= {g.name for g in _compat.PoolGranularity}
    assert "UNEXPECTED_TERMINATION" in {r.name for r in _compat.RunFailureReason}
    assert _compat.GRPC_INFO_TAG.startswith(".dagster/")


def test_the_index_of_run_events_is_a_separate_file() -> None:
    assert _compat.INDEX_SHARD_NAME == "index"


def test_dagster_reads_the_event_loop_set_by_a_step_thread() -> None:
    assert any("_event_loop" in inspect.getsource(c) for c in _compat.StepExecutionContext.__mro__[:-1])
    assert "_dagster_handler" in inspect.getsource(DagsterLogManager)


def test_private_functions_accept_the_launchers_arguments() -> None:
    run = inspect.signature(_launcher.ExecuteRunArgs).parameters
    assert {"job_origin", "run_id", "instance_ref", "set_exit_code_on_failure"} <= set(run)
    assert {"socket", "port"} <= set(inspect.signature(_launcher.GrpcServerCodeLocationOrigin).parameters)
    for method in ("launch_run", "terminate", "check_run_worker_health", "supports_check_run_worker_health"):
        assert hasattr(_launcher.DefaultRunLauncher, method)
    assert {"RUNNING", "FAILED"} <= {status.name for status in _launcher.WorkerStatus}
    assert _launcher.get_run_crash_explanation("The process", 1).startswith("The process")

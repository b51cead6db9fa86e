"""The executor of a run: its steps in one process, one after the other, as Dagster's own does it.

What it adds is for instances that are kept in SQLite files. Dagster opens such a file for each event and each claim of
a pool, and closes it again. Who closes one last has SQLite write its log back and delete it, which costs more than the
event does, and a step is a dozen of them. So a run holds the files open.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import dagster as dg
from dagster._core.definitions.executor_definition import IN_PROC_CONFIG
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.execution.step_dependency_config import StepDependencyConfig
from dagster._core.executor.in_process import InProcessExecutor
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage

# Seconds that a file may be held by another process.
_TIMEOUT = 5.0


class LakeExecutor(InProcessExecutor):
    """Dagster's in-process executor, with the files of the run's events held open."""

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """The events of a run (a hook of Dagster's)."""
        with held_open(plan_context.instance, plan_context.run_id):
            yield from super().execute(plan_context, execution_plan)


@dg.executor(
    name="in_process",
    config_schema=IN_PROC_CONFIG,
)
def lake_executor(context: dg.InitExecutorContext) -> LakeExecutor:
    """Runs the steps of a run in its process, with one Spark session. Its settings are those of Dagster's own."""
    said = cast("Mapping[str, Any]", context.executor_config)
    return LakeExecutor(
        RetryMode.from_config(said["retries"]) or RetryMode.ENABLED,
        StepDependencyConfig.from_config(said.get("step_dependency_config")),
        said.get("marker_to_close"),
    )


@contextlib.contextmanager
def held_open(instance: dg.DagsterInstance, run_id: str) -> Generator[None]:
    """Hold the SQLite files of a run's events open in the body; nothing where they are kept elsewhere.

    Nothing is read through these connections, and no lock is held, so that nobody waits for them.
    """
    storage = instance.event_log_storage
    with contextlib.ExitStack() as scope:
        if isinstance(storage, SqliteEventLogStorage):
            for shard in (INDEX_SHARD_NAME, run_id):
                _hold(Path(storage.path_for_shard(shard)), scope)
        yield


def _hold(file: Path, scope: contextlib.ExitStack) -> None:
    if not file.is_file():
        return
    # It may be closed by another thread: whoever goes through the events of a run last.
    connection = sqlite3.connect(file, timeout=_TIMEOUT, check_same_thread=False)
    scope.callback(connection.close)
    # The file is opened when it is first read. It only costs time where that fails.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

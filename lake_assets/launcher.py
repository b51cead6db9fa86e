"""A run launcher whose runs wait neither for imports nor for a JVM.

Each run is a separate process, as with Dagster's default launcher, but forked from a process that has imported what
runs need (a fork server). It loads the current definitions of the code location. Local Spark is borrowed from a JVM
that outlives the run (`lake_assets.runtime.warm_jvm`).

A tag of the run identifies its process: any process on the same machine can check and interrupt it. Runs that need
another environment (a code location on another machine, in a container, of another interpreter) go to the default
launcher.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import cached_property
from multiprocessing import process as processes
from pathlib import Path
from typing import Any

import dagster as dg

from lake_assets._compat import (
    CheckRunHealthResult,
    ConfigurableClassData,
    DefaultRunLauncher,
    ExecuteRunArgs,
    GrpcServerCodeLocationOrigin,
    JobFailureData,
    LaunchRunContext,
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RunFailureReason,
    WorkerStatus,
    deserialize_value,
    execute_run,
    get_run_crash_explanation,
    serialize_value,
)
from lake_assets.runtime import warm_jvm
from lake_assets.runtime.processes import RunProcess, identity

# Longest wait for an interrupted run to end, unless Dagster's run monitoring sets one.
_KILL_SECONDS = 120.0
# Characters of a folder in which the path of a socket (104 to 108 at most) may become too long.
_LONG = 50
# What runs import. None of it may start threads or open files: those do not survive a fork.
_PRELOADED = [
    "dagster._cli.api",
    "dagster._core.definitions.repository_definition.repository_data_builder",
    "dagster._core.execution.plan.active",
    "dagster._core.executor.in_process",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.sqlite_storage",
    "dagster._daemon.cli",  # the module that a fork of the daemon takes for its main one
    "dagster.components.core.snapshot",
    "grpc._channel",
    "lake_assets.capture.rows.changed_rows",
    "lake_assets.definitions",
    "lake_assets.examples.defs",
    "lake_assets.models.steps.sql_model_step",
    "pyiceberg.catalog.sql",
    "pyspark.sql.connect.catalog",
    "pyspark.sql.connect.session",
    "pyspark.sql.functions",
    "sqlglot.dialects.spark",
    "upath",
    "watchdog.observers.polling",
]


class WarmRunLauncher(DefaultRunLauncher):
    """Starts runs as forks of a process that has imported what they need, with a warm JVM.

    ```yaml
    run_launcher:
      module: lake_assets.launcher
      class: WarmRunLauncher
      config:
        spark_idle_seconds: 600
    ```
    """

    def __init__(
        self,
        inst_data: ConfigurableClassData | None = None,
        spark_idle_seconds: float = 600.0,
        spark_runs: int = 200,
    ) -> None:
        """Create the launcher, as Dagster does.

        Args:
            spark_idle_seconds: seconds after which an unused local JVM ends; 0: one JVM per run.
            spark_runs: number of runs that a JVM serves before it is replaced.
        """
        super().__init__(inst_data)
        self._idle_seconds, self._spark_runs = spark_idle_seconds, spark_runs
        self._lock = threading.Lock()

    @classmethod
    def config_type(cls) -> Any:
        """Return the schema of `config`; see Dagster."""
        idle = "seconds after which an unused local JVM ends; 0: each run starts its own"
        runs = "number of runs that a local JVM serves before it is replaced"
        return {
            "spark_idle_seconds": dg.Field(float, is_required=False, default_value=600.0, description=idle),
            "spark_runs": dg.Field(int, is_required=False, default_value=200, description=runs),
        }

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]) -> WarmRunLauncher:
        """Build the launcher from its configuration; see Dagster."""
        return cls(inst_data, **config_value)

    @cached_property
    def _sockets(self) -> str:
        """The folder of the JVMs' sockets, accessible to its owner only."""
        folder = tempfile.gettempdir()
        # The path of a socket has to be short.
        return tempfile.mkdtemp(prefix="lake-assets-", dir=folder if len(folder) < _LONG else "/tmp")

    @cached_property
    def _code(self) -> float:
        """Modification time of the newest file of this package, as imported by the fork server."""
        return _newest()

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start a run's process."""
        run = context.dagster_run
        if not self._is_here(context):
            super().launch_run(context)
            return
        with self._lock:
            try:
                # A fork of modules imported before the package was changed would run the old code.
                if _newest() == self._code:
                    self._start(run)
                    return
                why = "the code of lake_assets was changed since Dagster was started"
            except (OSError, EOFError) as error:
                why = f"the fork server failed ({type(error).__name__}: {error})"
        self._instance.report_engine_event(f"Started without a warm process: {why}.", run, cls=type(self))
        super().launch_run(context)

    def _is_here(self, context: LaunchRunContext) -> bool:
        """Whether the code location uses this process's interpreter, so a fork can run it."""
        origin = context.dagster_run.job_code_origin
        if (
            context.workspace is None
            or origin is None
            or "forkserver" not in multiprocessing.get_all_start_methods()
            or origin.repository_origin.container_image
            or _environment(origin.executable_path) != _environment(sys.executable)
        ):
            return False
        remote = context.dagster_run.remote_job_origin
        assert remote is not None
        name = remote.repository_origin.code_location_origin.location_name
        origin = context.workspace.get_code_location(name).origin
        # Servers that Dagster started itself: `dagster dev` talks to them over sockets. Any other server may have
        # another environment.
        return isinstance(origin, ManagedGrpcPythonEnvCodeLocationOrigin) or (
            isinstance(origin, GrpcServerCodeLocationOrigin) and origin.socket is not None and origin.port is None
        )

    def _start(self, run: dg.DagsterRun) -> None:
        assert run.job_code_origin is not None
        args = ExecuteRunArgs(run.job_code_origin, run.run_id, self._instance.get_ref(), set_exit_code_on_failure=True)
        settings = warm_jvm.KeeperSettings(self._sockets, identity(), self._idle_seconds, self._spark_runs)
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload(_PRELOADED)
        process = forks.Process(
            target=execute, args=(run.run_id, serialize_value(args), settings), name=f"run {run.run_id[:8]}"
        )
        process.start()
        # Otherwise this process would wait for its runs before it exits.
        processes._children.discard(process)  # pyright: ignore[reportAttributeAccessIssue]
        self._run_ids.add(run.run_id)
        watch = threading.Thread(target=self._look_after, args=(process, run.run_id), daemon=True, name=process.name)
        watch.start()

    def _look_after(self, process: processes.BaseProcess, run_id: str) -> None:
        """Wait for the process's end, and report it if the run has not finished by then."""
        process.join()
        assert process.exitcode is not None
        run = self._instance.get_run_by_id(run_id) if self.has_instance else None
        # The fork server reports the end of a fork. If the fork server is killed, all its forks seem to have ended.
        while run is not None and (at := process_of(run)) and at.is_here and at.is_there():
            time.sleep(1)
            run = self._instance.get_run_by_id(run_id) if self.has_instance else None
        if run is None or run.is_finished:
            return
        text = get_run_crash_explanation(f"The process of run {run_id[:8]}", process.exitcode)
        if run.status == dg.DagsterRunStatus.CANCELING:
            self._instance.report_run_canceled(run, text)
        else:
            why = JobFailureData(None, RunFailureReason.UNEXPECTED_TERMINATION)
            self._instance.report_run_failed(run, text, why)

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run, or kill it if that has no effect. Return False if its process no longer exists."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        if (at := process_of(run)) is None:
            return super().terminate(run_id)
        self._instance.report_run_canceling(run)
        if not at.is_here or not at.is_there():
            text = f"Its process {at.pid} is gone." if at.is_here else f"Its process is on another machine, {at.host}."
            self._instance.report_engine_event(text, run, cls=type(self))
            return False
        os.kill(at.pid, signal.SIGINT)
        seconds = self._instance.run_monitoring_cancel_timeout_seconds or _KILL_SECONDS
        late = threading.Timer(seconds, at.kill)
        late.daemon = True
        late.start()
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Yes: Dagster's run monitoring ends runs whose process is gone."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether a run's process exists; assumed for runs of other launchers."""
        at = process_of(run)
        if at is None or (at.is_here and at.is_there()):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        # There is one daemon, and runs are on its machine. A process of another host belongs to an earlier container
        # or boot, which has ended.
        return CheckRunHealthResult(WorkerStatus.FAILED, f"its process {at.pid} is gone")

    def dispose(self) -> None:
        """Clean up."""
        if "_sockets" in vars(self):
            with contextlib.suppress(OSError):  # JVMs still use it; the last one removes it
                Path(self._sockets).rmdir()
        super().dispose()


def process_of(run: dg.DagsterRun) -> RunProcess | None:
    """Return the process of a run started by this launcher; None if another launcher started it."""
    return RunProcess.of(run.run_id, run.tags)


def execute(run_id: str, args: str, settings: warm_jvm.KeeperSettings) -> None:
    """Execute a run in this process, a fresh fork."""
    from lake_assets.definitions import RUN_PROCESS
    from lake_assets.orchestration.runs.run_event_files import held_open

    # Imported modules stay: collecting garbage among them doubles the time to load definitions.
    gc.freeze()
    os.environ[RUN_PROCESS] = run_id
    ref = deserialize_value(args, ExecuteRunArgs).instance_ref
    assert ref is not None
    if settings.idle_seconds > 0:
        warm_jvm.keep(settings)
    with dg.DagsterInstance.from_ref(ref) as instance, held_open(instance, run_id):
        # Tagged by the process itself, since its parent may be killed meanwhile.
        instance.add_run_tags(run_id, RunProcess.this(run_id).tags)
        # Exits with 1 if the run failed.
        execute_run(args)
        run = instance.get_run_by_id(run_id)
    # A cancelled run may have left work in the JVM, so the JVM is not returned and ends.
    if run is not None and run.status is dg.DagsterRunStatus.SUCCESS:
        warm_jvm.give_back()


def _environment(executable: str) -> Path:
    """Return the environment of an interpreter; interpreters of two environments may be links to one file."""
    return Path(executable).parent.resolve()


def _newest() -> float:
    return max(p.stat().st_mtime for p in Path(__file__).parent.rglob("*.py"))

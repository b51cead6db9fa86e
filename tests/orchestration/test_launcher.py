"""Runs as processes of the warm launcher: start, end, health, and runs that it leaves to Dagster's launcher."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.launcher import DefaultRunLauncher, WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import serialize_value

from lake_assets import launcher
from lake_assets.definitions import RUN_PROCESS
from lake_assets.launcher import WarmRunLauncher
from lake_assets.runtime import warm_jvm as warm_spark
from lake_assets.runtime.processes import RunProcess, here, identity

pytestmark = pytest.mark.system

STARTED, CANCELING = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING
# Restore the handler: a background process of a script ignores SIGINT by default, unlike Dagster's runs.
HEEDS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); print(flush=True); input()"
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); input()"
SECONDS = 60
# A server started by `dagster dev`, and an independent one.
SOCKET = GrpcServerCodeLocationOrigin(host="localhost", socket="/tmp/a-socket", location_name="here")
PORT = GrpcServerCodeLocationOrigin(host="localhost", port=4266, location_name="here")


@dg.job
def nothing() -> None:
    """A job for runs that nobody executes."""


@pytest.fixture
def instance(dagster_home: Path) -> Generator[dg.DagsterInstance]:
    monitored = {"run_monitoring": {"enabled": True, "cancel_timeout_seconds": 5}}
    with dg.instance_for_test(overrides=monitored, temp_dir=str(dagster_home)) as test_instance:
        yield test_instance


@pytest.fixture
def warm(instance: dg.DagsterInstance) -> WarmRunLauncher:
    launcher = WarmRunLauncher()
    launcher.register_instance(instance)
    return launcher


@pytest.fixture
def process() -> Generator[Callable[[str], subprocess.Popen[bytes]]]:
    with ExitStack() as stack:

        def start(code: str) -> subprocess.Popen[bytes]:
            child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.callback(child.communicate)
            stack.callback(child.kill)
            return child

        yield start


def run_of(
    instance: dg.DagsterInstance, pid: int, *, host: str | None = None, status: dg.DagsterRunStatus = STARTED
) -> dg.DagsterRun:
    """A run with the tags of the process that executes it."""
    run = instance.create_run_for_job(nothing, status=status)
    at = RunProcess(run.run_id, host or here(), *identity(pid))
    instance.add_run_tags(run.run_id, at.tags)
    return latest(instance, run)


def latest(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun:
    stored = instance.get_run_by_id(run.run_id)
    assert stored
    return stored


def messages(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    return "\n".join(e.message for e in instance.all_logs(run.run_id))


@pytest.mark.parametrize(("code", "ended_by"), [(HEEDS, signal.SIGINT), (DEAF, signal.SIGKILL)])
def test_a_run_is_interrupted_and_killed_if_it_does_not_stop(
    warm: WarmRunLauncher, instance: dg.DagsterInstance, process: Any, code: str, ended_by: signal.Signals
) -> None:
    child = process(code)
    child.stdout.readline()  # wait until it has started
    run = run_of(instance, child.pid)
    assert warm.terminate(run.run_id)
    assert latest(instance, run).status == CANCELING
    assert child.wait(SECONDS) in (-ended_by, 1 if ended_by == signal.SIGINT else -ended_by)


def test_a_run_without_process_is_not_interrupted(
    warm: WarmRunLauncher, instance: dg.DagsterInstance, process: Any
) -> None:
    child = process(HEEDS)
    dead, elsewhere = run_of(instance, child.pid), run_of(instance, child.pid, host="another")
    child.communicate(b"\n")
    assert not warm.terminate(dead.run_id)
    assert f"Its process {child.pid} is gone" in messages(instance, dead)
    assert not warm.terminate(elsewhere.run_id)
    assert "on another machine, another" in messages(instance, elsewhere)


def test_a_finished_run_is_not_changed(warm: WarmRunLauncher, instance: dg.DagsterInstance) -> None:
    run = run_of(instance, os.getpid(), status=dg.DagsterRunStatus.SUCCESS)
    assert not warm.terminate(run.run_id)
    assert latest(instance, run).status == dg.DagsterRunStatus.SUCCESS


def test_health_is_the_state_of_the_runs_process(
    warm: WarmRunLauncher, instance: dg.DagsterInstance, process: Any
) -> None:
    child = process(HEEDS)
    run, elsewhere = run_of(instance, child.pid), run_of(instance, child.pid, host="another")
    # Dagster copies the tags of a run to its re-execution.
    again = instance.create_run_for_job(nothing, status=STARTED, tags=dict(run.tags))
    assert warm.check_run_worker_health(run).status == WorkerStatus.RUNNING
    child.communicate(b"\n")
    health = warm.check_run_worker_health(run)
    assert (health.status, health.msg) == (WorkerStatus.FAILED, f"its process {child.pid} is gone")
    # A container in which Dagster ran before, and which no longer exists.
    assert warm.check_run_worker_health(elsewhere).status == WorkerStatus.FAILED
    assert warm.check_run_worker_health(again).status == WorkerStatus.RUNNING


@pytest.mark.parametrize(
    ("status", "code", "becomes", "says"),
    [
        (STARTED, 3, dg.DagsterRunStatus.FAILURE, "exited with code 3"),
        (STARTED, -signal.SIGKILL, dg.DagsterRunStatus.FAILURE, "SIGKILL"),
        (CANCELING, -signal.SIGKILL, dg.DagsterRunStatus.CANCELED, "SIGKILL"),
        (dg.DagsterRunStatus.SUCCESS, 0, dg.DagsterRunStatus.SUCCESS, ""),
    ],
)
def test_the_end_of_a_process_is_the_end_of_its_run(
    warm: WarmRunLauncher,
    instance: dg.DagsterInstance,
    status: dg.DagsterRunStatus,
    code: int,
    becomes: dg.DagsterRunStatus,
    says: str,
) -> None:
    run = instance.create_run_for_job(nothing, status=status)
    forks = multiprocessing.get_context("forkserver")
    what = (os._exit, (code,)) if code >= 0 else (signal.raise_signal, (-code,))
    child = forks.Process(target=what[0], args=what[1])
    child.start()
    warm._look_after(child, run.run_id)
    assert latest(instance, run).status == becomes
    assert says in messages(instance, run)


def test_runs_survive_the_end_of_the_fork_server(
    warm: WarmRunLauncher, instance: dg.DagsterInstance, process: Any
) -> None:
    child = process(HEEDS)
    run = run_of(instance, child.pid)
    ended = SimpleNamespace(exitcode=255, join=lambda: None)
    looks = threading.Thread(target=warm._look_after, args=(ended, run.run_id))
    looks.start()
    looks.join(2)
    assert looks.is_alive()
    assert latest(instance, run).status == STARTED
    child.communicate(b"\n")
    looks.join(SECONDS)
    assert latest(instance, run).status == dg.DagsterRunStatus.FAILURE


class LaunchRequest:
    """A run to launch, and the launchers that have started it."""

    def __init__(self, run: dg.DagsterRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.started, self.at = run, list[str](), SOCKET
        self.executable, self.image = sys.executable, ""
        monkeypatch.setattr(DefaultRunLauncher, "launch_run", lambda *_: self.started.append("Dagster's"))
        monkeypatch.setattr(WarmRunLauncher, "_start", lambda *_: self.started.append("warm"))

    @property
    def context(self) -> Any:
        repository = SimpleNamespace(
            container_image=self.image, code_location_origin=SimpleNamespace(location_name="here")
        )
        origin = SimpleNamespace(repository_origin=repository, executable_path=self.executable)
        run = SimpleNamespace(run_id=self.run.run_id, job_code_origin=origin, remote_job_origin=origin)
        locations = SimpleNamespace(get_code_location=lambda _: SimpleNamespace(origin=self.at))
        return SimpleNamespace(dagster_run=run, workspace=locations)


@pytest.fixture
def launch(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> LaunchRequest:
    return LaunchRequest(instance.create_run_for_job(nothing), monkeypatch)


@pytest.mark.parametrize(
    ("differs", "by"),
    [
        ({}, "warm"),
        ({"at": PORT}, "Dagster's"),
        ({"executable": "/opt/other/bin/python"}, "Dagster's"),
        ({"image": "an-image"}, "Dagster's"),
    ],
)
def test_other_runs_are_launched_by_dagsters_launcher(
    warm: WarmRunLauncher, launch: LaunchRequest, differs: dict[str, Any], by: str
) -> None:
    vars(launch).update(differs)
    warm.launch_run(launch.context)
    assert launch.started == [by]


def test_changed_code_is_not_run_from_a_stale_import(
    warm: WarmRunLauncher, instance: dg.DagsterInstance, launch: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.launch_run(launch.context)
    monkeypatch.setattr(launcher, "_newest", lambda: 0.0)
    # Engine events need Dagster's run.
    monkeypatch.setattr(instance, "report_engine_event", lambda text, *_, **__: launch.started.append(text))
    warm.launch_run(launch.context)
    assert launch.started == [
        "warm",
        "Started without a warm process: the code of lake_assets was changed since Dagster was started.",
        "Dagster's",
    ]


def test_a_broken_fork_server_delays_no_run(
    warm: WarmRunLauncher, instance: dg.DagsterInstance, launch: LaunchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise EOFError("nobody answers")

    monkeypatch.setattr(WarmRunLauncher, "_start", broken)
    monkeypatch.setattr(instance, "report_engine_event", lambda text, *_, **__: launch.started.append(text))
    warm.launch_run(launch.context)
    assert launch.started == [
        "Started without a warm process: the fork server failed (EOFError: nobody answers).",
        "Dagster's",
    ]


@pytest.mark.parametrize(
    "ends", [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.FAILURE]
)
def test_only_a_run_that_succeeded_gives_its_jvm_back(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, ends: dg.DagsterRunStatus
) -> None:
    run, given_back = instance.create_run_for_job(nothing), list[str]()
    over = {
        dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
        dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
        dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
    }

    def executed(args: list[str], standalone_mode: bool) -> None:
        # Dagster's command ends equally for a cancelled and a successful run.
        instance.report_dagster_event(dg.DagsterEvent(over[ends].value, run.job_name, message=""), run.run_id)

    monkeypatch.setattr("dagster._cli.api.execute_run_command.main", executed)
    monkeypatch.setattr(warm_spark, "give_back", lambda: given_back.append(run.run_id))
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setenv(RUN_PROCESS, "")  # restored afterwards
    args = ExecuteRunArgs(dg.reconstructable(nothing).get_python_origin(), run.run_id, instance.get_ref())
    keeping = warm_spark.KeeperSettings("", identity(), idle_seconds=0, loans=1)
    launcher.execute(run.run_id, serialize_value(args), keeping)
    assert latest(instance, run).status == ends
    assert given_back == ([run.run_id] if ends == dg.DagsterRunStatus.SUCCESS else [])

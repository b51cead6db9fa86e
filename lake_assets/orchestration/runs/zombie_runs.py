"""Zombie runs: Dagster reports them as started, but their process is dead.

Dagster's default launcher starts a run as a child process of the code server, which reports a run that is killed. If
both are killed (a container, a machine), no process reports it: the run stays "started", and everything waits for it.
Sensors are evaluated on the machine that starts the runs, so they can see that the process is dead. The same applies to
runs of `lake_assets.launcher` and the daemon that starts them.
"""

from __future__ import annotations

import re

import dagster as dg
import psutil

from lake_assets.orchestration._compat import GRPC_INFO_TAG, JobFailureData, RunFailureReason
from lake_assets.runtime.processes import RunProcess

# The first event of a run's process. A resumed run has several: the last one counts.
_STARTED = re.compile(r"Started process for run \(pid: (\d+)\)")
# A process starts before its first event, give or take the difference between the two clocks.
_CLOCKS_SECONDS = 2.0


def end_if_dead(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """Report a run as failed if its process is dead, so that Dagster retries it and frees its slots.

    Returns:
        A description of the dead run; None if its process is alive, not started yet, or belongs to another launcher.
    """
    # Other launchers start runs on other machines, and monitor them themselves.
    if run.status not in (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING):
        return None
    if process := RunProcess.of(run.run_id, run.tags):
        pid = process.pid if process.is_here and not process.is_there() else None
    elif GRPC_INFO_TAG in run.tags:
        pid = _dead_pid(instance, run.run_id)
    else:
        return None
    latest = instance.get_run_by_id(run.run_id)
    if pid is None or latest is None or latest.status != run.status:
        return None
    text = f"run {run.run_id[:8]} was {run.status.value.lower()}, but its process {pid} is gone"
    why = JobFailureData(None, RunFailureReason.UNEXPECTED_TERMINATION)
    instance.report_run_failed(latest, f"{text}: killed together with the process that started it", why)
    return text


def _dead_pid(instance: dg.DagsterInstance, run_id: str) -> int | None:
    """Return the process id of a run if the process is dead."""
    starts = [
        (int(match[1]), entry.timestamp)
        for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        if entry.dagster_event and (match := _STARTED.search(entry.dagster_event.message or ""))
    ]
    if not starts or _is_alive(*starts[-1]):
        return None
    return starts[-1][0]


def _is_alive(pid: int, event_time: float) -> bool:
    """Whether the process that sent an event at `event_time` (seconds since 1970) is alive, not another with its id."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= event_time + _CLOCKS_SECONDS
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True

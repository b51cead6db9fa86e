"""Zombie runs: Dagster reports them as started, but their process is dead.

Dagster's default launcher starts a run as a process of the code server, which reports the run when it is killed. If
both are killed (a container, a machine), nobody does: the run stays "started", and everything waits for it. A sensor is
evaluated where the runs are started, so it can see that the process is gone. The same applies to a run of
`lake_assets.launcher` and the daemon that started it.
"""

from __future__ import annotations

import re

import dagster as dg
import psutil

from lake_assets.orchestration._compat import GRPC_INFO_TAG, JobFailureData, RunFailureReason
from lake_assets.runtime.processes import RunProcess

# The first event of a run's process. A resumed run has several; the last one counts.
_STARTED = re.compile(r"Started process for run \(pid: (\d+)\)")
# A process starts before its first event. Clocks of events and processes differ by less than this.
_CLOCKS_SECONDS = 2.0


def end_if_dead(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """Report a run as failed if its process is gone, so that Dagster retries it and frees its slots.

    Args:
        instance: Dagster's instance.
        run: a run in progress.

    Returns:
        A description of the dead run; None if its process exists or is not visible from here (another launcher's, or
        not started yet).
    """
    # Other launchers start runs on other machines, and monitor them themselves.
    if run.status not in (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING):
        return None
    if named := RunProcess.of(run.run_id, run.tags):
        pid = named.pid if named.is_here and not named.is_there() else None
    elif GRPC_INFO_TAG in run.tags:
        pid = _gone(instance, run.run_id)
    else:
        return None
    latest = instance.get_run_by_id(run.run_id)
    if pid is None or latest is None or latest.status != run.status:
        return None
    text = f"run {run.run_id[:8]} was {run.status.value.lower()}, but its process {pid} is gone"
    why = JobFailureData(None, RunFailureReason.UNEXPECTED_TERMINATION)
    instance.report_run_failed(latest, f"{text}: killed together with what had started it", why)
    return text


def _gone(instance: dg.DagsterInstance, run_id: str) -> int | None:
    """Return the process id of a run if the process is gone."""
    said = [
        (int(found[1]), entry.timestamp)
        for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        if entry.dagster_event and (found := _STARTED.search(entry.dagster_event.message or ""))
    ]
    if not said or _is_there(*said[-1]):
        return None
    return said[-1][0]


def _is_there(pid: int, spoke: float) -> bool:
    """Whether the process that sent an event at `spoke` (seconds since 1970) still exists, not another with its id."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= spoke + _CLOCKS_SECONDS
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True

"""Zombie runs: the sensor fails started runs whose process is dead, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._core.storage.tags import GRPC_INFO_TAG

from tests.support.dagster_harness import Harness, selected
from tests.support.dagster_shop import ALL, feed

LAUNCHED = {GRPC_INFO_TAG: json.dumps({"host": "127.0.0.1", "port": 4000})}


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def started(
    harness: Harness,
    pid: int | None,
    *,
    by_default_launcher: bool = True,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
) -> dg.DagsterRun:
    """A run of the pipeline that is recorded as started by a process."""
    tags = LAUNCHED if by_default_launcher else {}
    run = harness.instance.create_run_for_job(harness.job, status=status, tags=tags)
    if pid is not None:
        text = f"Started process for run (pid: {pid})."
        harness.instance.report_engine_event(text, run, EngineEventData.in_process(pid))
    return run


def status(harness: Harness, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    stored = harness.instance.get_run_by_id(run.run_id)
    assert stored
    return stored.status


@pytest.mark.parametrize("at_work", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED])
def test_a_run_with_a_dead_process_is_failed_and_delays_nothing(dry: Harness, at_work: dg.DagsterRunStatus) -> None:
    feed(dry)
    run = started(dry, ended_process(), status=at_work)
    assert selected(dry.request()) == ALL
    assert status(dry, run) == dg.DagsterRunStatus.FAILURE


def test_a_new_process_with_a_reused_id_is_not_the_runs_process(dry: Harness) -> None:
    feed(dry)
    now = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        run = started(dry, now.pid)
        log = dry.instance.event_log_storage
        # The run's event is much older than that process.
        entries = [e for e in log.get_logs_for_run(run.run_id) if "Started process" in e.message]
        log.delete_events(run.run_id)
        for entry in entries:
            log.store_event(entry._replace(timestamp=entry.timestamp - 3600))
        assert selected(dry.request()) == ALL
        assert status(dry, run) == dg.DagsterRunStatus.FAILURE
    finally:
        now.communicate(b"\n")


@pytest.mark.parametrize(
    ("pid", "by_default_launcher"),
    [(os.getpid(), True), (None, True), (ended_process(), False)],
    ids=["its process is there", "its process has not spoken", "it runs somewhere else"],
)
def test_a_run_that_may_be_in_progress_is_not_changed(
    dry: Harness, pid: int | None, *, by_default_launcher: bool
) -> None:
    feed(dry)
    run = started(dry, pid, by_default_launcher=by_default_launcher)
    assert run.run_id[:8] in dry.skipped()
    assert status(dry, run) == dg.DagsterRunStatus.STARTED


def test_a_dead_run_behind_a_newer_one_is_failed_too(dry: Harness) -> None:
    """It may hold slots for which the newer one waits."""
    feed(dry)
    run = started(dry, ended_process())
    newer = dry.instance.create_run_for_job(dry.job, status=dg.DagsterRunStatus.NOT_STARTED)
    assert newer.run_id[:8] in dry.skipped()
    assert status(dry, run) == dg.DagsterRunStatus.FAILURE

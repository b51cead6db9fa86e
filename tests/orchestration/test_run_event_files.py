"""The files of a run's events stay open while the run's process executes it."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest

from lake_assets.orchestration.runs.run_event_files import held_open


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


@dg.job
def nothing() -> None:
    """A job for a run that nobody executes."""


def left_open(folder: Path) -> list[str]:
    return [f.path for f in psutil.Process().open_files() if f.path.startswith(str(folder)) and ".db" in f.path]


def test_event_files_stay_open_within_the_context_and_block_nobody(on_disk: dg.DagsterInstance, tmp_path: Path) -> None:
    run = on_disk.create_run_for_job(nothing)
    on_disk.report_engine_event("first", run)
    with held_open(on_disk, run.run_id):
        assert {"index.db", f"{run.run_id}.db"} <= {Path(path).name for path in left_open(tmp_path)}
        on_disk.report_engine_event("second", run)
        with dg.DagsterInstance.local_temp(str(tmp_path)) as other:
            other.report_engine_event("third", run)
    assert left_open(tmp_path) == []
    assert [e.message for e in on_disk.all_logs(run.run_id) if "engine" not in e.message.lower()] == [
        "first", "second", "third",
    ]  # fmt: skip


def test_nothing_is_opened_for_events_in_memory(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance, held_open(instance, "a-run"):
        assert left_open(tmp_path) == []


def test_a_missing_file_is_not_created(on_disk: dg.DagsterInstance, tmp_path: Path) -> None:
    with held_open(on_disk, "no-such-run"):
        assert [Path(path).name for path in left_open(tmp_path) if path.endswith(".db")] == ["index.db"]
    assert not list(tmp_path.rglob("no-such-run.db"))

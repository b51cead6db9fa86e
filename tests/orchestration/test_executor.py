"""The executor of runs: Dagster's own, with the files of the instance's events held open."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator

from lake_assets.orchestration.executor import held_open, lake_executor


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def run(instance: dg.DagsterInstance, *assets: Any) -> tuple[dg.DagsterRun, list[dg.DagsterEvent]]:
    """A run as Dagster's launchers start it, with the job's own executor."""
    job = dg.define_asset_job("job", executor_def=lake_executor)
    resolved = dg.Definitions(assets=assets, jobs=[job]).resolve_job_def("job")
    created = instance.create_run_for_job(resolved)
    events = list(execute_run_iterator(InMemoryJob(resolved), created, instance))
    found = instance.get_run_by_id(created.run_id)
    assert found is not None
    return found, events


def left_open(folder: Path) -> list[str]:
    return [f.path for f in psutil.Process().open_files() if f.path.startswith(str(folder)) and ".db" in f.path]


def test_files_of_events_are_open_while_steps_run_and_closed_after_them(
    on_disk: dg.DagsterInstance, tmp_path: Path
) -> None:
    seen: list[set[str]] = []

    @dg.asset
    def looks() -> None:
        seen.append({Path(path).name for path in left_open(tmp_path)})

    done, _ = run(on_disk, looks)
    assert done.status == dg.DagsterRunStatus.SUCCESS
    assert {"index.db", f"{done.run_id}.db"} <= seen[0]
    assert left_open(tmp_path) == []


def test_a_failed_step_does_not_stop_the_others_and_leaves_nothing_open(
    on_disk: dg.DagsterInstance, tmp_path: Path
) -> None:
    @dg.asset
    def a_fails() -> None:
        raise dg.Failure("no")

    @dg.asset(deps=[a_fails])
    def below() -> None: ...

    @dg.asset
    def z_beside() -> None: ...

    done, events = run(on_disk, a_fails, below, z_beside)
    assert done.status == dg.DagsterRunStatus.FAILURE
    assert [e.step_key for e in events if e.is_step_success] == ["z_beside"]
    assert left_open(tmp_path) == []


def test_steps_are_tried_again(on_disk: dg.DagsterInstance) -> None:
    tries: list[int] = []

    @dg.asset
    def loses(context: dg.AssetExecutionContext) -> None:
        tries.append(context.op_execution_context.retry_number)
        if len(tries) < 3:
            raise dg.RetryRequested(max_retries=3, seconds_to_wait=0)

    done, _ = run(on_disk, loses)
    assert done.status == dg.DagsterRunStatus.SUCCESS
    assert tries == [0, 1, 2]


def test_nothing_is_opened_where_events_are_kept_in_memory(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance, held_open(instance, "a-run"):
        assert left_open(tmp_path) == []


def test_a_file_that_is_not_there_is_not_made(on_disk: dg.DagsterInstance, tmp_path: Path) -> None:
    with held_open(on_disk, "no-such-run"):
        assert [Path(path).name for path in left_open(tmp_path) if path.endswith(".db")] == ["index.db"]
    assert not list(tmp_path.rglob("no-such-run.db"))

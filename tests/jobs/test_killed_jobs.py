"""`lake.step` under kills and beside itself: each change reaches the job once, or somebody is told."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.errors import (
    ConcurrentWriteError,
    JobError,
    StepRunningError,
    StepUnknownError,
)
from lake_assets.jobs import step_notes
from lake_assets.lake import TableId
from lake_assets.runtime.processes import identity, owner
from tests.support.daily_job import (
    DAILY,
    PLAYS,
    POINTS,
    append,
    job,
    killed,
    new_rows,
    note,
    play,
    rows_of,
    rows_of_play,
)

GONE, ELSEWHERE = owner((2**22 + 1, 1.0)), f"{'0' * 8}_1_1"
TARGET = TableId.parse(DAILY)

every_point = pytest.mark.parametrize(
    "point",
    [p if p == "after its commit" else pytest.param(p, marks=pytest.mark.long) for p in POINTS],
)


@pytest.mark.long
@every_point
def test_a_job_whose_commit_carries_the_watermark_is_exactly_once_under_kills(media: Lake, point: str) -> None:
    killed(media, point, carries=True)
    play(media, (4, 4, 4))
    job(media)  # `on_unknown` is `stop`: nothing is ever unknown
    assert rows_of(media) == rows_of(media, PLAYS)
    assert note(media) is None


@every_point
def test_a_job_whose_watermark_the_step_moves_is_resolved_as_declared(media: Lake, point: str) -> None:
    """Given a kill at each point; then the rows are there once, or it is known that this is not known."""
    killed(media, point, carries=False)
    is_unknown = point in ("after its commit", "before the watermark")
    if is_unknown:
        assert rows_of(media) == rows_of(media, PLAYS)
        with pytest.raises(StepUnknownError, match=f"lake-assets step {DAILY} --done"):
            job(media, carries=False)
        play(media, (4, 4, 4))
        with media.step(DAILY, [PLAYS], on_unknown="rerun") as step:
            assert new_rows(media, step).num_rows == 2  # exactly the windows of the step that was killed
            media.table(DAILY).overwrite(new_rows(media, step))
    job(media, carries=False)
    assert rows_of(media) == rows_of(media, PLAYS)
    assert note(media) is None


@pytest.mark.parametrize("carries", [True, False])
def test_a_job_that_fails_after_writing(media: Lake, carries: bool) -> None:
    def fail() -> None:
        with media.step(DAILY, [PLAYS]) as step:
            append(media, new_rows(media, step), step.properties if carries else None)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    play(media, (4, 4, 4))
    if not carries:
        with pytest.raises(StepUnknownError, match="ZeroDivisionError"):
            job(media)
        return
    job(media)
    assert rows_of(media) == rows_of(media, PLAYS)


def test_a_killed_job_that_writes_elsewhere_is_unknown(media: Lake) -> None:
    with pytest.raises(ZeroDivisionError), media.step(DAILY, [PLAYS], writes="elsewhere"):
        _ = 1 / 0
    with pytest.raises(StepUnknownError), media.step(DAILY, [PLAYS], writes="elsewhere"):
        pass
    with media.step(DAILY, [PLAYS], writes="elsewhere", on_unknown="rerun") as step:
        assert "run again" in step.resumed
    assert note(media) is None


def test_upkeep_of_the_table_is_no_write_of_the_job(media: Lake) -> None:
    job(media)
    play(media, (4, 4, 4))
    found = step_notes.StepNote(DAILY, {}, media.table(DAILY).metadata.current_snapshot_id, True, processes=(GONE,))
    assert found.state(media.table(DAILY)) == "nothing-written"
    media.table(DAILY).append(rows_of_play(3, 3, 3))
    assert found.state(media.table(DAILY)) == "unknown"


def test_a_second_step_is_refused_while_one_runs(media: Lake) -> None:
    with media.step(DAILY, [PLAYS]) as step:
        with pytest.raises(StepRunningError, match="is running since"), media.step(DAILY, [PLAYS]):
            pass
        append(media, new_rows(media, step), step.properties)
    assert rows_of(media) == rows_of(media, PLAYS)


def test_a_process_of_the_job_that_outlives_its_step_is_waited_for(media: Lake) -> None:
    """Given a step that is killed while the program that it started goes on; then no second one starts."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        held = media.step(DAILY, [PLAYS])
        step = held.__enter__()
        step.runs_in(identity(other.pid))
        found = note(media)
        assert found is not None
        step_notes.change(media, found, processes=tuple(p for p in found.processes if p != owner()))
        with pytest.raises(StepRunningError), media.step(DAILY, [PLAYS]):
            pass
        other.communicate(b"\n")
    job(media)
    assert rows_of(media) == rows_of(media, PLAYS)
    with pytest.raises(ConcurrentWriteError):  # somebody else has taken its place
        held.__exit__(None, None, None)


def test_of_many_steps_at_once_one_runs(media: Lake) -> None:
    """Given eight threads that run the same step; then each play is absorbed once, and the others are told."""
    ready, results = threading.Barrier(8), list[str]()

    def run() -> None:
        own = Lake(LakeConfig(home=media.config.home))
        ready.wait()
        try:
            job(own)
            results.append("done")
        except (StepRunningError, ConcurrentWriteError) as e:
            results.append(type(e).__name__)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert "done" in results
    assert len(results) == 8
    assert rows_of(media) == rows_of(media, PLAYS)
    assert note(media) is None


def test_of_two_that_take_the_place_of_a_killed_step_one_runs(media: Lake) -> None:
    killed(media, "before the job", carries=True)
    found = note(media)
    assert found is not None
    one, other = (step_notes.StepNote(DAILY, found.windows, None, True) for _ in range(2))
    step_notes.claim(media, one, found)
    with pytest.raises(StepRunningError):
        step_notes.claim(media, other, found)


def test_a_step_of_another_machine_counts_as_running_for_a_day(media: Lake) -> None:
    found = step_notes.StepNote(DAILY, {}, None, True, processes=(ELSEWHERE,))
    step_notes.claim(media, found, None)
    with pytest.raises(StepRunningError, match="--rerun"), media.step(DAILY, [PLAYS]):
        pass
    step_notes.change(media, found, began=found.began - 25 * 3600)
    job(media)
    assert rows_of(media) == rows_of(media, PLAYS)


def test_a_watermark_moved_by_others_is_not_overwritten(media: Lake) -> None:
    job(media)
    play(media, (4, 4, 4))

    def step_with_another_writer() -> None:
        with media.step(DAILY, [PLAYS]) as step:
            properties = {k: v for k, v in step.properties.items() if k.endswith("watermark")}
            media.table(DAILY).append(rows_of_play(4, 4, 4), snapshot_properties=properties)

    with pytest.raises(ConcurrentWriteError, match="moved its watermark"):
        step_with_another_writer()


def test_a_commit_of_a_step_that_counted_as_ended_is_reported(media: Lake) -> None:
    """Given the job of an earlier step that commits late, as a server may for a client that was killed."""

    def step_with_a_late_commit() -> None:
        with media.step(DAILY, [PLAYS]) as step:
            rows = new_rows(media, step)
            append(media, rows, {**step.properties, step_notes.STEP_ID: "earlier"})
            append(media, rows, step.properties)

    with pytest.raises(JobError, match="another step, which counted as ended.*step earlier"):
        step_with_a_late_commit()
    assert note(media) is None

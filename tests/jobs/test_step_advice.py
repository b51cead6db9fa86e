"""Whoever follows the advice in the error of a step gets a table that has absorbed each change once; without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from lake_assets import Lake, LakeConfig
from lake_assets.errors import (
    ConcurrentWriteError,
    CorruptMetadataError,
    HistoryError,
    JobError,
    JobNotStartedError,
    LakeError,
    StepRunningError,
    StepUnknownError,
    TableNotFoundError,
)
from lake_assets.jobs import step_notes
from lake_assets.jobs.captured_step import CapturedStep, captured_step
from lake_assets.jobs.step_settings import StepSettings
from lake_assets.lake import TableId
from lake_assets.lake.metadata.metadata_commits import commit
from lake_assets.lake.metadata.watermark import Watermark, read_marks, to_properties
from lake_assets.runtime.processes import owner
from tests.support.cli import invoke
from tests.support.daily_job import DAILY, PLAYS, SCHEMA, append, job, new_rows, note, play, rows_of, rows_of_play
from tests.support.upkeep import expire

TARGET = TableId.parse(DAILY)
# A process of another machine, and one that cannot exist.
ELSEWHERE = f"{'0' * 8}_1_1"
GONE = owner((2**22 + 1, 1.0))


@pytest.fixture(autouse=True)
def _home(media: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lake-assets` finds the lake."""
    monkeypatch.setenv("LAKE_HOME", str(media.config.home))


def failure(lake: Lake, run: Callable[[CapturedStep], object]) -> LakeError:
    """The error of a step with this job."""
    with pytest.raises(LakeError) as error, lake.step(DAILY, [PLAYS]) as step:
        run(step)
    return error.value


def interrupted(lake: Lake) -> None:
    """A step whose job fails after a commit without the watermark."""

    def run(step: CapturedStep) -> None:
        append(lake, new_rows(lake, step))
        raise JobError("out of luck")

    assert str(failure(lake, run)) == "out of luck"


def commands_in(error: LakeError) -> dict[str, list[str]]:
    """The commands that an error quotes, by their last word."""
    commands = [found.split() for found in re.findall(r"`lake-assets ([^`]+)`", str(error))]
    return {words[-1]: words for words in commands}


def follow(error: LakeError, option: str) -> None:
    done = invoke(*commands_in(error)[option])
    assert done.exit_code == 0, done.output


def goes_on(lake: Lake) -> None:
    """Each play is in the job's table once, after the next step and after one more."""
    for n in (28, 29):
        job(lake)
        assert rows_of(lake) == rows_of(lake, PLAYS)
        assert note(lake) is None
        play(lake, (n, n, n))


# --- interrupted steps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["--done", "--rerun", pytest.param("on_unknown", marks=pytest.mark.long)])
def test_an_unknown_step_is_settled_as_its_error_says(media: Lake, way: str) -> None:
    job(media)
    play(media, (3, 3, 3))
    interrupted(media)
    play(media, (4, 4, 4))
    with pytest.raises(StepUnknownError, match="Look at the table. If the rows are there") as error:
        job(media)
    if way != "--done":
        media.table(DAILY).delete("account = 3")
    if way == "on_unknown":
        (advice,) = re.findall("With `(on_unknown: [a-z]+)`", str(error.value))
        job(media, **yaml.safe_load(advice))
    else:
        follow(error.value, way)
    if way == "--rerun":
        assert "the next step repeats it" in invoke("step", DAILY).output
        job(media)  # exactly the windows of the interrupted step
    goes_on(media)


@pytest.mark.parametrize("option", ["--done", "--rerun"])
def test_a_step_that_was_killed_on_another_machine_is_settled_as_its_error_says(media: Lake, option: str) -> None:
    plays = media.table(PLAYS).metadata
    windows = {PLAYS: step_notes.WindowNote(str(plays.table_uuid), None, plays.current_snapshot_id)}
    step_notes.claim(media, step_notes.StepNote(DAILY, windows, None, True, processes=(ELSEWHERE,)), None)
    if option == "--done":
        append(media, media.table(PLAYS).scan().to_arrow())
    with pytest.raises(StepRunningError, match="If it was killed on another machine") as error:
        job(media)
    follow(error.value, option)
    goes_on(media)


@pytest.mark.parametrize("settles", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_table_that_was_dropped_after_an_interruption_is_made_of_all_rows(media: Lake, settles: bool) -> None:
    """It has lost the rows of former steps too, so the windows of the interrupted one would not be enough."""
    job(media)
    play(media, (3, 3, 3))
    interrupted(media)
    media.catalog.drop_table(DAILY)
    if settles:
        with pytest.raises(TableNotFoundError, match="so it holds no rows of the step") as error:
            invoke("step", DAILY, "--done")
        follow(error.value, "--rerun")
    goes_on(media)


def test_a_table_without_an_interrupted_step_needs_no_decision(media: Lake) -> None:
    job(media)
    with pytest.raises(TableNotFoundError) as missing:
        invoke("step", "agg.playbck_daily", "--done")
    (name,) = re.findall(r"did you mean ([^?]+)\?", str(missing.value))
    with pytest.raises(JobError, match="the next one continues from its watermark"):
        invoke("step", name, "--done")
    play(media, (3, 3, 3))
    goes_on(media)


def test_a_note_that_cannot_be_read_is_dropped(media: Lake) -> None:
    step_notes.claim(media, step_notes.StepNote(DAILY, {}, None, True), None)
    with media.table(step_notes.note_name(TARGET)).transaction() as change:
        change.set_properties({"lake-assets.step-note": "{}"})
    with pytest.raises(CorruptMetadataError, match=f"compare {DAILY} with its sources") as error:
        job(media)
    (name,) = re.findall("drop the table ([^:]+):", str(error.value))
    media.catalog.drop_table(name)
    goes_on(media)


# --- several writers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--done", pytest.param("--rerun", marks=pytest.mark.long)])
def test_a_step_whose_watermark_another_writer_moved_is_settled_as_its_error_says(media: Lake, option: str) -> None:
    job(media)
    play(media, (3, 3, 3))

    def run(step: CapturedStep) -> None:
        if option == "--done":
            append(media, new_rows(media, step))
        append(media, SCHEMA.empty_table(), {k: v for k, v in step.properties.items() if k != step_notes.STEP_ID})

    error = failure(media, run)
    assert isinstance(error, ConcurrentWriteError)
    assert "another writer moved its watermark during this step. Look at the table" in str(error)
    follow(error, option)
    goes_on(media)


def rebuild(lake: Lake, error: LakeError) -> None:
    """Compute the table again, as an error says."""
    assert commands_in(error)[DAILY] == ["rebuild", DAILY]
    assert "or `rebuild=True` in `lake.step`" in str(error)
    with lake.step(DAILY, [PLAYS], rebuild=True) as step:
        assert step.is_initial
        lake.table(DAILY).overwrite(new_rows(lake, step), snapshot_properties=step.properties)


@pytest.mark.parametrize("way", ["correct", pytest.param("rebuild", marks=pytest.mark.long)])
@pytest.mark.parametrize("is_last", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_table_with_the_late_commit_of_another_step_is_corrected_or_rebuilt(
    media: Lake, is_last: bool, way: str
) -> None:
    """If the late commit is the last one, the next step also asks whether the rows are there."""
    job(media)
    play(media, (3, 3, 3))

    def run(step: CapturedStep) -> None:
        commits = [step.properties, {**step.properties, step_notes.STEP_ID: "earlier"}]
        for properties in commits if is_last else reversed(commits):
            append(media, new_rows(media, step), properties)

    error = failure(media, run)
    assert "another step, which counted as ended, committed during this step" in str(error)
    if way == "rebuild":
        rebuild(media, error)
    else:
        assert "Compare the table with its sources, and correct it" in str(error)
        media.table(DAILY).overwrite(media.table(PLAYS).scan().to_arrow())
        if is_last:
            with pytest.raises(StepUnknownError) as unknown:
                job(media)
            follow(unknown.value, "--done")
    goes_on(media)


@pytest.mark.parametrize("way", [pytest.param("correct", marks=pytest.mark.long), "rebuild"])
def test_a_table_whose_step_was_settled_while_it_ran_is_corrected_or_rebuilt(media: Lake, way: str) -> None:
    job(media)
    play(media, (3, 3, 3))

    def run(step: CapturedStep) -> None:
        found = note(media)
        assert found is not None
        step_notes.change(media, found, processes=(ELSEWHERE,))  # as seen from the machine of whoever settles it
        assert invoke("step", DAILY, "--rerun").exit_code == 0
        append(media, new_rows(media, step))

    error = failure(media, run)
    assert isinstance(error, ConcurrentWriteError)
    assert "settled by hand (`lake-assets step`)" in str(error)
    if way == "rebuild":
        rebuild(media, error)
    else:
        assert "its rows may be missing or there twice. Compare the table with its sources, and correct" in str(error)
        media.table(DAILY).delete("account = 3")  # the next step absorbs them again
    goes_on(media)


def test_a_step_that_was_overtaken_takes_what_is_pending_when_it_runs_again(media: Lake) -> None:
    def overtaken(windows: Any, _: object) -> Any:
        job(media)
        return windows

    settings = StepSettings(TARGET, (TableId.parse(PLAYS),))
    with (
        pytest.raises(ConcurrentWriteError, match="Run again: the next step takes what is pending then"),
        captured_step(media, settings, choose=overtaken),
    ):
        pass
    goes_on(media)


# --- lost history -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["declare", pytest.param("drop", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "lost", ["source replaced", "source expired", pytest.param("watermark expired", marks=pytest.mark.long)]
)
def test_after_lost_history_everything_is_computed_again_as_the_error_says(media: Lake, lost: str, way: str) -> None:
    lake = Lake(LakeConfig(home=media.config.home, protect=False))
    job(lake)
    if lost == "source replaced":
        lake.catalog.drop_table(PLAYS)
    play(lake, (3, 3, 3))
    if lost == "source expired":
        expire(lake, PLAYS)
    if lost == "watermark expired":
        append(lake, SCHEMA.empty_table())
        head = lake.table(DAILY).metadata.current_snapshot_id

        def expired(metadata: dict[str, Any]) -> dict[str, Any]:
            kept = [s for s in metadata["snapshots"] if s["snapshot-id"] == head]
            return {**metadata, "snapshots": kept, "snapshot-log": []}

        commit(lake.table(DAILY), expired)
    with pytest.raises(HistoryError) as error:
        job(lake)
    found = re.search(r"With `(on_\w+: rebuild)` declared, .*; or drop ([^,]+), if the job makes it", str(error.value))
    assert found
    if way == "drop":
        lake.catalog.drop_table(found[2])
    else:
        with lake.step(DAILY, [PLAYS], **yaml.safe_load(found[1])) as step:
            lake.table(DAILY).overwrite(new_rows(lake, step), snapshot_properties=step.properties)
    goes_on(lake)


def test_a_step_that_is_done_does_not_take_back_a_watermark_that_is_further(media: Lake) -> None:
    job(media)
    play(media, (3, 3, 3))
    interrupted(media)
    play(media, (4, 4, 4))
    head = media.table(PLAYS).metadata.current_snapshot_id
    assert head is not None
    marks = {PLAYS: Watermark(str(media.table(PLAYS).metadata.table_uuid), head)}
    append(media, rows_of_play(4, 4, 4), to_properties(marks))  # by a writer that does not know of steps
    assert invoke("step", DAILY, "--done").exit_code == 0
    assert read_marks(media.table(DAILY))[PLAYS].snapshot == head
    goes_on(media)


@pytest.mark.parametrize("is_killed", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("way", ["--done", pytest.param("--rerun", marks=pytest.mark.long)])
def test_a_rebuild_that_wrote_nothing_leaves_the_interrupted_step_as_it_was(
    media: Lake, is_killed: bool, way: str, request: pytest.FixtureRequest
) -> None:
    job(media)
    play(media, (3, 3, 3))
    interrupted(media)
    began = note(media)
    assert began is not None
    if way == "--rerun":
        media.table(DAILY).delete("account = 3")
    if is_killed:
        left = media.step(DAILY, [PLAYS], rebuild=True)
        left.__enter__()
        # Else the garbage collector ends it, within whatever test runs then.
        request.addfinalizer(lambda: left.__exit__(JobError, JobError("killed"), None))
        step_notes.change(media, note(media) or began, processes=(GONE,))
    else:
        with pytest.raises(JobNotStartedError), media.step(DAILY, [PLAYS], rebuild=True):
            raise JobNotStartedError("no program")
    with pytest.raises(StepUnknownError) as error:
        job(media)
    follow(error.value, way)
    if way == "--rerun":
        with media.step(DAILY, [PLAYS]) as step:
            assert step.id == began.id
            append(media, new_rows(media, step), step.properties)
    goes_on(media)

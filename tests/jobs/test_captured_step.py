"""`lake.step`: given captured changes and any job, each change reaches the job once, or somebody is told."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.errors import (
    ColumnNotFoundError,
    JobError,
    PipelineError,
    SnapshotExpiredError,
    TableClaimedError,
    TableNotFoundError,
    TableReplacedError,
)
from lake_assets.lake import TableId
from lake_assets.lake.metadata.metadata_commits import commit
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, read_marks
from lake_assets.runtime.processes import owner
from tests.support.daily_job import DAILY, PLAYS, append, job, new_rows, note, play, rows_of, rows_of_play

GONE, ELSEWHERE = owner((2**22 + 1, 1.0)), f"{'0' * 8}_1_1"
TARGET = TableId.parse(DAILY)


# --- windows and watermark ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carries", [True, False])
def test_each_change_reaches_the_job_once(media: Lake, carries: bool) -> None:
    assert job(media, carries=carries) == ("job" if carries else "step")
    assert rows_of(media) == rows_of(media, PLAYS)
    play(media, (1, 1, 5))
    play(media, (3, 3, 7), (3, 3, 7))
    job(media, carries=carries)
    assert rows_of(media) == rows_of(media, PLAYS)
    snapshots = len(media.table(DAILY).metadata.snapshots)
    job(media, carries=carries)  # nothing is pending
    assert rows_of(media) == rows_of(media, PLAYS)
    assert len(media.table(DAILY).metadata.snapshots) == snapshots
    assert note(media) is None
    assert media.tables("icdc") == []


def test_windows_stay_the_same_while_the_source_grows(media: Lake) -> None:
    with media.step(DAILY, [PLAYS]) as step:
        head = step.windows[PLAYS].head.snapshot
        play(media, (9, 9, 9))
        assert new_rows(media, step).num_rows == 2
        append(media, new_rows(media, step))
        assert step.is_initial
    assert read_marks(media.table(DAILY))[PLAYS].snapshot == head
    with media.step(DAILY, [PLAYS]) as step:
        assert not step.is_initial
        assert new_rows(media, step)["account"].to_pylist() == [9]


def test_an_error_in_the_job_leaves_the_watermark(media: Lake) -> None:
    with pytest.raises(ZeroDivisionError), media.step(DAILY, [PLAYS]):
        _ = 1 / 0
    assert note(media) is None  # the table is missing: nothing was written
    job(media)
    assert rows_of(media) == rows_of(media, PLAYS)


def test_a_job_that_makes_no_table_is_an_error(media: Lake) -> None:
    with pytest.raises(JobError, match="writes: elsewhere"), media.step(DAILY, [PLAYS]):
        pass
    assert note(media) is None


def test_a_job_that_writes_elsewhere_gets_a_table_for_its_watermark(media: Lake, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    for expected in (2, 0, 1):
        with media.step(DAILY, [PLAYS], writes="elsewhere") as step:
            assert new_rows(media, step).num_rows == expected
            out.write_text("written")
        if not expected:
            play(media, (5, 5, 5))
    assert rows_of(media) == {}


def test_watermarks_of_several_sources_move_together(media: Lake) -> None:
    play(media, (7, 7, 7), table="raw.other")
    with media.step(DAILY, [PLAYS, "raw.other"]) as step:
        append(media, new_rows(media, step))
    play(media, (8, 8, 8), table="raw.other")
    with media.step(DAILY, [PLAYS, "raw.other"]) as step:
        assert step.capture(PLAYS).is_empty
        assert not step.capture("raw.other").is_empty
        assert not step.is_empty
    marks = read_marks(media.table(DAILY))
    assert {s: m.snapshot for s, m in marks.items()} == {
        s: media.table(s).metadata.current_snapshot_id for s in (PLAYS, "raw.other")
    }


def test_a_rebuild_gives_the_job_everything(media: Lake) -> None:
    job(media)
    with media.step(DAILY, [PLAYS], rebuild=True) as step:
        assert step.is_initial
        assert new_rows(media, step).num_rows == 2
        media.table(DAILY).overwrite(new_rows(media, step), snapshot_properties=step.properties)
    assert rows_of(media) == rows_of(media, PLAYS)


def test_a_source_that_is_missing_is_an_error(media: Lake) -> None:
    with pytest.raises(TableNotFoundError, match="raw.playbak"), media.step(DAILY, ["raw.playbak"]):
        pass
    assert note(media) is None


def test_lost_history_stops_unless_declared(media: Lake) -> None:
    job(media)
    media.catalog.drop_table(PLAYS)
    play(media, (1, 1, 1))
    with pytest.raises(TableReplacedError, match="on_replaced: rebuild"), media.step(DAILY, [PLAYS]):
        pass
    with media.step(DAILY, [PLAYS], on_replaced="rebuild") as step:
        assert step.is_initial
        media.table(DAILY).overwrite(new_rows(media, step), snapshot_properties=step.properties)
    assert rows_of(media) == rows_of(media, PLAYS)


def test_a_watermark_that_expired_is_missed(media: Lake) -> None:
    job(media)
    media.table(DAILY).append(rows_of_play(3, 3, 3))  # the job's user adds a row by hand
    table = media.table(DAILY)
    newest = table.metadata.current_snapshot_id
    commit(
        table,
        lambda m: {**m, "snapshots": [s for s in m["snapshots"] if s["snapshot-id"] == newest], "snapshot-log": []},
    )
    with pytest.raises(SnapshotExpiredError, match="has expired"), media.step(DAILY, [PLAYS]):
        pass


def test_a_table_of_a_pipeline_is_not_taken_over(media: Lake) -> None:
    job(media)
    with media.table(DAILY).transaction() as change:
        change.set_properties({PIPELINE_PROPERTY: "plays"})
    with pytest.raises(TableClaimedError, match="'plays'"), media.step(DAILY, [PLAYS]):
        pass


# --- ranges, keys, tables for other processes -----------------------------------------------------------------------


def test_ranges_are_united_over_the_sources(media: Lake) -> None:
    play(media, (1, 5, 1), (1, 30, 1), table="raw.other")
    with media.step("agg.t", [PLAYS, "raw.other"], ranges=["day"], writes="elsewhere") as step:
        assert (step.ranges["day"].low, step.ranges["day"].high) == (date(2024, 1, 1), date(2024, 1, 30))
        assert step.env["LAKE_STEP_LOW_DAY"] == "2024-01-01"
        assert step.env["LAKE_STEP_HIGH_DAY"] == "2024-01-30"
    play(media, (1, 9, 1))
    with media.step("agg.t", [PLAYS, "raw.other"], ranges=["day"], writes="elsewhere") as step:
        assert (step.ranges["day"].low, step.ranges["day"].high) == (date(2024, 1, 9), date(2024, 1, 9))
    with media.step("agg.t", [PLAYS, "raw.other"], ranges=["day"], writes="elsewhere") as step:
        assert step.is_empty
        assert not step.ranges["day"].has_values
        assert step.env["LAKE_STEP_LOW_DAY"] == ""


@pytest.mark.parametrize(
    ("ranges", "error", "says"),
    [
        (["dya"], ColumnNotFoundError, "did you mean day"),
        ({"day": {"raw.plybck": "day"}}, PipelineError, "did you mean raw.playback"),
        ({"day": {PLAYS: "day", "raw.other": "seconds"}}, JobError, "another type in raw.other"),
    ],
)
def test_wrong_ranges_are_errors(media: Lake, ranges: object, error: type[Exception], says: str) -> None:
    play(media, (1, 5, 1), table="raw.other")
    with pytest.raises(error, match=says), media.step("agg.t", [PLAYS, "raw.other"], ranges=ranges) as step:  # type: ignore[arg-type]
        _ = step.ranges


def test_other_processes_read_what_was_captured(media: Lake) -> None:
    """Given a step with a lifetime; when a process that knows the environment alone reads; then it finds the rows."""
    code = """
import os
from lake_assets import Lake, LakeConfig
from lake_assets.jobs import current_step
step = current_step()
media = Lake(LakeConfig(home=os.environ["HOME_OF_LAKE"]))
rows = media.table(step.sources["raw.playback"].after).scan().to_arrow()
assert step.ranges["day"].low.day == 1, step.ranges
media.ensure_namespace(("agg",))
media.catalog.create_table("agg.playback_daily", rows.schema).append(rows, snapshot_properties=dict(step.properties))
"""
    with media.step(DAILY, [PLAYS], ranges=["day"], lifetime=timedelta(hours=2)) as step:
        env = {**dict(__import__("os").environ), **step.env, "HOME_OF_LAKE": str(media.config.home)}
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
        parameters = json.loads(step.env["LAKE_STEP"])
        assert parameters["sources"][PLAYS]["after"] == step.icdc(PLAYS).after
        after = step.icdc(PLAYS).after
    assert rows_of(media) == rows_of(media, PLAYS)
    # It outlives the block and a sweep, until its lifetime is over.
    assert after in {str(t) for t in media.tables("icdc")}
    with media.step("agg.other", [PLAYS], writes="elsewhere"):
        assert after in {str(t) for t in media.tables("icdc")}
    with media.table(after or "").transaction() as change:
        change.set_properties({"lake-assets.icdc.expires-ms": "1"})
    with media.step("agg.other", [PLAYS], writes="elsewhere"):
        assert not [t for t in media.tables("icdc") if str(t) == after]
    assert media.tables("icdc") == []
    assert rows_of(media) == rows_of(media, PLAYS)


def test_tables_without_a_lifetime_end_with_the_block(media: Lake) -> None:
    with media.step(DAILY, [PLAYS]) as step:
        append(media, new_rows(media, step), step.properties)
        assert media.tables("icdc") != []
    assert media.tables("icdc") == []

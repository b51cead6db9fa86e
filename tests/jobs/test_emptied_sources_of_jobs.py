"""Jobs over sources without rows: one that is new, was replaced by an empty table, or was created again; without Spark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lake_assets import Lake
from lake_assets.errors import TableReplacedError
from lake_assets.jobs.captured_step import CapturedStep
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.jobs.job_step import JobStep
from lake_assets.jobs.step_parameters import StepParameters
from lake_assets.jobs.step_settings import StepSettings
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.orchestration.sensing.pending_scan import scan
from lake_assets.pipeline import SnapshotPins
from lake_assets.pipeline.pending import pending_of
from lake_assets.tables.outcome import Outcome
from tests.support.daily_job import DAILY, PLAYS, SCHEMA, append, play, rows_of
from tests.support.upkeep import empty_in_place

OTHER = "raw.other"
SETTINGS = StepSettings(TableId.parse(DAILY), (TableId.parse(PLAYS), TableId.parse(OTHER)))


class Copied:
    """A job that keeps a copy of the rows of all its sources, and its calls."""

    summary = "Copies"

    def __init__(self) -> None:
        self.calls: list[StepParameters] = []

    def run(self, step: CapturedStep) -> Mapping[str, object]:
        """Write what changed."""
        lake, gone = step.lake, list[tuple[object, ...]]()
        self.calls.append(StepParameters.of_json(step.json()))
        if step.is_initial and lake.exists(DAILY):
            lake.table(DAILY).delete()
        for source in step.windows:
            tables = step.icdc(source)
            before, after = (
                lake.table(t).scan().to_arrow() if t else SCHEMA.empty_table() for t in (tables.before, tables.after)
            )
            append(lake, after)
            gone += [tuple(r.values()) for r in before.to_pylist()]
        for account, day, seconds in gone:
            lake.table(DAILY).delete(f"account = {account} AND day = '{day}' AND seconds = {seconds}")
        return {}


@pytest.fixture
def job() -> Copied:
    return Copied()


def run(lake: Lake, job: Copied, settings: StepSettings = SETTINGS) -> Outcome:
    spec = JobSpec(settings, job, "p")
    outcome = JobStep(spec).absorb(lake, SnapshotPins())
    assert pending_of(lake, spec) == []
    if lake.exists(DAILY):
        assert rows_of(lake) == rows_of(lake, PLAYS) + rows_of(lake, OTHER)
    return outcome


def test_a_job_receives_the_rows_of_an_emptied_source_and_goes_on_with_the_others(media: Lake, job: Copied) -> None:
    media.catalog.create_table(OTHER, SCHEMA)
    run(media, job)  # one source has always been empty
    assert job.calls[-1].is_initial
    play(media, (3, 3, 3), table=OTHER)
    run(media, job)
    assert not job.calls[-1].is_initial
    empty_in_place(media, PLAYS)
    play(media, (4, 4, 4), table=OTHER)
    spec = JobSpec(SETTINGS, job, "p")
    (due,) = scan(media, [spec], {DAILY: "step"}, 0.0)
    assert [w.source for w in due.windows] == [PLAYS, OTHER]
    assert re.search(r"raw\.playback \d+\.\.empty, raw\.other \d+\.\.\d+", due.work.what)
    assert run(media, job).status == "absorbed"
    call = job.calls[-1]
    assert (call.is_initial, call.is_empty, call.sources[PLAYS].end) == (False, False, None)
    assert call.sources[PLAYS].before
    assert not call.sources[PLAYS].after
    assert call.env["LAKE_STEP_END_RAW_PLAYBACK"] == ""
    assert read_marks(media.table(DAILY))[PLAYS].snapshot is None
    calls = len(job.calls)
    assert run(media, job).status == "nothing"
    assert len(job.calls) == calls
    play(media, (5, 5, 5))
    run(media, job)
    assert len(job.calls) == calls + 1


def test_a_job_whose_sources_have_always_been_empty_waits(plain_lake: Lake, job: Copied) -> None:
    plain_lake.ensure_namespace(("raw",))
    for table in (PLAYS, OTHER):
        plain_lake.catalog.create_table(table, SCHEMA)
    assert run(plain_lake, job).status == "waiting"
    assert job.calls == []


def test_a_job_computes_nothing_from_a_source_that_was_created_again_without_rows(media: Lake, job: Copied) -> None:
    media.catalog.create_table(OTHER, SCHEMA)
    run(media, job)
    media.catalog.drop_table(PLAYS)
    media.catalog.create_table(PLAYS, SCHEMA)
    with pytest.raises(TableReplacedError, match=r"`on_replaced: rebuild`"):
        run(media, job)
    run(media, job, replace(SETTINGS, on_replaced="rebuild"))
    assert (job.calls[-1].is_initial, job.calls[-1].is_empty, rows_of(media)) == (True, False, Counter())

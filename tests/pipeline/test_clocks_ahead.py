"""Clocks that run ahead and are set back: no table stops."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from lake_assets import Lake
from tests.support.clock import written_ahead
from tests.support.people import CITIES, OLDEST, People

TABLES = (
    "raw.events", "raw.events_files", "raw.events_rejected", "staging.people", "final.people", "agg.cities",
    "agg.oldest",
)  # fmt: skip


def test_spark_refuses_a_table_that_was_written_ahead(lake: Lake) -> None:
    """Iceberg refuses the commit; if it ever accepts it, timestamps need no correction."""
    people = People(lake)
    people.land()
    people.run()
    written_ahead(lake, "final.people", timedelta(hours=1))
    with pytest.raises(Exception, match="Invalid update timestamp"):
        people.sql("ALTER TABLE lake.final.people SET TBLPROPERTIES ('a' = 'b')")


@pytest.mark.long
@pytest.mark.parametrize(("seed", "steps"), [(1, 1), *(pytest.param(s, 3, marks=pytest.mark.long) for s in (1, 2, 3))])
def test_tables_that_clocks_ahead_have_written_are_absorbed_as_ever(lake: Lake, seed: int, steps: int) -> None:
    choose = random.Random(seed)
    people = People(lake, CITIES, OLDEST, seed=seed)
    people.land()
    people.feed.land_text("no json\n")
    people.check()
    for step in range(steps):
        ahead = TABLES if step == 0 else choose.sample(TABLES, 3)
        for table in ahead:
            written_ahead(lake, table, timedelta(hours=choose.choice([1, 30])), last=choose.randint(1, 3))
        people.land()
        if step < steps - 1:
            people.feed.land_text("no json\n")
        people.check()

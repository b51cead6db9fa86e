"""PIVOT and UNPIVOT are maintained by what changed, and equal what Spark makes of their text."""

from __future__ import annotations

import random

import pytest

from lake_assets import Lake
from lake_assets.models.sql.model_plan import plan
from tests.support.maintained_constructs import BY_STRATEGY
from tests.support.proven_queries import prove
from tests.support.seeds import seeds
from tests.support.table_changes import SCHEMAS


# `test_maintained_constructs` takes the same queries through shorter histories.
@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_models_equal_their_query_over_random_histories(lake: Lake, seed: int) -> None:
    queries = [sql for listed in BY_STRATEGY.values() for sql in listed if "PIVOT" in sql]
    prove(lake, random.Random(seed), queries, runs=4)


@pytest.mark.parametrize(
    ("clause", "why"),
    [
        ("PIVOT (count(id) FOR b IN (NULL))", "it is no plain value"),
        ("PIVOT (first(name) AS n, count(*) AS m FOR b IN (1))", "may be no numbers"),
        ("PIVOT (count(*) FILTER (WHERE v > 1) FOR b IN (1))", "in PIVOT"),
    ],
)
def test_what_it_means_elsewhere_is_not_known_and_the_reason_is_given(clause: str, why: str) -> None:
    planned = plan("agg.m", f"SELECT * FROM final.a {clause}", SCHEMAS)
    assert planned.strategy == "full"
    assert why in planned.why

"""Subqueries beside aggregates and in HAVING: maintained over the groups, and equal to what Spark makes of their text."""

from __future__ import annotations

import random

import pytest

from lake_assets import Lake
from lake_assets.models.sql.model_plan import plan
from tests.support.maintained_constructs import BY_STRATEGY
from tests.support.proven_queries import prove
from tests.support.seeds import seeds
from tests.support.table_changes import SCHEMAS


def _is_grouped_with_subquery(sql: str) -> bool:
    return "(SELECT" in sql and "GROUP BY" in sql.upper() and ("HAVING" in sql or "count(*)" in sql or "sum(" in sql)


# `test_maintained_constructs` takes the same queries through shorter histories.
@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_models_equal_their_query_over_random_histories(lake: Lake, seed: int) -> None:
    queries = [sql for listed in BY_STRATEGY.values() for sql in listed if _is_grouped_with_subquery(sql)]
    assert len(queries) >= 12
    prove(lake, random.Random(seed), queries, runs=4)


def test_a_change_of_the_groups_leaves_a_threshold_of_another_table_alone() -> None:
    sql = "SELECT b, count(*) AS n FROM final.a GROUP BY b HAVING count(*) > (SELECT min(n) FROM final.d)"
    planned = plan("agg.m", sql, SCHEMAS)
    assert (planned.strategy, planned.key) == ("keys", ("b",))


def test_a_share_of_the_total_of_the_same_rows_is_computed_in_full() -> None:
    sql = "SELECT b, sum(v) / (SELECT sum(v) FROM final.a) AS share FROM final.a GROUP BY b"
    planned = plan("agg.m", sql, SCHEMAS)
    assert planned.strategy == "full"
    assert planned.why == "each row is compared with a total of all rows, which any change may alter"

"""Rare constructs that are maintained by what changed: VALUES, LATERAL, EXISTS and IN within expressions, and others."""

from __future__ import annotations

import random

import pytest

from lake_assets import Lake
from lake_assets.errors import ModelError
from lake_assets.models.sql.model_plan import plan
from tests.support import table_changes
from tests.support.maintained_constructs import BY_STRATEGY
from tests.support.models import Proof
from tests.support.queries import TABLES, Query
from tests.support.seeds import of_today, seeds
from tests.support.table_changes import SCHEMAS

QUERIES = [(sql, strategy) for strategy, queries in BY_STRATEGY.items() for sql in queries]
KEPT = [sql for sql, strategy in QUERIES if strategy != "full"]


@pytest.mark.parametrize(("sql", "strategy"), QUERIES)
def test_they_have_their_strategy(sql: str, strategy: str) -> None:
    assert plan("agg.m", sql, SCHEMAS).strategy == strategy


def test_more_values_than_spark_plans_quickly_are_computed_in_full() -> None:
    values = ", ".join(f"({n})" for n in range(201))
    planned = plan("agg.m", f"SELECT id FROM final.a JOIN (VALUES {values}) x(k) ON b = k", SCHEMAS)
    assert (planned.strategy, planned.why) == ("full", "it has VALUES with more than 200 rows: store them in a table")


@pytest.mark.parametrize(
    "rows",
    [
        "range(0)", "range(9, 3)", "range(1, 9, 2)", "range(1 + 1)", "inline(array(struct(1, 2)))",
        "explode(array(1)) x(a, b)",
    ],
)  # fmt: skip
def test_other_functions_in_from_are_refused_with_what_is_possible(rows: str) -> None:
    with pytest.raises(ModelError, match="write range\\(n\\), explode\\(...\\) or posexplode"):
        plan("agg.m", f"SELECT 1 AS one FROM {rows}", SCHEMAS)


@pytest.mark.long
@pytest.mark.parametrize("queries", [KEPT[::16], pytest.param(KEPT, marks=pytest.mark.long)], ids=["some", "all"])
def test_they_equal_their_query_after_two_changes(lake: Lake, queries: list[str]) -> None:
    prove(lake, random.Random(5), queries, runs=2)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_they_equal_their_query_after_every_change(lake: Lake, seed: int) -> None:
    prove(lake, random.Random(seed), of_today([sql for sql, _ in QUERIES]), runs=4)


def prove(lake: Lake, choose: random.Random, queries: list[str], runs: int) -> None:
    """Compare models with their queries over a random history."""
    named = {f"agg.m{n}": Query(sql, (), not_duckdb="another dialect") for n, sql in enumerate(queries)}
    proof = Proof(lake, named, list(TABLES))
    proof.sql(*table_changes.create(choose), *table_changes.fill(choose))
    proof.run()
    for _ in range(runs):
        proof.sql(*(s for _ in range(3) for s in table_changes.change(choose, lake)))
        # What most of the queries read.
        proof.sql(*(table_changes.insert(choose, table, 2) for table in ("final.a", "final.b")))
        proof.run()
    assert proof.strategies["keys"] + proof.strategies["retract"] > len(queries) / 2

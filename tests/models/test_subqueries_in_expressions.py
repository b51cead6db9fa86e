"""EXISTS and IN under OR, CASE and in lists of SELECT, maintained by the keys that they compare."""

from __future__ import annotations

import random

import pytest

from lake_assets import Lake
from lake_assets.models.sql.model_plan import plan
from tests.models.test_constant_relations import SCHEMAS
from tests.support import table_changes
from tests.support.models import Proof
from tests.support.queries import TABLES, Query

BY_KEYS = (
    "SELECT id FROM final.a WHERE b IN (SELECT id FROM final.b) OR v > 3",
    "SELECT id FROM final.a WHERE (b IN (SELECT id FROM final.b WHERE w > 1) OR ok) AND (name = 'n' OR EXISTS (SELECT 1 FROM final.c WHERE c.a_id = a.id))",
    "SELECT id, CASE WHEN EXISTS (SELECT 1 FROM final.b WHERE b.id = a.b) THEN 'known' WHEN v IN (SELECT w FROM final.b) THEN 'weight' ELSE 'none' END AS k FROM final.a",
    "SELECT id, NOT EXISTS (SELECT 1 FROM final.b WHERE b.id = a.b AND b.w > 1) AS missing FROM final.a",
    "SELECT b, sum(IF(v IN (SELECT w FROM final.b), 1, 0)) AS n FROM final.a GROUP BY b",
    "SELECT b, count(*) FILTER (WHERE EXISTS (SELECT 1 FROM final.b WHERE b.id = a.b)) AS n FROM final.a GROUP BY b",
    "SELECT id FROM final.a WHERE (b, v) IN (SELECT id, w FROM final.b) OR id = 3",
    "SELECT id FROM final.a WHERE EXISTS (SELECT 1 FROM final.b WHERE b.id = a.b) OR NOT EXISTS (SELECT 1 FROM final.d WHERE d.n = a.v)",
)
IN_FULL = (
    "SELECT id FROM final.a WHERE NOT (b IN (SELECT id FROM final.b) OR v > 3)",
    "SELECT id, b IN (SELECT id FROM final.b) AS known FROM final.a",
    "SELECT id, CASE ok WHEN b IN (SELECT id FROM final.b) THEN 1 END AS k FROM final.a",
    "SELECT id, EXISTS (SELECT 1 FROM final.b WHERE b.id < a.b) AS k FROM final.a",
)


@pytest.mark.parametrize("sql", [*BY_KEYS, *IN_FULL])
def test_they_are_joins_where_null_counts_as_false(sql: str) -> None:
    assert plan("agg.m", sql, SCHEMAS).strategy == ("keys" if sql in BY_KEYS else "full")


def test_they_equal_their_query_after_every_change(lake: Lake) -> None:
    choose = random.Random(11)
    queries = {f"agg.m{n}": Query(sql, (), not_duckdb="another dialect") for n, sql in enumerate([*BY_KEYS, *IN_FULL])}
    proof = Proof(lake, queries, list(TABLES))
    proof.sql(*table_changes.create(choose), *table_changes.fill(choose))
    proof.run()
    for _ in range(3):
        proof.sql(*(s for _ in range(3) for s in table_changes.change(choose, lake)))
        proof.run()
    assert proof.strategies["keys"] > len(BY_KEYS)

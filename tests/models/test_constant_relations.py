"""Models over rows that belong to no table: VALUES, a SELECT without FROM, a scalar subquery of constants."""

from __future__ import annotations

import random

import pytest

from lake_assets import Lake
from lake_assets.lake import TableId
from lake_assets.models.sql.model_plan import plan
from tests.support import table_changes
from tests.support.models import Proof
from tests.support.queries import TABLES, Query

SCHEMAS = {
    TableId.parse(table): {c: kind.lower() for c, kind in columns.items()}
    for table, columns in table_changes.COLUMNS.items()
}
RETRACT = (
    "WITH params AS (SELECT 2 AS least, 'n' AS skipped) SELECT a.id, a.v * p.least AS z FROM final.a CROSS JOIN params p WHERE a.name <> p.skipped",
    "WITH params AS (SELECT 1 AS least) SELECT b, count(*) AS n, sum(v) AS s FROM final.a WHERE v >= (SELECT least FROM params) GROUP BY b",
    "SELECT id, (SELECT 5) AS five, v + (SELECT 0.5) AS more FROM final.a",
    "SELECT x.name, count(*) AS n, sum(a.v * x.f) AS s FROM final.a JOIN (VALUES (1, 2, 'one'), (2, 3, 'two'), (3, NULL, 'two')) AS x(k, f, name) ON a.b = x.k GROUP BY x.name",
    "SELECT id, 'a' AS origin, v FROM final.a UNION ALL SELECT -1, 'none', NULL UNION ALL SELECT -2, 'none', 1.5",
    "SELECT a.id, s.n FROM final.a JOIN (SELECT explode(sequence(0, 3)) AS n) s ON s.n < a.v",
)
KEYS = (
    "SELECT a.id, x.name FROM final.a LEFT JOIN VALUES (1, 'one'), (2, 'two'), (CAST(NULL AS INT), 'none') AS x(k, name) ON a.b = x.k",
    "SELECT x.k, count(a.id) AS n, max(a.v) AS m FROM (VALUES (1), (2), (99)) AS x(k) LEFT JOIN final.a a ON a.b = x.k GROUP BY x.k",
    "WITH spine AS (SELECT explode(sequence(DATE '2024-01-30', DATE '2024-02-02')) AS day) SELECT s.day, count(d.g) AS n FROM spine s LEFT JOIN final.d ON d.day = s.day GROUP BY s.day",
    "SELECT id FROM final.a WHERE name IN (SELECT x.c FROM (VALUES ('n'), ('ny')) x(c))",
    "SELECT id FROM final.a WHERE b NOT IN (SELECT x.c FROM VALUES (1), (2) AS x(c))",
    "SELECT id, (SELECT 1 WHERE 1 > 2) AS none FROM final.a",
    "SELECT b FROM final.a EXCEPT SELECT 1",
    "SELECT a.id, x.k FROM final.a FULL JOIN (VALUES (1), (-7)) AS x(k) ON a.b = x.k",
)


@pytest.mark.parametrize("sql", [*RETRACT, *KEYS])
def test_they_are_maintained_by_what_changed_in_the_tables(sql: str) -> None:
    assert plan("agg.m", sql, SCHEMAS).strategy == ("retract" if sql in RETRACT else "keys")


def test_more_rows_than_spark_plans_quickly_are_computed_in_full() -> None:
    values = ", ".join(f"({n})" for n in range(201))
    planned = plan("agg.m", f"SELECT id FROM final.a JOIN (VALUES {values}) x(k) ON b = k", SCHEMAS)
    assert (planned.strategy, planned.why) == ("full", "it has VALUES with more than 200 rows: store them in a table")


def test_they_equal_their_query_after_every_change(lake: Lake) -> None:
    choose = random.Random(7)
    queries = {f"agg.m{n}": Query(sql, (), not_duckdb="another dialect") for n, sql in enumerate([*RETRACT, *KEYS])}
    proof = Proof(lake, queries, list(TABLES))
    proof.sql(*table_changes.create(choose), *table_changes.fill(choose))
    proof.run()
    for _ in range(3):
        proof.sql(*table_changes.change(choose, lake), *table_changes.change(choose, lake))
        proof.run()
    assert proof.strategies["full"] == len(queries)  # the first run

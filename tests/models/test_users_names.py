"""Messages of models use the names of their queries, never the compiler's column names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from lake_assets.lake import TableId
from lake_assets.models.operators.maintenance import describe, maintained, reason_all_rows_change
from lake_assets.models.operators.query_tree import walk
from lake_assets.models.sql.model_plan import ModelPlan, parse, plan
from lake_assets.models.sql.sql_errors import column_problems
from tests.support.queries import TABLES, TYPES, queries
from tests.support.schemas import SCHEMAS
from tests.support.seeds import long_seeds

FLIGHTS = {
    **SCHEMAS,
    TableId.parse("final.flights"): {"id": "bigint", "carrier": "string", "at_5": "date", "miles": "double"},
    TableId.parse("final.airlines"): {"carrier": "string", "name": "string", "rank": "int", "code": "bigint"},
}
JOIN = "FROM final.flights f JOIN final.airlines a ON f.carrier = a.carrier"
QUERIES = [
    f"SELECT a.name, max(f.id) AS last {JOIN} WHERE f.miles > 3 GROUP BY a.name",
    f"SELECT count(*) AS n {JOIN} GROUP BY a.name",
    f"SELECT a.name, sum(f.miles) AS n {JOIN} GROUP BY a.name",
    f"SELECT a.name, 1 + count(DISTINCT f.id) AS n {JOIN} GROUP BY a.name",
    f"SELECT a.name, avg(a.rank) AS r {JOIN} GROUP BY a.name",
    f"SELECT f.carrier, count(*) AS n {JOIN} GROUP BY a.name",
    f"SELECT f.carrier, row_number() OVER (PARTITION BY f.at_5 ORDER BY f.id) AS n {JOIN}",
    f"SELECT f.carrier, row_number() OVER (ORDER BY f.id) AS n, count(*) AS m {JOIN} GROUP BY a.name, f.carrier",
    f"SELECT f.at_5, explode(array(f.carrier)) AS c, count(*) AS n {JOIN} GROUP BY f.at_5",
    "SELECT f.id FROM final.flights f LEFT JOIN final.airlines a ON f.carrier = a.code",
    "SELECT f.id, g.id AS other FROM final.flights f FULL JOIN final.flights g ON f.id < g.id",
    "SELECT f.id FROM final.flights f LEFT JOIN final.airlines a ON f.carrier < a.name",
    "WITH w AS (SELECT carrier AS c, count(*) AS n FROM final.flights GROUP BY carrier) SELECT c, n FROM w WHERE n > 2",
    "SELECT f.id FROM final.flights f WHERE f.miles = (SELECT max(g.miles) FROM final.flights g WHERE g.carrier = f.carrier)",
    "SELECT f.id FROM final.flights f WHERE EXISTS (SELECT 1 FROM final.airlines a WHERE a.carrier = f.carrier LIMIT 1)",
    f"SELECT grouping(f.at_5) AS g, count(*) AS n {JOIN} GROUP BY f.carrier",
]  # fmt: skip


def texts(model_plan: ModelPlan) -> Iterator[str]:
    """Yield all texts of a plan that users see."""
    yield from (model_plan.why, model_plan.key_why, *model_plan.warnings)
    if model_plan.tree:
        for node in walk(model_plan.tree.root):
            yield from (describe(node), maintained(node))
        yield reason_all_rows_change(model_plan.tree.root, set(FLIGHTS))


@pytest.mark.parametrize("sql", QUERIES)
def test_names_are_those_of_the_query(sql: str) -> None:
    messages = list(texts(plan("agg.m", sql, FLIGHTS)))
    words = {*re.findall(r"\w+", sql)}
    assert {word for text in messages for word in re.findall(r"\w+_\d+", text)} <= words, messages


def test_columns_are_shown_with_the_alias_of_their_table() -> None:
    tree = plan("agg.m", QUERIES[0], FLIGHTS).tree
    assert tree is not None
    descriptions = [describe(node) for node in walk(tree.root)]
    assert "GROUP BY a.name" in descriptions
    assert "INNER JOIN ON f.carrier = a.carrier" in descriptions
    assert "filter f.miles > 3" in descriptions


@pytest.mark.parametrize("seed", [7, *long_seeds(8, 5)])
def test_random_queries_show_their_own_names(seed: int) -> None:
    schemas = {TableId.parse(t): {c: TYPES[k].lower() for c, k in kinds.items()} for t, kinds in TABLES.items()}
    for query in queries(seed, 40):
        words = set(re.findall(r"\w+", query.sql))
        model_plan = plan("agg.m", query.sql, schemas)
        assert {w for text in texts(model_plan) for w in re.findall(r"\w+_\d+", text)} <= words, query.sql


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "SELECT nmae FROM final.airlines",
            "no column nmae (did you mean name?): final.airlines has carrier, name, rank, code",
        ),
        (
            "SELECT a.nmae FROM final.airlines a",
            "no column nmae in final.airlines (did you mean name?): it has carrier, name, rank, code",
        ),
        ("SELECT zzz FROM final.airlines", "no column zzz: final.airlines has carrier, name, rank, code"),
        ("SELECT w.m FROM (SELECT id AS n FROM final.users) w", "no column m in w: it has n"),
    ],
)
def test_a_column_that_is_missing_is_named_with_the_nearest_one(sql: str, message: str) -> None:
    assert [text for _, text in column_problems(parse("agg.m", sql), FLIGHTS)] == [message]

"""Models over values whose types differ, or that only the whole query determines: each equals its query."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.models.sql.model_plan import plan
from tests.support.models import Proof
from tests.support.queries import Query

COLUMNS = {
    "final.l": {
        "id": "int", "s": "string", "x": "double", "ok": "boolean", "v": "int", "p": "decimal(10,2)", "arr": "array<int>",
        "arr2": "array<int>", "MixedCase": "int", "day": "date",
    },
    "final.r": {
        "id": "int", "s": "string", "x": "double", "ok": "boolean", "w": "bigint", "q": "decimal(12,4)", "day": "string",
    },
}  # fmt: skip
TABLES = [
    *(
        f"CREATE TABLE {t} ({', '.join(f'{c} {k}' for c, k in columns.items())}) USING iceberg "
        "TBLPROPERTIES ('format-version' = '3')"
        for t, columns in COLUMNS.items()
    ),
    "INSERT INTO final.l VALUES (1, '1', 0D, true, 1, 1.00, array(1, 2), array(3, 4), 7, DATE '2024-01-01'), "
    "(2, '02', -0D, false, 2, 2.50, array(5), array(6), 8, DATE '2024-01-02'), "
    "(3, '3', 9007199254740992D, NULL, 3, NULL, NULL, NULL, 9, NULL), "
    "(9, '01', 0D, true, 4, 4.00, array(1), array(2), 7, DATE '2024-01-01')",
    "INSERT INTO final.r VALUES (1, '1', 0D, true, 1, 1.0000, '2024-01-01'), (2, '2', -0D, NULL, 2, 2.5000, '2024-1-1'), "
    "(4, '01', 5D, false, 9007199254740993, 4.0000, '2024-01-03'), (5, '1', 5D, false, 9007199254740992, 4.0000, NULL)",
]
STEPS = [
    ["DELETE FROM final.r WHERE s = '01'", "INSERT INTO final.r VALUES (6, ' 2', 3D, true, 9, 1.2500, '2024-1-2')"],
    [
        "INSERT INTO final.l VALUES (4, '1', -0D, true, 5, 9.00, array(4), array(1), 5, DATE '2024-01-02')",
        "UPDATE final.l SET v = 6 WHERE id = 2",
        "DELETE FROM final.l WHERE id = 9",
        "DELETE FROM final.r WHERE day = '2024-01-01' OR s = ' 2'",
    ],
]
# Values that equal the same value need not be equal: '01' = 1 and '1' = 1.
KINDS = [
    "SELECT l.id, r.s FROM final.l LEFT JOIN final.r ON l.id = r.s",
    "SELECT l.id, r.s FROM final.l FULL JOIN final.r ON l.id = r.s",
    "SELECT l.id FROM final.l WHERE NOT EXISTS (SELECT 1 FROM final.r WHERE r.s = l.id)",
    "SELECT l.id, l.s FROM final.l WHERE l.id IN (SELECT s FROM final.r)",
    "SELECT l.id, l.s FROM final.l WHERE l.id NOT IN (SELECT s FROM final.r WHERE s IS NOT NULL)",
    "SELECT l.id, (SELECT sum(r.w) FROM final.r WHERE r.s = l.id) AS t FROM final.l",
    "SELECT l.id, r.id AS other FROM final.l LEFT JOIN final.r ON l.day = r.day",
    "SELECT l.id, r.id AS other FROM final.l LEFT JOIN final.r ON l.x = r.w",
    "SELECT l.id, r.w FROM final.r LEFT JOIN final.l ON l.id = r.s WHERE r.s <> 'x'",
    "SELECT l.id, r.id AS other FROM final.l LEFT JOIN final.r ON coalesce(l.s, 1) = r.s",
]
KEPT = [
    "SELECT l.id, r.w FROM final.l LEFT JOIN final.r ON l.id = r.w",
    "SELECT l.id, l.p FROM final.l WHERE l.p IN (SELECT q FROM final.r) OR l.id IN (SELECT id FROM final.r)",
    "SELECT l.id, l.p FROM final.l FULL JOIN final.r ON l.p = r.q AND l.v = r.id",
    "SELECT l.id, r.s, r.w FROM final.l JOIN final.r ON l.id = r.s",
    "SELECT l.v, count(r.w) AS n FROM final.l JOIN final.r ON l.id = r.s GROUP BY l.v",
    "SELECT c.s, count(ab.w) AS n, max(ab.w) AS m FROM final.l c "
    "JOIN (SELECT e.id, r.w FROM final.l e JOIN final.r r ON e.id = r.s) ab ON ab.id = c.s GROUP BY c.s",
    "SELECT l.id, q.s, q.n FROM (SELECT id, coalesce(max(CASE WHEN s = '1' THEN s END), 1) AS c FROM final.l GROUP BY id) l "
    "JOIN (SELECT s, count(*) AS n FROM final.r WHERE s LIKE '%1' GROUP BY s) q ON l.c = q.s",
    # The branches of a set operation have one type.
    "SELECT CAST(k AS STRING) AS k FROM (SELECT v AS k FROM final.l UNION ALL SELECT q FROM final.r)",
    "SELECT CAST(k AS STRING) AS k, max(n) AS n FROM (SELECT v AS k, id AS n FROM final.l UNION ALL "
    "SELECT q, id FROM final.r) GROUP BY CAST(k AS STRING)",
    "SELECT k / 3 AS k, max(n) AS n FROM (SELECT v AS k, id AS n FROM final.l UNION ALL SELECT q, id FROM final.r) "
    "GROUP BY k / 3",
    "SELECT k + 1 AS k, n FROM (SELECT 2147483647 AS k, id AS n FROM final.l UNION ALL SELECT w, id FROM final.r)",
    "SELECT id FROM final.l INTERSECT SELECT s FROM final.r",
    "SELECT id FROM final.l EXCEPT SELECT s FROM final.r",
    "SELECT id FROM final.l UNION SELECT s FROM final.r",
    "SELECT k, max(n) AS n FROM (SELECT id AS k, v AS n FROM final.l UNION ALL SELECT s, w FROM final.r) GROUP BY k",
    "SELECT k, count(*) AS n FROM (SELECT id AS k FROM final.l UNION ALL SELECT s FROM final.r) GROUP BY k",
    "SELECT id, e FROM (SELECT id, arr AS k FROM final.l UNION ALL SELECT id, NULL FROM final.r) "
    "LATERAL VIEW OUTER explode(k) t AS e",
    "SELECT g[0] AS g, max(n) AS n FROM (SELECT arr AS g, count(*) AS n FROM final.l GROUP BY ROLLUP (arr)) GROUP BY g[0]",
    # 0.0 and -0.0 are one group, but two texts.
    "SELECT CAST(x AS STRING) AS t, max(n) AS n FROM (SELECT abs(x) AS x, count(*) AS n FROM final.l GROUP BY abs(x)) "
    "GROUP BY CAST(x AS STRING)",
    "SELECT CAST(-x AS STRING) LIKE '%0%' AS t, max(id) AS m FROM (SELECT x, id, row_number() OVER (PARTITION BY x "
    "ORDER BY id) AS rn FROM final.l) WHERE rn = 3 GROUP BY CAST(-x AS STRING) LIKE '%0%'",
]
WHOLE = [
    "SELECT id, hash(*) AS h FROM final.r",
    "SELECT id, to_json(struct(*)) AS j FROM final.r",
    "SELECT ok, count(DISTINCT *) AS n FROM final.r GROUP BY ok",
    "SELECT id, to_json(struct(MixedCase, v AS fooBar)) AS j FROM final.l",
    "SELECT id, to_json(named_struct('myField', v)) AS j FROM final.l",
    "SELECT id, to_json(struct(ID)) AS j FROM final.l",
    "SELECT id, to_json(arrays_zip(arr, arr2)) AS j FROM final.l",
    "SELECT id, transform(arrays_zip(arr, arr2), y -> y.arr + y.arr2) AS j FROM final.l",
]
# Maps cannot be compared, so the rows of touched keys are written whether they differ or not.
NOT_COMPARED = "SELECT ok, map_from_entries(collect_list(struct(id, w))) AS m FROM final.r GROUP BY ok"
# Spark accepts these queries, but not the parts that a step runs.
FALLEN_BACK = [
    "SELECT id, explode(map('a', v)) FROM final.l",
    "SELECT id, named_struct('a b', v) AS st FROM final.l",
]


def proof_of(lake: Lake, queries: list[str]) -> Proof:
    models = {f"agg.m{n}": Query(q, (), not_duckdb="another dialect") for n, q in enumerate(queries)}
    proof = Proof(lake, models, list(COLUMNS))
    proof.sql(*TABLES)
    proof.run()
    return proof


@pytest.mark.parametrize("queries", [KEPT[::480], pytest.param(KEPT, marks=pytest.mark.long)], ids=["some", "all"])
def test_models_over_values_of_several_types_equal_their_queries(lake: Lake, queries: list[str]) -> None:
    proof = proof_of(lake, queries)
    for statements in STEPS:
        proof.sql(*statements)
        assert not [o for o in proof.run().values() if "it compares" in (o.why or "")]
    assert proof.strategies["keys"] + proof.strategies["retract"] > len(queries)


@pytest.mark.long
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.long)])
def test_models_computed_from_their_original_text_equal_their_queries(lake: Lake, every: int) -> None:
    proof = proof_of(lake, [*KINDS, *WHOLE][::every])
    for statements in STEPS:
        proof.sql(*statements)
        proof.run()


@pytest.mark.parametrize("sql", [*KINDS[:-1], *WHOLE])
def test_keys_of_several_types_are_refused_when_planning(sql: str) -> None:
    model_plan = plan("agg.m", sql, {TableId.parse(t): columns for t, columns in COLUMNS.items()})
    assert model_plan.strategy == "full", model_plan.why


@pytest.mark.long
def test_a_step_that_spark_does_not_accept_is_computed_in_full(lake: Lake) -> None:
    proof = proof_of(lake, FALLEN_BACK)
    proof.may_fail_in_parts = True
    proof.sql("UPDATE final.r SET w = w + 1", "UPDATE final.l SET v = v + 1 WHERE id = 1")
    assert all(o.strategy == "full" for o in proof.run().values())


@pytest.mark.long
def test_rows_with_maps_are_computed_for_their_keys(lake: Lake) -> None:
    proof = proof_of(lake, [NOT_COMPARED])
    proof.sql(
        "UPDATE final.r SET w = w + 1", "DELETE FROM final.r WHERE ok", "UPDATE final.r SET ok = true WHERE id = 1"
    )
    assert [o.strategy for o in proof.run().values()] == ["keys"]


def test_a_key_is_claimed_where_its_types_are_certain() -> None:
    schemas = {TableId.parse(t): columns for t, columns in COLUMNS.items()}
    joined = "SELECT l.id AS l_id, q.n, q.{1} AS k FROM final.l l JOIN (SELECT {1}, count(*) AS n FROM final.r GROUP BY {1}) q ON l.{0} = q.{1}"
    keys = {frozenset({"l_id"})}
    for left, right, is_key in (("id", "w", True), ("s", "s", True), ("id", "s", False), ("p", "q", True)):
        model_plan = plan(
            "agg.m", joined.format(left, right), schemas, keys=lambda t: [["id"]] if t.name == "l" else []
        )
        assert (frozenset(model_plan.key) in keys) is is_key, (left, right, model_plan.key)


def test_a_window_may_be_named_by_another() -> None:
    sql = (
        "SELECT id, v FROM final.l QUALIFY count(*) OVER w2 > 1 AND row_number() OVER (w1 ORDER BY id) = 1 "
        "WINDOW w1 AS (PARTITION BY v), w2 AS (w1)"
    )
    model_plan = plan("agg.m", sql, {TableId.parse(t): columns for t, columns in COLUMNS.items()})
    assert model_plan.query.sql("spark").count("PARTITION BY `l`.`v`") == 2


def test_a_type_that_the_lake_cannot_store_is_named(lake: Lake) -> None:
    proof = Proof(lake, {"agg.m": Query("SELECT id, parse_json(s) AS js FROM final.l", ())}, list(COLUMNS))
    proof.sql(*TABLES)
    with pytest.raises(AssertionError, match="js: of type VARIANT"):
        proof.run()
    assert not lake.exists("agg.m")


def test_a_function_instead_of_a_table_is_named() -> None:
    with pytest.raises(ModelError, match="RANGE"):
        plan("agg.m", "SELECT t.id FROM range(3, 1) t", {})

"""Queries mean what Spark makes of their text: names and scopes, generators, times, NaN, signs of zeros, overflows."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.verification import verify
from tests.support.models import Proof
from tests.support.queries import Query

TABLES = (
    "CREATE TABLE final.a (id INT, v INT) USING iceberg TBLPROPERTIES ('format-version' = '3')",
    "CREATE TABLE final.b (id INT, g STRING) USING iceberg TBLPROPERTIES ('format-version' = '3')",
    "INSERT INTO final.a VALUES (1, 1), (2, 2), (NULL, 3)",
    "INSERT INTO final.b VALUES (1, 'x'), (3, 'y'), (NULL, NULL)",
)
# Texts that were misread or refused, although Spark accepts them.
MEANT = {
    # It silently lost its join and had other rows.
    "joined_in_parentheses": "SELECT a.id AS id, b.g AS g FROM final.a a LEFT JOIN (final.b b JOIN final.a c ON b.id = c.v) ON a.id = b.id",
    "left_in_parentheses": "SELECT a.id AS id, b.g AS g FROM final.a a JOIN (final.b b LEFT JOIN final.a c ON b.id = c.v) ON a.v = b.id",
    "pivot": "SELECT * FROM final.b PIVOT (count(id) AS n FOR g IN ('x', 'y'))",
    "unpivot": "SELECT * FROM final.a UNPIVOT (value FOR name IN (id, v))",
    "named_columns": "SELECT p.y AS y, count(*) AS n FROM final.a AS p (x, y) GROUP BY p.y",
    "two_CTEs_of_a_name": "WITH c AS (SELECT id, v FROM final.a) SELECT d.id AS id, c.v AS v, d.n AS n FROM (WITH c AS (SELECT id, g FROM final.b) SELECT id, count(g) AS n FROM c GROUP BY id) d JOIN c ON c.id = d.id",
    "case_of_a_CTE": "WITH Counted AS (SELECT v, count(*) AS n FROM final.a GROUP BY v) SELECT v, n FROM cOUNTED",
    "hint": "SELECT /*+ BROADCAST(b) */ a.id AS id, b.g AS g FROM final.a a JOIN final.b b ON a.id = b.id",
    "grouping_in_having": "SELECT v + 1 AS w, id, count(*) AS n FROM final.a GROUP BY ROLLUP (v + 1, id) HAVING grouping(id) = 0",
    "layers_before_columns": "SELECT final.a.id AS id, final.b.g AS g FROM final.a JOIN final.b ON final.a.id = final.b.id",
    "no_names": "SELECT v, count(*), max(id) + 1 FROM final.a GROUP BY v",
    # The rows of a generator, although no column of it is read and each row has a key.
    "exploded_and_dropped": "SELECT id FROM (SELECT id, explode(array(v, id)) AS e FROM final.a)",
    "exploded_and_counted": "SELECT v, count(*) AS n FROM (SELECT v, explode(array(v, id)) AS e FROM final.a) GROUP BY v",
    "exploded_with_a_key": "SELECT id, explode(array(0, n)) AS e FROM (SELECT id, count(*) AS n FROM final.b GROUP BY id)",
    "exploded_groups": "SELECT id, explode(array(0, count(*))) AS e FROM final.b GROUP BY id",
    "a_list_of_nothing": "SELECT a.id AS id, (SELECT sort_array(collect_list(b.g)) FROM final.b b WHERE b.id = a.v) AS gs FROM final.a a",
    "columns_of_a_CTE": "WITH c (x, y) AS (SELECT id, v FROM final.a) SELECT y, count(x) AS n FROM c GROUP BY y",
    "formatted": "SELECT id, to_char(v, '999') AS t, to_date('2024-01-02', 'yyyy-MM-dd') AS d FROM final.a",
    "listed": "SELECT v, listagg(id) WITHIN GROUP (ORDER BY id) AS l, percentile_cont(0.3) WITHIN GROUP (ORDER BY id) AS p FROM final.a GROUP BY v",
    "parsed": "SELECT g, max(variant_get(parse_json(concat('[', id, ']')), '$[0]', 'int')) AS m FROM final.b GROUP BY g",
    "spans": "SELECT id, TIMESTAMP_NTZ '2024-01-01 00:00:00' - INTERVAL 1 DAY 2 HOURS AS m, v & 1 << 3 AS w FROM final.a",
    "frequencies": "SELECT v, percentile(id, 0.5, 2) AS p FROM final.a GROUP BY v",
    "names_of_a_star": "SELECT * FROM (SELECT v AS Foo, count(*) AS N FROM final.a GROUP BY v)",
    "exists_of_exploded": "SELECT id FROM final.a a WHERE EXISTS (SELECT explode(filter(array(b.id), x -> x > 1)) FROM final.b b WHERE b.id = a.v)",
    "in_exploded": "SELECT id FROM final.a WHERE id IN (SELECT explode(array(id, 2)) FROM final.b)",
    "exploded_beside_a_window": "SELECT id, explode(array(v, id)) AS e, count(*) OVER (PARTITION BY v) AS n FROM final.a",
    "exploded_in_two": "SELECT id, p, c FROM (SELECT id, posexplode(array(v, id)) AS (p, c) FROM final.a)",
    # Spark drops rows without a time, and repeats rows in several windows.
    "windows_of_time": "SELECT window.start AS s, count(*) AS n FROM final.a GROUP BY window(timestamp_seconds(v), '2 seconds')",
    "windows_that_overlap": "SELECT id, window(timestamp_seconds(n), '2 seconds', '1 second').start AS w FROM (SELECT id, count(*) AS n FROM final.b GROUP BY id)",
    "rows_without_a_window": "SELECT v, count(*) AS n FROM (SELECT v, window(timestamp_seconds(v), '2 seconds') AS w FROM final.a) GROUP BY v",
    "sessions": "SELECT v, session_window.end AS e, count(*) AS n FROM final.a GROUP BY v, session_window(timestamp_seconds(id), '2 seconds')",
    "alias_in_where": "SELECT v + 1 AS k FROM final.a WHERE v + 1 > 2",
    "sketch": "SELECT kll_sketch_to_string_bigint(kll_sketch_agg_bigint(v)) AS s FROM final.a",
}


@pytest.mark.long
@pytest.mark.parametrize(
    "side",
    [
        pytest.param("", marks=pytest.mark.long),
        pytest.param("LEFT", marks=pytest.mark.long),
        pytest.param("RIGHT", marks=pytest.mark.long),
        "FULL",
    ],
)
def test_a_column_of_using_in_an_aggregate_of_having(lake: Lake, side: str) -> None:
    sql = (
        f"SELECT b.g AS g, max(id) AS m FROM final.a a {side} JOIN final.b b USING (id) GROUP BY b.g "
        "HAVING max(id) > 0 AND count(id) > 0"
    )
    proof = Proof(lake, {"agg.m": Query(sql, ())}, ["final.a", "final.b"])
    proof.sql(*TABLES)
    proof.run()
    proof.sql("INSERT INTO final.b VALUES (2, 'x'), (2, 'z')", "DELETE FROM final.a WHERE id = 1")
    proof.run()


@pytest.mark.long
def test_counting_under_a_filter_that_keeps_no_row_is_zero(lake: Lake) -> None:
    sql = "SELECT g, count_if(id > 0) FILTER (WHERE id > 2) AS n FROM final.b GROUP BY g"
    proof = Proof(lake, {"agg.m": Query(sql, ())}, ["final.a", "final.b"])
    proof.sql(*TABLES)
    proof.run()
    proof.sql("INSERT INTO final.b VALUES (4, 'x')", "DELETE FROM final.b WHERE id = 3")
    proof.run()


@pytest.mark.long
def test_a_column_that_is_dropped_and_added_again_is_another_one(lake: Lake) -> None:
    proof = Proof(lake, {"agg.m": Query("SELECT g, count(*) AS n FROM final.b GROUP BY g", ())}, ["final.a", "final.b"])
    proof.sql(*TABLES)
    proof.run()
    proof.sql(
        "ALTER TABLE final.b DROP COLUMN g",
        "ALTER TABLE final.b ADD COLUMN g STRING",
        "INSERT INTO final.b VALUES (5, 'x')",
    )
    proof.run()
    assert lake.spark().table("agg.m").where("g = 'y'").count() == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "sql",
    [
        # The table's column, not the output column `v`.
        "SELECT b.id AS v, b.g AS g FROM final.a a CROSS JOIN final.b b "
        "QUALIFY row_number() OVER (PARTITION BY a.v ORDER BY b.id NULLS LAST, b.g) = 1",
        pytest.param(
            "SELECT b.id AS v, b.g AS g, max(a.id) OVER (PARTITION BY b.g) AS id FROM final.a a JOIN final.b b ON a.v > 0 "
            "QUALIFY row_number() OVER (PARTITION BY a.id, a.v ORDER BY v NULLS LAST, g) = 1",
            marks=pytest.mark.long,
        ),
        # An output column that no table has.
        pytest.param(
            "SELECT a.v + 1 AS w, sum(a.id) AS s FROM final.a a GROUP BY a.v "
            "QUALIFY row_number() OVER (ORDER BY s NULLS LAST, w) <= 2 AND w > 1",
            marks=pytest.mark.long,
        ),
        # A column of USING.
        pytest.param(
            "SELECT b.g AS g, lead(a.v) OVER (PARTITION BY id ORDER BY a.v NULLS LAST, b.g) AS n, id AS k FROM final.a a "
            "LEFT JOIN final.b b USING (id) QUALIFY row_number() OVER (PARTITION BY id ORDER BY a.v NULLS LAST, b.g) = 1",
            marks=pytest.mark.long,
        ),
    ],
    ids=["partition", "both windows", "outputs", "using"],
)
def test_a_window_of_qualify_over_a_column_that_is_named_as_an_output(lake: Lake, sql: str) -> None:
    proof = Proof(lake, {"agg.m": Query(sql, ())}, ["final.a", "final.b"])
    proof.sql(*TABLES)
    proof.run(spark=False)
    assert proof.asked["DuckDB"] == 1
    proof.sql("INSERT INTO final.a VALUES (3, 1), (4, NULL)", "DELETE FROM final.b WHERE id = 1")
    proof.run(spark=False)
    proof.sql("INSERT INTO final.b VALUES (4, 'x'), (0, 'w')", "DELETE FROM final.a WHERE v = 2")
    proof.run(spark=False)


@pytest.mark.parametrize("every", [120, pytest.param(1, marks=pytest.mark.long)])
def test_queries_mean_what_spark_makes_of_their_text(lake: Lake, every: int) -> None:
    # DuckDB has other names for some of these functions: Spark's own result for the original text decides.
    named = {f"agg.{name}": Query(sql, (), not_duckdb="another dialect") for name, sql in [*MEANT.items()][::every]}
    proof = Proof(lake, named, ["final.a", "final.b"])
    proof.sql(*TABLES)
    proof.run()
    proof.sql("INSERT INTO final.a VALUES (3, 1), (4, NULL), (2, 1)", "DELETE FROM final.b WHERE id = 1")
    proof.run()
    assert verify_all(lake, proof) == [True] * len(named)


@pytest.mark.long
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) AS n FROM final.a",
        pytest.param("SELECT count(*) AS n FROM final.a CROSS JOIN final.b", marks=pytest.mark.long),
        pytest.param(
            "SELECT b.g AS g, count(*) AS n FROM final.a CROSS JOIN final.b b GROUP BY b.g", marks=pytest.mark.long
        ),
    ],
    ids=["one", "joined", "one side"],
)
def test_rows_of_which_no_column_is_read(lake: Lake, sql: str) -> None:
    proof = Proof(lake, {"agg.m": Query(sql, ())}, ["final.a", "final.b"])
    proof.sql(*TABLES)
    proof.run()
    proof.sql(
        "UPDATE final.a SET v = 9 WHERE id = 1",
        "DELETE FROM final.a WHERE id = 2",
        "INSERT INTO final.b VALUES (7, 'x')",
    )
    proof.run()
    proof.sql("UPDATE final.a SET v = 8 WHERE id = 1")
    proof.run()


@pytest.mark.long
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT k, x FROM final.n WHERE x >= 8",
        pytest.param("SELECT k, y FROM final.n WHERE NOT (y <= 8)", marks=pytest.mark.long),
        "SELECT k, s.x AS x FROM final.n WHERE s.x > 8",
        pytest.param("SELECT g, count(*) AS n FROM final.n WHERE x > 8 GROUP BY g", marks=pytest.mark.long),
        pytest.param(
            "SELECT k FROM final.n WHERE (SELECT count(*) FROM final.n i WHERE i.k = n.k AND i.x >= 8) > 0",
            marks=pytest.mark.long,
        ),
        pytest.param("SELECT max(x) AS x, max(y) AS y FROM final.n", marks=pytest.mark.long),
    ],
    ids=["rows", "float", "struct", "groups", "subquery", "max"],
)
def test_nan_is_greater_than_numbers_whatever_file_it_is_in(lake: Lake, sql: str) -> None:
    proof = Proof(lake, {"agg.m": Query(sql, ())}, ["final.n"])
    x = "IF(id = 1, double('NaN'), id / 8D)"
    one = f"SELECT id AS k, {x} AS x, CAST({x} AS FLOAT) AS y, named_struct('x', {x}) AS s, id % 2 AS g FROM range"
    proof.sql(
        "CREATE TABLE final.n (k BIGINT, x DOUBLE, y FLOAT, s STRUCT<x: DOUBLE>, g BIGINT) USING iceberg",
        f"INSERT INTO final.n {one}(0, 9, 1, 1)",  # NaN beside numbers that are all less than 8
        f"INSERT INTO final.n {one}(64, 70, 1, 1)",
    )
    proof.run()
    assert proof.asked["DuckDB"] == 1
    proof.sql("INSERT INTO final.n SELECT k + 200, x, y, s, g FROM final.n WHERE k IN (1, 2)")
    proof.run()
    assert verify_all(lake, proof) == [True]
    proof.sql("DELETE FROM final.n WHERE k = 1")
    proof.run()
    assert verify_all(lake, proof) == [True]


@pytest.mark.long
def test_a_sum_that_overflows_is_told_without_the_stack_of_java_and_is_right_again_later(lake: Lake) -> None:
    queries = {
        "agg.d": Query("SELECT g, sum(d) AS s, count(*) AS n FROM final.d GROUP BY g", ()),
        "agg.b": Query("SELECT g, sum(b) AS s FROM final.d GROUP BY g", ()),
    }
    proof = Proof(lake, queries, ["final.d"])
    d, b = f"6{'0' * 37}", f"5{'0' * 18}"
    # In this order the sums fit.
    rows = [f"(1, -{d}, -{b})", f"(1, {d}, {b})", f"(1, -{d}, -{b})", *(f"(2, {n}, {n})" for n in range(40))]
    proof.sql(
        "CREATE TABLE final.d (g INT, d DECIMAL(38, 0), b BIGINT) USING iceberg "
        "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')",
        f"INSERT INTO final.d VALUES {', '.join(rows)}",
    )
    proof.run()
    proof.sql("DELETE FROM final.d WHERE d < 0")
    proof.run()  # the sums fit, the sums of the deleted rows do not
    proof.sql(f"INSERT INTO final.d VALUES (1, {d}, {b})")
    for outcome in proof.pipeline.run(lake):
        assert "[ARITHMETIC_OVERFLOW]" in str(outcome.error)
        assert "\tat " not in str(outcome.error)
    proof.sql("DELETE FROM final.d WHERE g = 1")
    proof.run()


@pytest.mark.parametrize(
    "condition",
    [pytest.param("x >= 0", marks=pytest.mark.long), pytest.param("x = 0", marks=pytest.mark.long), "x IN (0, 5)"],
)
def test_zeros_are_equal_whatever_their_sign(lake: Lake, condition: str) -> None:
    proof = Proof(lake, {"agg.m": Query(f"SELECT k FROM final.z WHERE {condition}", ())}, ["final.z"])
    proof.sql("CREATE TABLE final.z (k INT, x DOUBLE) USING iceberg", "INSERT INTO final.z VALUES (1, -0D), (2, -1D)")
    proof.run()
    assert lake.spark().table("agg.m").count() == 1
    proof.sql("INSERT INTO final.z VALUES (3, -0D)", "INSERT INTO final.z VALUES (4, 0D)")
    proof.run()
    assert verify_all(lake, proof) == [True]


def verify_all(lake: Lake, proof: Proof) -> list[bool]:
    """Return whether each model equals its query, by `verify`."""
    return [verify(lake, s).equal for s in proof.pipeline.specs(lake) if isinstance(s, ModelSpec)]

from __future__ import annotations

import pytest

from lake_assets.errors import ModelError
from lake_assets.lake import TableId
from lake_assets.models.plan import ModelPlan, fingerprint, key_query, parse, plan, replace_tables, sources_of

SCHEMAS = {
    TableId.parse("final.users"): {"id": "bigint", "name": "string", "city_id": "int"},
    TableId.parse("final.cities"): {"id": "int", "name": "string", "country": "string"},
    TableId.parse("final.orders"): {"id": "bigint", "user_id": "bigint", "price": "decimal(10,2)", "day": "date"},
}
COUNT = "SELECT c.name, count(*) AS n"
SAME = "SELECT 1 FROM final.cities c WHERE c.id = u.city_id"
JOINED = "FROM final.users u JOIN final.cities c ON u.city_id = c.id"


def planned(sql: str, *key: str) -> ModelPlan:
    return plan("agg.m", sql, SCHEMAS, key)


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT city_id, count(*) AS n FROM final.users GROUP BY city_id", ("city_id",)),
        (f"SELECT c.name AS city, count(*) AS n {JOINED} GROUP BY c.name", ("city",)),
        (f"SELECT c.country, c.name, max(u.name) AS last {JOINED} GROUP BY 2, 1", ("name", "country")),
        ("SELECT year(day) AS y, sum(price) AS s FROM final.orders GROUP BY year(day)", ("y",)),
        ("SELECT city_id, count(DISTINCT name) AS n FROM final.users GROUP BY city_id HAVING n > 1", ("city_id",)),
        ("SELECT a.id, count(*) AS n FROM final.users a, final.users b WHERE a.id < b.id GROUP BY a.id", ("id",)),
        ("SELECT city_id FROM final.users GROUP BY city_id", ("city_id",)),
    ],
)
def test_inner_joins_grouped_by_columns_are_maintained_by_their_groups(sql: str, key: tuple[str, ...]) -> None:
    found = planned(sql)
    assert (found.strategy, found.key) == ("keys", key)
    assert "touches the groups of its rows only" in found.why


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT id, name FROM final.users", "does not group"),
        ("SELECT count(*) AS n FROM final.users", "does not group"),
        ("SELECT DISTINCT city_id FROM final.users", "does not group"),
        ("SELECT count(*) AS n FROM final.users GROUP BY city_id", "does not select"),
        ("SELECT id + 1 AS x, count(*) AS n FROM final.users GROUP BY id", "does not select"),
        ("SELECT city_id, name, count(*) AS n FROM final.users GROUP BY CUBE (city_id, name)", "CUBE"),
        ("SELECT city_id, name, count(*) AS n FROM final.users GROUP BY ROLLUP (city_id, name)", "ROLLUP"),
        ("SELECT city_id, name, count(*) AS n FROM final.users GROUP BY city_id, name WITH CUBE", "more than columns"),
        ("SELECT city_id, count(*) AS n FROM final.users GROUP BY GROUPING SETS ((city_id), (name))", "GROUPING SETS"),
        ("SELECT city_id, count(*) AS n FROM final.users GROUP BY ALL", "does not group"),
        ("SELECT id, a FROM final.users PIVOT (count(*) FOR name IN ('a')) GROUP BY id, a", "PIVOT"),
        (f"{COUNT} FROM final.cities c LEFT JOIN final.users u ON u.city_id = c.id GROUP BY 1", "joins"),
        (f"{COUNT} FROM final.cities c FULL JOIN final.users u ON u.city_id = c.id GROUP BY 1", "joins"),
        ("SELECT u.id, count(*) AS n FROM final.users u LEFT SEMI JOIN final.cities c ON true GROUP BY u.id", "joins"),
        ("SELECT u.id, count(*) AS n FROM final.users u LEFT ANTI JOIN final.cities c ON true GROUP BY u.id", "joins"),
        ("SELECT city_id, count(*) AS n FROM final.users GROUP BY city_id ORDER BY n LIMIT 3", "LIMIT"),
        ("SELECT city_id, rank() OVER (ORDER BY count(*)) AS r FROM final.users GROUP BY city_id", "window"),
        ("SELECT id, count(*) AS n FROM final.users WHERE id IN (SELECT id FROM final.cities) GROUP BY id", "subq"),
        (f"SELECT id FROM final.users u WHERE EXISTS ({SAME}) GROUP BY id", "subq"),
        (f"SELECT id FROM final.users u WHERE NOT EXISTS ({SAME}) GROUP BY id", "subq"),
        ("SELECT x, count(*) AS n FROM (SELECT city_id AS x FROM final.users) GROUP BY x", "subq"),
        ("WITH u AS (SELECT * FROM final.users) SELECT city_id, count(*) AS n FROM u GROUP BY city_id", "CTE"),
        ("SELECT id FROM final.users UNION ALL SELECT id FROM final.orders", "not a single SELECT"),
        ("SELECT id, count(*) AS n FROM final.users LATERAL VIEW explode(array(1)) x AS e GROUP BY id", "LATERAL"),
    ],
)  # fmt: skip
def test_everything_else_is_recomputed_and_the_reason_is_told(sql: str, why: str) -> None:
    found = planned(sql)
    assert found.strategy == "full"
    assert why in found.why


def test_a_declared_key_that_is_the_grouping_changes_nothing() -> None:
    assert planned("SELECT city_id, count(*) AS n FROM final.users GROUP BY city_id", "city_id").strategy == "keys"


def test_a_declared_key_that_is_not_the_grouping_means_full() -> None:
    found = planned("SELECT city_id, name, count(*) AS n FROM final.users GROUP BY city_id, name", "city_id")
    assert (found.strategy, found.key) == ("full", ("city_id",))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT FROM WHERE", r"agg\.m: line 1"),
        ("SELECT id\nFROM final.users\nWHERE (", r"agg\.m: line 3"),
        ("", "expected one SELECT"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("DROP TABLE final.users", "expected one SELECT"),
        ("INSERT INTO final.users SELECT * FROM final.cities", "expected one SELECT"),
        ("SELECT nope FROM final.users", r"(?i)nope.*final\.users has id, name, city_id"),
        ("SELECT u.nope FROM final.users u", "(?i)nope"),
        ("SELECT x.id FROM final.users u", "(?i)x"),
        (f"SELECT name, count(*) AS n {JOINED} GROUP BY name", "(?i)ambiguous|name"),
        ("SELECT id, name AS id FROM final.users", "two output columns share a name"),
        ("SELECT id, name AS ID FROM final.users", "two output columns share a name"),
        ("SELECT id FROM users", r"write for example final\.users"),
        ("SELECT id, rand() AS r FROM final.users", "another value each time"),
        ("SELECT id, uuid() AS r FROM final.users", "another value each time"),
        ("SELECT id FROM final.orders WHERE day = current_date()", "another value each time"),
        ("SELECT id, now() AS t FROM final.orders", "another value each time"),
        ("SELECT id, current_timestamp AS t FROM final.orders", "another value each time"),
        ("SELECT id FROM final.users TABLESAMPLE (10 PERCENT)", "another value each time"),
        ("SELECT id FROM other.final.users", "names a catalog"),
        ("SELECT id FROM final.users VERSION AS OF 3", "which snapshots"),
        ("SELECT id FROM final.users TIMESTAMP AS OF '2024-01-01'", "which snapshots"),
    ],
)
def test_a_wrong_model_is_named_with_what_is_wrong(sql: str, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        planned(sql)
    assert "agg.m" in str(caught.value)


def test_a_declared_key_must_be_an_output_column() -> None:
    with pytest.raises(ModelError, match=r"key city is no output column; there are id, name"):
        planned("SELECT id, name FROM final.users", "city")


@pytest.mark.parametrize(
    "other",
    [
        "select\n  id,\n  name -- the name\nfrom final.users /* all of them */ where id>1",
        "SELECT   id , name FROM final.users\tWHERE id > 1;",
    ],
)
def test_comments_and_layout_do_not_make_another_query(other: str) -> None:
    one = parse("m", "SELECT id, name FROM final.users WHERE id > 1")
    assert fingerprint(one) == fingerprint(parse("m", other))


@pytest.mark.parametrize(
    "other", ["SELECT id FROM final.users WHERE id > 2", "SELECT id AS i FROM final.users WHERE id > 1"]
)
def test_another_query_has_another_fingerprint(other: str) -> None:
    assert fingerprint(parse("m", "SELECT id FROM final.users WHERE id > 1")) != fingerprint(parse("m", other))


def test_texts_that_differ_in_a_literals_case_are_other_queries() -> None:
    texts = [f"SELECT id FROM final.users WHERE name = '{n}'" for n in ("Ada", "ada")]
    assert len({fingerprint(parse("m", t)) for t in texts}) == 2


def test_every_table_is_a_source_once_and_ctes_are_none() -> None:
    query = parse(
        "m",
        "WITH big AS (SELECT * FROM final.orders WHERE price > 1) "
        "SELECT u.id FROM final.users u JOIN final.users v ON true JOIN big ON true "
        "WHERE u.id IN (SELECT user_id FROM final.orders)",
    )
    assert set(sources_of("m", query)) == {TableId.parse("final.users"), TableId.parse("final.orders")}


def test_a_cte_does_not_hide_the_table_of_a_layer_with_its_name() -> None:
    query = parse("m", "WITH users AS (SELECT 1 AS id) SELECT a.id FROM users a JOIN final.users b ON a.id = b.id")
    assert sources_of("m", query) == (TableId.parse("final.users"),)


def test_each_place_of_a_table_can_be_replaced_alone() -> None:
    query = planned(
        "SELECT a.id, count(*) AS n FROM final.users a JOIN final.users b ON a.id = b.id GROUP BY a.id"
    ).query
    text = replace_tables(query, lambda place, table: f"v{place}_{table.name}").sql("spark")
    assert "v0_users AS `a`" in text
    assert "v1_users AS `b`" in text


def test_the_keys_of_a_group_are_read_before_grouping() -> None:
    found = planned(f"SELECT c.name AS city, count(*) AS n {JOINED} WHERE u.id > 1 GROUP BY c.name HAVING count(*) > 1")
    text = key_query(found.query, found.key).sql("spark").lower()
    assert "distinct" in text
    assert "> 1" in text  # the WHERE stays
    assert "group by" not in text
    assert "having" not in text
    assert "count" not in text


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT City_ID, count(*) AS `Total Number` FROM final.users GROUP BY city_id", ["City_ID", "Total Number"]),
        ("SELECT u.NAME AS Who FROM final.users u", ["Who"]),
        ("SELECT m.*, 1 AS One FROM final.mixed m", ["Id", "userName", "One"]),
    ],
)
def test_columns_are_called_as_they_are_written(sql: str, columns: list[str]) -> None:
    schemas = {**SCHEMAS, TableId.parse("final.mixed"): {"Id": "int", "userName": "string"}}
    found = plan("agg.m", sql, schemas)
    assert [s.alias_or_name for s in found.query.selects] == columns
    assert set(found.key) <= set(columns)

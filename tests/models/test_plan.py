"""Plans of models: strategy, key, reasons, warnings, sources and fingerprint of a query; without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import ModelError
from lake_assets.examples import shipped_pipeline
from lake_assets.lake import TableId, thresholds
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.sql.model_plan import ModelPlan, fingerprint, parse, plan, sources_of
from lake_assets.models.sql.query_text import text_over
from lake_assets.models.steps.cost_estimate import Estimate
from tests.support.schemas import SCHEMAS

COUNT = "SELECT c.name, count(*) AS n"
SAME = "SELECT 1 FROM final.cities c WHERE c.id = u.city_id"
JOINED = "FROM final.users u JOIN final.cities c ON u.city_id = c.id"


def planned(sql: str, *key: str) -> ModelPlan:
    return plan("agg.m", sql, SCHEMAS, key)


@pytest.mark.parametrize(
    ("sql", "strategy", "key"),
    [
        ("SELECT city_id, count(*) AS n FROM final.users GROUP BY city_id", "retract", ("city_id",)),
        (f"SELECT c.name AS city, count(*) AS n {JOINED} GROUP BY c.name", "retract", ("city",)),
        (f"SELECT c.country, c.name, max(u.name) AS last {JOINED} GROUP BY 2, 1", "keys", ("country", "name")),
        ("SELECT year(day) AS y, sum(price) AS s FROM final.orders GROUP BY year(day)", "retract", ("y",)),
        ("SELECT city_id, count(DISTINCT name) AS n FROM final.users GROUP BY city_id HAVING n > 1", "keys", ("city_id",)),
        ("SELECT a.id, count(*) AS n FROM final.users a, final.users b WHERE a.id < b.id GROUP BY a.id", "retract", ("id",)),
        ("SELECT city_id FROM final.users GROUP BY city_id", "retract", ("city_id",)),
        ("SELECT id, name FROM final.users", "retract", ()),
        ("SELECT count(*) AS n FROM final.users", "retract", ()),
        ("SELECT DISTINCT city_id, name FROM final.users", "keys", ("city_id", "name")),
        ("SELECT count(*) AS n FROM final.users GROUP BY city_id", "keys", ()),
        ("SELECT city_id, name, count(*) AS n FROM final.users GROUP BY CUBE (city_id, name)", "keys", ()),
        ("SELECT city_id, count(*) AS n FROM final.users GROUP BY ALL", "retract", ("city_id",)),
        (f"{COUNT} FROM final.cities c LEFT JOIN final.users u ON u.city_id = c.id GROUP BY 1", "keys", ("name",)),
        ("SELECT u.id, u.name FROM final.users u LEFT ANTI JOIN final.cities c ON c.id = u.city_id", "keys", ()),
        ("SELECT city_id, rank() OVER (PARTITION BY city_id ORDER BY name) AS r FROM final.users", "keys", ()),
        (f"SELECT id FROM final.users u WHERE NOT EXISTS ({SAME})", "keys", ()),
        ("WITH u AS (SELECT * FROM final.users) SELECT city_id, count(*) AS n FROM u GROUP BY city_id", "retract", ("city_id",)),
        ("SELECT id FROM final.users UNION ALL SELECT id FROM final.orders", "retract", ()),
        ("SELECT id FROM final.users UNION SELECT id FROM final.orders", "keys", ("id",)),
        ("SELECT id, e FROM final.users LATERAL VIEW explode(array(1)) x AS e", "retract", ()),
    ],
)  # fmt: skip
def test_the_cheapest_exact_strategy_and_the_key_are_found(sql: str, strategy: str, key: tuple[str, ...]) -> None:
    model = planned(sql)
    assert (model.strategy, model.key) == (strategy, key)
    assert model.why


@pytest.mark.parametrize(
    ("sql", "strategy", "why"),
    [
        ("SELECT city_id, sum(CAST(id AS DOUBLE)) AS s FROM final.users GROUP BY city_id", "keys", "floating-point"),
        ("SELECT city_id, max(id) AS s FROM final.users GROUP BY city_id", "keys", "cannot be computed from the change alone"),
        ("SELECT city_id, avg(city_id) AS s FROM final.users GROUP BY city_id", "keys", "needs the sum and the count"),
        ("SELECT user_id, avg(price) AS m FROM final.orders GROUP BY user_id", "keys", "rounded on the way"),
        ("SELECT city_id, sum(id) + 1 AS s FROM final.users GROUP BY city_id", "keys", "lacks SUM"),
        ("SELECT city_id, rank() OVER (ORDER BY name) AS r FROM final.users", "full", "without PARTITION BY"),
        ("SELECT id FROM final.users WHERE id > (SELECT avg(id) FROM final.users)", "full", "total of all rows"),
        ("SELECT u.id, c.id AS c FROM final.users u FULL JOIN final.cities c ON u.city_id < c.id", "full", "without an equality"),
        ("SELECT id, a FROM final.users PIVOT (count(*) FOR name IN (NULL AS a))", "full", "PIVOT"),
        ("SELECT id FROM final.users WHERE id = 1 OR EXISTS (SELECT 1 FROM final.cities)", "full", "within an expression"),
        ("SELECT id, name, city_id FROM final.users ORDER BY id, name, city_id LIMIT 3", "full", "LIMIT"),
        ("SELECT trim(BOTH FROM name) AS p FROM final.users", "full", "exactly as written"),
        (
            "SELECT u.id FROM final.users u LEFT SEMI JOIN final.orders o ON u.id = o.user_id "
            "RIGHT JOIN final.cities c ON u.city_id = c.id",
            "full",
            "RIGHT or FULL JOIN after a SEMI",
        ),
    ],
)  # fmt: skip
def test_the_reason_for_a_strategy_is_told(sql: str, strategy: str, why: str) -> None:
    model = planned(sql)
    assert model.strategy == strategy
    assert why in model.why


@pytest.mark.parametrize("collated", ["name COLLATE UTF8_LCASE", "collate(name, 'UTF8_LCASE')"])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT city_id, max({}) AS m FROM final.users GROUP BY city_id",
        "SELECT id, max({}) OVER (PARTITION BY city_id) AS m FROM final.users",
        "SELECT {} AS c, count(*) AS n FROM final.users GROUP BY 1",
        "SELECT DISTINCT {} AS c FROM final.users",
    ],
)
def test_queries_with_collations_are_computed_in_full(sql: str, collated: str) -> None:
    model = planned(sql.format(collated))
    assert model.strategy == "full"
    assert "texts that it compares as equal may stand for each other" in model.why
    assert "compares different texts as equal" in model.warnings[0]


def test_a_key_of_a_source_that_survives_the_query_is_its_key() -> None:
    keys = {TableId.parse("final.users"): [["id"]], TableId.parse("final.cities"): [["id"]]}

    def key(sql: str) -> tuple[str, ...]:
        return plan("agg.m", sql, SCHEMAS, (), lambda t: keys.get(t, [])).key

    assert key(f"SELECT u.id, u.name, c.country {JOINED}") == ("id",)
    assert key("SELECT u.id AS user, c.id AS city FROM final.users u JOIN final.cities c ON u.name = c.name") == (
        "user",
        "city",
    )
    assert key(f"SELECT u.name, c.country {JOINED}") == ()
    assert key("SELECT u.id FROM final.users u JOIN final.orders o ON o.user_id = u.id") == ()
    assert key("SELECT id FROM final.users UNION ALL SELECT id FROM final.users") == ()


def test_a_join_over_columns_of_other_types_does_not_preserve_a_key() -> None:
    # '1' and '01' both equal 1: a row may match several.
    sql = "SELECT o.id FROM final.orders o JOIN final.named n ON n.code = o.user_id"
    schemas = {**SCHEMAS, TableId.parse("final.named"): {"code": "string"}}
    keys = {TableId.parse("final.orders"): [["id"]], TableId.parse("final.named"): [["code"]]}
    assert plan("agg.m", sql, schemas, (), lambda t: keys[t]).key == ()


def test_a_declared_key_that_is_the_grouping_changes_nothing() -> None:
    assert planned("SELECT city_id, count(*) AS n FROM final.users GROUP BY city_id", "city_id").strategy == "retract"


def test_a_declared_key_that_is_not_the_grouping_is_kept() -> None:
    model = planned("SELECT city_id, name, count(*) AS n FROM final.users GROUP BY city_id, name", "city_id")
    assert (model.strategy, model.key, model.key_why) == ("keys", ("city_id",), "declared")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT id, row_number() OVER (PARTITION BY city_id ORDER BY name) AS r FROM final.users", "ties"),
        ("SELECT city_id, first(name) AS f FROM final.users GROUP BY city_id", "order in which rows are read"),
        ("SELECT city_id, collect_list(name) AS f FROM final.users GROUP BY city_id", "order in which rows are read"),
    ],
)
def test_calls_that_depend_on_the_order_of_rows_give_a_warning(sql: str, message: str) -> None:
    assert any(message in w for w in planned(sql).warnings)


def test_an_order_in_which_only_equal_rows_tie_gives_no_warning() -> None:
    sql = "SELECT id, row_number() OVER (PARTITION BY city_id ORDER BY name, {}) AS r FROM final.users"
    schemas, keys = SCHEMAS, {TableId.parse("final.users"): [["id"]]}
    assert plan("agg.m", sql.format("id"), schemas, (), lambda t: keys[t]).warnings == ()
    assert plan("agg.m", sql.format("city_id"), schemas, (), lambda t: keys[t]).warnings


def test_an_order_of_groups_that_ends_in_their_keys_has_no_ties() -> None:
    sql = (
        "SELECT city_id, name, row_number() OVER (PARTITION BY city_id ORDER BY count(*), city_id, {}) AS r "
        "FROM final.users GROUP BY city_id, name"
    )
    total, tied = planned(sql.format("name")), planned(sql.format("max(id)"))
    assert total.warnings == ()
    assert "ties" not in total.why
    assert tied.warnings


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, rank() OVER (PARTITION BY city_id ORDER BY name) AS r FROM final.users",
        "SELECT city_id, sort_array(collect_list(name)) AS f FROM final.users GROUP BY city_id",
        "SELECT city_id, max(name) AS f FROM final.users GROUP BY city_id",
    ],
)
def test_calls_that_do_not_give_none(sql: str) -> None:
    assert planned(sql).warnings == ()


@pytest.mark.parametrize(
    ("sql", "message"),
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
        ("SELECT id, localtimestamp() AS t FROM final.orders", "another value each time"),
        ("SELECT id, shuffle(array(1, 2)) AS t FROM final.orders", "another value each time"),
        ("SELECT id, uniform(1, 9) AS t FROM final.orders", "another value each time"),
        ("SELECT id, input_file_name() AS t FROM final.orders", "another value each time"),
        ("SELECT id, spark_partition_id() AS t FROM final.orders", "another value each time"),
        ("SELECT id, reflect('java.util.UUID', 'randomUUID') AS t FROM final.orders", "another value each time"),
        ("SELECT id, session_user() AS t FROM final.orders", "another value each time"),
        ("SELECT id FROM final.orders WHERE day = DATE 'today'", "another value each time"),
        ("SELECT id FROM final.users TABLESAMPLE (10 PERCENT)", "another value each time"),
        ("SELECT id, posexplode(array(1)) AS (p, c) FROM final.users", r"LATERAL VIEW POSEXPLODE\(ARRAY\(1\)\)"),
        ("SELECT map(id) AS m FROM final.users", "cannot be read"),
        ("SELECT id, inline(array(struct(1, 2))) FROM final.users", "several columns"),
        ("SELECT id FROM other.final.users", "names a catalog"),
        ("SELECT id FROM final.users VERSION AS OF 3", "names a version"),
        ("SELECT id FROM final.users TIMESTAMP AS OF '2024-01-01'", "names a version"),
        ("SELECT id FROM final.users LIMIT 3", "first rows of an order"),
        ("SELECT id, name FROM final.users ORDER BY name LIMIT 3", "first rows of an order"),
        ("SELECT n FROM (SELECT name AS n FROM final.users LIMIT 3)", "first rows of an order"),
    ],
)
def test_the_error_of_a_wrong_model_names_it_and_the_mistake(sql: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        planned(sql)
    assert "agg.m" in str(caught.value)


def test_a_declared_key_must_be_an_output_column() -> None:
    with pytest.raises(ModelError, match=r"key city is not an output column; the output columns are id, name"):
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


def test_texts_that_sqlglot_renders_equally_are_other_queries() -> None:
    texts = [
        "SELECT percentile(id, 0.5, city_id) AS p FROM final.users",
        "SELECT percentile(id, 0.5) AS p FROM final.users",
    ]
    assert len({fingerprint(parse("m", t), t) for t in texts}) == 2
    spaced = texts[0].replace(", ", " ,\n")
    assert fingerprint(parse("m", spaced), spaced) == fingerprint(parse("m", texts[0]), texts[0])


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


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT City_ID, count(*) AS `Total Number` FROM final.users GROUP BY city_id", ["City_ID", "Total Number"]),
        ("SELECT u.NAME AS Who FROM final.users u", ["Who"]),
        ("SELECT m.*, 1 AS One FROM final.mixed m", ["Id", "userName", "One"]),
    ],
)
def test_columns_keep_their_original_case(sql: str, columns: list[str]) -> None:
    schemas = {**SCHEMAS, TableId.parse("final.mixed"): {"Id": "int", "userName": "string"}}
    model = plan("agg.m", sql, schemas)
    assert [s.alias_or_name for s in model.query.selects] == columns
    assert set(model.key) <= set(columns)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT 'é日本😀' AS x, `größe` FROM final.a -- 😀\n JOIN /* é */ `final`.`b b` b ON true",
            "SELECT 'é日本😀' AS x, `größe` FROM V_a AS `a` -- 😀\n JOIN /* é */ V_b_b b ON true",
        ),
        (
            "WITH a AS (SELECT * FROM final . a) SELECT * FROM a;\n",
            "WITH a AS (SELECT * FROM V_a AS `a`) SELECT * FROM a",
        ),
        ("SELECT /*+ BROADCAST(final.a) */ x FROM final.a", "SELECT /*+ BROADCAST(final.a) */ x FROM V_a AS `a`"),
        ("SELECT y FROM (final.a JOIN final.b x ON true)", "SELECT y FROM (V_a AS `a` JOIN V_b x ON true)"),
        (
            "SELECT * FROM final.a PIVOT (sum(v) FOR g IN (1)) p",
            "SELECT * FROM V_a AS `a` PIVOT (sum(v) FOR g IN (1)) p",
        ),
    ],
)
def test_only_tables_change_in_the_text_over_views(sql: str, expected: str) -> None:
    assert text_over(parse("agg.m", sql), sql, lambda t: f"V_{t.name.replace(' ', '_')}") == expected


def test_the_demo_absorbs_its_changes_although_it_has_few_rows(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 1_000_000)  # tests of models set it to 0
    model = next(s for s in Pipeline.load(shipped_pipeline("shop")).specs(plain_lake) if isinstance(s, ModelSpec))
    users, cities = {"id": "int", "balance": "decimal(12,2)"}, {"user_id": "int", "city": "string"}
    schemas = {TableId.parse("final.users"): users, TableId.parse("final.user_city"): cities}
    assert plan(str(model.table), model.sql, schemas, model.key).strategy == "retract"
    assert model.full_above is not None
    few = Estimate(5, 30, True, model.full_above, stored=8, operators=1, declared=True)
    assert not few.prefers_full
    assert replace(few, declared=False).prefers_full, "without the setting, the demo would show no increments"

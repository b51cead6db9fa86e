"""Models keep up with any change of their sources: after each step a table equals its query, computed afresh."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lake_assets import Lake, Pipeline
from lake_assets.errors import ModelError, TableReplacedError
from lake_assets.merge.outcome import Outcome
from lake_assets.pipeline import PipelineConfig
from tests.support.oracle import rows_of

MODELS = {
    "agg.joined": "SELECT b.g, count(*) AS n, sum(a.v) AS s, max(a.name) AS m FROM final.a a "
    "JOIN final.b b ON a.b = b.id GROUP BY b.g",
    "agg.itself": "SELECT x.v, count(*) AS n FROM final.a x JOIN final.a y ON x.b = y.b AND x.id < y.id GROUP BY x.v",
    "agg.two": "SELECT a.v AS v, b.g AS g, count(DISTINCT a.name) AS n FROM final.a a, final.b b WHERE a.b = b.id "
    "GROUP BY b.g, a.v HAVING count(*) > 1",
    "agg.computed": "SELECT lower(name) AS name, min(v) AS low FROM final.a WHERE v IS NULL OR v > 0 "
    "GROUP BY lower(name)",
    "agg.only_keys": "SELECT v FROM final.a GROUP BY v",
    "agg.outer": "SELECT a.id, b.g FROM final.a a LEFT JOIN final.b b ON a.b = b.id",
    "agg.total": "SELECT count(*) AS n, sum(v) AS s FROM final.a",
    "agg.lonely": "SELECT g, count(*) AS n FROM final.b x WHERE NOT EXISTS (SELECT 1 FROM final.a a WHERE a.b = x.id) "
    "GROUP BY g",
    "agg.above": "SELECT n, count(*) AS groups FROM agg.joined GROUP BY n",
}
KEYED = {"agg.joined", "agg.itself", "agg.two", "agg.computed", "agg.only_keys", "agg.above"}


class Models:
    """Two tables that somebody else writes, and models over them."""

    def __init__(self, lake: Lake, models: dict[str, str], mode: str = "merge-on-read") -> None:
        self.lake, self.models = lake, models
        declared = [{"name": name, "sql": sql} for name, sql in models.items()]
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "models": declared}))
        properties = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
        lake.ensure_namespace(("final",))
        for table in ("a (id INT, b INT, v INT, name STRING)", "b (id INT, g STRING)"):
            self.sql(f"CREATE TABLE final.{table} USING iceberg TBLPROPERTIES ('format-version' = '3', {properties})")

    def sql(self, text: str) -> None:
        self.lake.spark().sql(text)

    def run(self) -> dict[str, Outcome]:
        """Bring the models up to date; each must equal its query."""
        outcomes = {o.table: o for o in self.pipeline.run(self.lake)}
        for outcome in outcomes.values():
            if outcome.exception:
                raise outcome.exception
        for name, sql in self.models.items():
            assert self.rows(name) == rows_of(self.lake.spark().sql(sql)), name
        return outcomes

    def rows(self, name: str) -> Counter[Any]:
        return rows_of(self.lake.spark().table(name))


def change(choose: random.Random) -> str:
    """One statement of somebody who writes the sources."""
    a, b, v = choose.randint(1, 12), choose.randint(1, 4), choose.choice(["NULL", "-1", "0", "1", "2"])
    name, g = choose.choice(["NULL", "'x'", "'X'", "''", "'y'"]), choose.choice(["NULL", "'n'", "'s'", "''"])
    return choose.choice(
        [
            f"INSERT INTO final.a VALUES ({a}, {b}, {v}, {name}), ({a + 1}, {b}, {v}, {name})",
            f"INSERT INTO final.b VALUES ({b}, {g})",
            f"DELETE FROM final.a WHERE id = {a}",
            f"DELETE FROM final.a WHERE b = {b}",
            f"DELETE FROM final.b WHERE id = {b}",
            f"UPDATE final.a SET v = {v}, b = {b} WHERE id > {a}",
            f"UPDATE final.b SET g = {g} WHERE id = {b}",
            "UPDATE final.a SET v = v WHERE true",
            f"MERGE INTO final.a t USING (SELECT explode(sequence({a}, {a} + 3)) AS id) s ON t.id = s.id AND t.v = {v} "
            f"WHEN MATCHED AND t.name = {name} THEN DELETE WHEN MATCHED THEN UPDATE SET name = {name} "
            f"WHEN NOT MATCHED THEN INSERT (id, b, v, name) VALUES (s.id, {b}, {v}, {name})",
            f"INSERT OVERWRITE final.b VALUES ({b}, {g}), ({b % 4 + 1}, 'n')",
            "CALL lake.system.rewrite_data_files(table => 'final.a', options => map('rewrite-all', 'true'))",
        ]
    )


START = (
    "INSERT INTO final.a SELECT CAST(id AS INT), CAST(id % 4 AS INT), CAST(nullif(id % 3, 0) AS INT), "
    "IF(id % 5 = 0, NULL, concat('n', id % 2)) FROM range(1, 12)",
    "INSERT INTO final.b VALUES (1, 'n'), (2, NULL), (3, 's'), (3, 'n')",
)


def check(lake: Lake, seed: int, steps: int) -> None:
    choose = random.Random(seed)
    models = Models(lake, MODELS, choose.choice(["merge-on-read", "copy-on-write"]))
    for text in START:
        models.sql(text)
    models.run()
    for _ in range(steps):
        for _ in range(choose.randint(1, 3)):
            models.sql(change(choose))
        outcomes = models.run()
        wrong = {t: o.strategy for t, o in outcomes.items() if t in KEYED and o.strategy not in ("keys", "none", "")}
        assert not wrong


def test_models_equal_their_queries(lake: Lake) -> None:
    check(lake, seed=1, steps=2)


@pytest.mark.long
def test_models_equal_their_queries_after_any_changes(new_lake: Callable[[str], Lake]) -> None:
    @settings(max_examples=40, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**63))
    def run(seed: int) -> None:
        examples.append(seed)
        check(new_lake(f"lake{len(examples)}"), seed, steps=8)

    examples: list[int] = []
    run()


def test_groups_vanish_and_come_back_and_both_inputs_change_at_once(lake: Lake) -> None:
    models = Models(lake, {"agg.joined": MODELS["agg.joined"]})
    for text in START:
        models.sql(text)
    models.run()
    models.sql("DELETE FROM final.b WHERE g = 'n'")
    assert models.run()["agg.joined"].deleted == 1
    models.sql("INSERT INTO final.b VALUES (1, 'n')")
    models.sql("DELETE FROM final.a WHERE b = 3")
    outcome = models.run()["agg.joined"]
    assert (outcome.strategy, outcome.inserted, outcome.deleted) == ("keys", 1, 1)
    models.sql("DELETE FROM final.a")
    models.run()
    assert models.rows("agg.joined") == Counter()


def test_a_change_that_touches_no_group_moves_the_watermark_only(lake: Lake) -> None:
    models = Models(lake, {"agg.joined": MODELS["agg.joined"]})
    for text in START:
        models.sql(text)
    models.run()
    models.sql("INSERT INTO final.a VALUES (99, 99, 1, 'no b')")
    assert models.run()["agg.joined"].changed == 0
    assert models.pipeline.pending(lake) == []
    assert models.run()["agg.joined"].status == "nothing"


def test_a_model_waits_for_its_sources_and_may_be_empty(lake: Lake) -> None:
    models = Models(lake, {"agg.m": "SELECT g, count(*) AS n FROM final.b WHERE id > 5 GROUP BY g"})
    (outcome,) = models.pipeline.run(lake)
    assert (outcome.status, "holds nothing yet" in outcome.why) == ("waiting", True)
    models.sql("INSERT INTO final.b VALUES (1, 'a')")
    assert models.run()["agg.m"].status == "absorbed"
    assert models.pipeline.pending(lake) == []
    models.sql("INSERT INTO final.b VALUES (6, 'a')")
    assert models.run()["agg.m"].strategy == "keys"


def test_another_query_rebuilds_the_table(lake: Lake) -> None:
    models = Models(lake, {"agg.m": "SELECT g, count(*) AS n FROM final.b GROUP BY g"})
    models.sql(START[1])
    models.run()
    same = Models.__new__(Models)
    other = {"agg.m": "SELECT g, count(*) AS n, max(id) AS last FROM final.b GROUP BY g"}
    declared = [{"name": "agg.m", "sql": other["agg.m"]}]
    same.lake, same.models = lake, other
    same.pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "models": declared}))
    outcome = same.run()["agg.m"]
    assert (outcome.strategy, "query" in outcome.why) == ("full", True)
    assert same.run()["agg.m"].status == "nothing"


def test_a_source_column_that_is_widened_is_followed(lake: Lake) -> None:
    models = Models(lake, {"agg.m": "SELECT v, max(id) AS last FROM final.a GROUP BY v"})
    models.sql(START[0])
    models.run()
    models.sql("ALTER TABLE final.a ALTER COLUMN id TYPE BIGINT")
    models.sql("INSERT INTO final.a VALUES (5000000000, 1, 1, 'big')")
    models.run()
    assert dict(lake.spark().table("agg.m").dtypes)["last"] == "bigint"


def test_what_is_wrong_with_a_model_is_told_and_nothing_is_written(lake: Lake) -> None:
    models = Models(lake, {"agg.m": "SELECT g, nope(id) AS s FROM final.b GROUP BY g"})
    models.sql(START[1])
    (outcome,) = models.pipeline.run(lake)
    assert isinstance(outcome.exception, ModelError)
    assert not lake.exists("agg.m")


def test_a_source_that_was_dropped_and_made_again_is_noticed(lake: Lake) -> None:
    models = Models(lake, {"agg.m": "SELECT g, count(*) AS n FROM final.b GROUP BY g"})
    models.sql(START[1])
    models.run()
    models.sql("DROP TABLE final.b")
    models.sql("CREATE TABLE final.b (id INT, g STRING) USING iceberg")
    models.sql(START[1])
    (outcome,) = models.pipeline.run(lake)
    assert isinstance(outcome.exception, TableReplacedError)


def test_columns_that_differ_by_case_and_quotes_are_named_as_written(lake: Lake) -> None:
    models = Models(lake, {"agg.m": "SELECT g AS `odd ``Name`, count(*) AS `a.b` FROM final.b GROUP BY g"})
    models.sql(START[1])
    models.run()
    models.sql("INSERT INTO final.b VALUES (7, 'n')")
    assert models.run()["agg.m"].strategy == "keys"
    assert lake.spark().table("agg.m").columns == ["odd `Name", "a.b"]

"""Ranges, diamonds, declared keys, estimates, and explanations of models."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from typer.testing import CliRunner

from lake_assets import Lake
from lake_assets.errors import DefinitionChangedError, KeyMissingError, ModelError
from lake_assets.lake import TableId
from lake_assets.models.explanation import explain
from lake_assets.models.model_spec import ModelSpec, spec_of
from lake_assets.models.operators.query_tree import scans, text
from lake_assets.models.steps.cost_estimate import Estimate
from lake_assets.models.steps.recomputed_ranges import column_expressions, merged
from lake_assets.tables.writing.table_writer import TableWriter
from tests.support.model_world import World
from tests.support.people import People
from tests.support.refresh_states import represents, with_refresh_states
from tests.support.schemas import SCHEMAS


@pytest.mark.long
def test_ranges_and_cumulative_values_follow_late_days(lake: Lake) -> None:
    world = World(lake, "sales (day DATE, shop INT, n INT)")
    world.sql("INSERT INTO final.sales SELECT date_add(DATE'2024-01-01', CAST(id AS INT)), id % 3, id FROM range(60)")
    daily = "SELECT day, sum(n) AS n FROM final.sales GROUP BY day"
    week: dict[str, Any] = {
        "name": "agg.week",
        "sql": f"SELECT day, sum(n) OVER (ORDER BY day RANGE BETWEEN INTERVAL 6 DAYS PRECEDING AND CURRENT ROW) AS n FROM ({daily})",
        "range": {"column": "day", "forward": 0, "back": "6d"},
    }
    so_far: dict[str, Any] = {
        "name": "agg.so_far",
        "sql": f"SELECT day, sum(n) OVER (ORDER BY day) AS n FROM ({daily})",
        "range": {"column": "day", "cumulative": True},
    }
    world.run(week, so_far)
    world.sql("INSERT INTO final.sales VALUES (DATE'2024-01-10', 1, 100), (DATE'2024-02-20', 1, 5), (NULL, 1, 1)")
    done = world.run(week, so_far)
    assert (done["agg.week"].strategy, done["agg.so_far"].strategy) == ("ranges", "full")
    assert "without day" in done["agg.so_far"].why
    assert "2 ranges and rows without a value" in done["agg.week"].why
    assert done["agg.week"].changed <= 16
    world.sql("DELETE FROM final.sales WHERE day = DATE'2024-02-28'")
    done = world.run(week, so_far)
    assert done["agg.so_far"].changed <= 2
    world.sql("UPDATE final.sales SET shop = 9 WHERE day = DATE'2024-01-05'")
    assert world.run(week, so_far)["agg.week"].changed == 0


def test_a_change_of_a_table_without_the_time_recomputes_everything(lake: Lake) -> None:
    world = World(lake, "sales (day DATE, shop INT, n INT)", "shops (id INT, name STRING)")
    world.sql("INSERT INTO final.sales VALUES (DATE'2024-01-01', 1, 2)")
    world.sql("INSERT INTO final.shops VALUES (1, 'x')")
    model = {
        "name": "agg.m",
        "sql": "SELECT s.day, p.name, s.n FROM final.sales s LEFT JOIN final.shops p ON s.shop = p.id",
        "range": {"column": "day"},
    }
    world.run(model)
    world.sql("UPDATE final.shops SET name = 'y'")
    done = world.run(model)["agg.m"]
    assert done.strategy == "full"
    assert "final.shops changed, and none of its columns corresponds to day" in done.why


@pytest.mark.long
def test_a_diamond_reads_one_snapshot_of_its_upstream_table(lake: Lake) -> None:
    world = World(lake, "t (id INT, v INT)")
    left_model = {"name": "agg.l", "sql": "SELECT id, v FROM final.t WHERE v > 0"}
    right = {"name": "agg.r", "sql": "SELECT count(*) AS n FROM final.t WHERE v > 0"}
    both = {"name": "agg.b", "sql": "SELECT (SELECT count(*) FROM agg.l) AS l, r.n FROM agg.r r"}
    world.sql("INSERT INTO final.t VALUES (1, 1), (2, 2)")
    world.run(left_model, right, both)
    world.sql("INSERT INTO final.t VALUES (3, 3)")
    # Only one side is updated: the model over both stays where they agree.
    pipeline = world.pipeline(left_model, right, both)
    pipeline.run(lake, ["agg.l"])
    pipeline.run(lake, ["agg.b"])
    assert world.rows("agg.b") == Counter({(2, 2): 1})
    world.run(left_model, right, both)
    assert world.rows("agg.b") == Counter({(3, 3): 1})


def test_another_query_stops_where_that_is_declared(lake: Lake) -> None:
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t VALUES (1, 1)")
    model = {"name": "agg.m", "sql": "SELECT id FROM final.t", "on_query_change": "stop"}
    world.run(model)
    (outcome,) = world.pipeline({**model, "sql": "SELECT id, v FROM final.t"}).run(lake)
    assert isinstance(outcome.exception, DefinitionChangedError)
    assert world.rows("agg.m") == Counter({(1,): 1})
    assert world.run({**model, "sql": "select id from final.t -- the same"})["agg.m"].status == "nothing"


def test_a_column_that_is_dropped_under_a_query_is_named_before_anything_runs(lake: Lake) -> None:
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t VALUES (1, 1)")
    model = {"name": "agg.m", "sql": "SELECT id, v FROM final.t"}
    world.run(model)
    world.sql("ALTER TABLE final.t DROP COLUMN v")
    world.sql("INSERT INTO final.t VALUES (2)")
    (outcome,) = world.pipeline(model).run(lake)
    assert isinstance(outcome.exception, ModelError)
    assert "final.t has id" in str(outcome.exception)


def test_added_and_renamed_columns_of_a_source_are_absorbed(lake: Lake) -> None:
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t VALUES (1, 1), (2, 2)")
    world.run({"name": "agg.m", "sql": "SELECT id, v FROM final.t"})
    world.sql("ALTER TABLE final.t RENAME COLUMN v TO w")
    world.sql("ALTER TABLE final.t ADD COLUMN x INT")
    model = {"name": "agg.m", "sql": "SELECT id, w AS v FROM final.t WHERE x IS NULL"}
    world.run(model)
    world.sql("UPDATE final.t SET x = 1 WHERE id = 1")
    assert world.run(model)["agg.m"].deleted == 1


def test_a_rollback_of_a_source_is_absorbed(lake: Lake) -> None:
    with_refresh_states(lake)
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t VALUES (1, 1)")
    before = lake.table("final.t").metadata.current_snapshot_id
    world.sql("INSERT INTO final.t VALUES (2, 1)")
    model = {"name": "agg.m", "sql": "SELECT v, count(*) AS n FROM final.t GROUP BY v"}
    world.run(model)
    assert represents(lake, "agg.m", "final.t")
    world.sql(f"CALL lake.system.rollback_to_snapshot('final.t', {before})")
    assert world.run(model)["agg.m"].strategy == "retract"
    assert represents(lake, "agg.m", "final.t")


def test_a_declared_key_that_two_rows_share_is_an_error_and_nothing_is_written(lake: Lake) -> None:
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t VALUES (1, 1), (2, 2)")
    model = {"name": "agg.m", "sql": "SELECT id, v FROM final.t", "key": ["id"]}
    world.run(model)
    world.sql("UPDATE final.t SET v = 5 WHERE id = 1")
    assert world.run(model)["agg.m"].updated == 1
    world.sql("INSERT INTO final.t VALUES (3, 1), (3, 2)")
    (outcome,) = world.pipeline(model).run(lake)
    assert isinstance(outcome.exception, KeyMissingError)
    assert world.rows("agg.m") == Counter({(1, 5): 1, (2, 2): 1})


def test_zeros_of_both_signs_null_and_nan_are_distinct_values(lake: Lake) -> None:
    world = World(lake, "t (id INT, d DOUBLE)")
    world.sql("INSERT INTO final.t VALUES (1, 0.0D), (2, -0.0D), (3, double('NaN')), (4, double('NaN')), (5, NULL)")
    model = {"name": "agg.m", "sql": "SELECT d FROM final.t"}

    def values() -> list[str]:
        return sorted(str(r.d) for r in lake.spark().table("agg.m").collect())

    world.pipeline(model).run(lake)
    world.sql("DELETE FROM final.t WHERE id IN (2, 3)")
    world.pipeline(model).run(lake)
    assert values() == ["0.0", "None", "nan"]
    world.sql("UPDATE final.t SET d = -0.0D WHERE id = 1")
    world.pipeline(model).run(lake)
    assert values() == ["-0.0", "None", "nan"]


def test_a_large_change_is_recomputed_and_a_declared_share_decides(lake: Lake) -> None:
    world = World(lake, "t (id INT, v INT)")
    world.sql("INSERT INTO final.t SELECT id, id % 7 FROM range(20000)")
    model = {"name": "agg.m", "sql": "SELECT v, count(*) AS n FROM final.t GROUP BY v"}
    world.run(model)
    world.sql("INSERT INTO final.t SELECT id, id % 7 FROM range(30000)")
    done = world.run(model)["agg.m"]
    assert done.strategy == "full"
    assert "estimated to be cheaper" in done.why
    world.sql("INSERT INTO final.t SELECT id, id % 7 FROM range(30000)")
    done = world.run({**model, "full_above": 0.9})["agg.m"]
    assert (done.strategy, "30,000 of 80,000 rows changed" in str(done.details["estimate"])) == ("retract", True)


def test_explain_shows_the_operators_the_key_and_pending_changes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lake, "t (id INT, v INT)", "u (id INT, name STRING)")
    world.sql("INSERT INTO final.t VALUES (1, 1)")
    world.sql("INSERT INTO final.u VALUES (1, 'x')")
    sql = "SELECT u.name, count(*) AS n FROM final.t t JOIN final.u u ON t.v = u.id GROUP BY u.name"
    world.run({"name": "agg.m", "sql": sql})
    spec = spec_of(TableId.parse("agg.m"), lake.table("agg.m"))
    assert isinstance(spec, ModelSpec)
    assert explain(lake, spec).state == "current"
    world.sql("INSERT INTO final.t VALUES (2, 1)")
    explanation = explain(lake, spec)
    assert (explanation.strategy, explanation.now, explanation.state, explanation.key) == (
        "retract",
        "retract",
        "pending",
        ("name",),
    )
    assert explanation.lineage == {"name": ("final.u.name",), "n": ()}
    assert explanation.operators is not None
    assert [o.what.split(" ")[0] for o in explanation.operators.below] == ["INNER"]
    from lake_assets.cli import application
    from lake_assets.commands import explain as command

    monkeypatch.setattr(command.Lake, "load", classmethod(lambda *_: lake))
    output = CliRunner().invoke(application(), ["explain", "agg.m"])
    assert output.exit_code == 0, output.output


# --- without Spark --------------------------------------------------------------------------------------------------


def test_adjacent_ranges_are_merged() -> None:
    assert merged([(5, 7), (1, 2), (3, 4), (9, 9), (6, 6)]) == [(1, 7), (9, 9)]


def test_the_time_is_traced_through_groups_and_joins() -> None:
    from lake_assets.models.sql.model_plan import plan

    sql = (
        "SELECT o.day, count(*) AS n FROM final.orders o JOIN (SELECT day AS d, max(price) AS p FROM final.orders "
        "GROUP BY day) m ON o.day = m.d JOIN final.users u ON u.id = o.user_id GROUP BY o.day"
    )
    tree = plan("agg.m", sql, SCHEMAS).tree
    assert tree is not None
    times = column_expressions(tree, "day")
    assert [text(times[id(s)]).split("_")[0] if id(s) in times else None for s in scans(tree.root)] == [
        "`day",
        "`day",
        None,
    ]


def test_past_runs_count_for_more_than_the_share() -> None:
    assert Estimate(300_000, 1_000_000, True, 0.25).prefers_full
    assert not Estimate(300_000, 1_000_000, True, 0.25, incremental=1.0, full=9.0).prefers_full
    assert Estimate(30_000, 1_000_000, True, 0.25, incremental=9.0, full=1.0).prefers_full
    # A small change is absorbed whatever past runs took: otherwise one slow run would decide forever.
    assert not Estimate(3_000, 1_000_000, True, 0.25, incremental=9.0, full=1.0).prefers_full
    assert not Estimate(5, 8, True, 0.25).prefers_full  # a handful of rows


TWO_RUNS = {
    "keys": "SELECT g, max(v) AS top FROM final.t GROUP BY g",
    "retract": "SELECT g, count(*) AS n, sum(v) AS s FROM final.t GROUP BY g",
    "copies": "SELECT g, v FROM final.t",
    "full": "SELECT id, g, row_number() OVER (ORDER BY v, id) AS place FROM final.t",
}


@pytest.mark.long
@pytest.mark.parametrize(
    "more", [False, pytest.param(True, marks=pytest.mark.long)], ids=["same window", "larger window"]
)
def test_a_run_that_another_one_overtakes_loses_and_repeats_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, more: bool
) -> None:
    world, other = World(lake, "t (id INT, g STRING, v INT)"), Lake(lake.config)
    models = [{"name": f"agg.{name}", "sql": sql} for name, sql in TWO_RUNS.items()]
    world.sql("INSERT INTO final.t VALUES (1, 'a', 1), (2, 'a', 2), (3, 'b', 3)")
    world.run(*models)
    overtaken: list[str] = []

    def overtake(name: str) -> None:
        """Let another run finish after this one has read the sources and before it writes."""
        if name not in overtaken:
            overtaken.append(name)
            if more:
                world.sql(f"INSERT INTO final.t VALUES ({10 + len(overtaken)}, 'a', 0), (20, 'd', 1)")
                world.sql("DELETE FROM final.t WHERE v = 3")
            (outcome,) = world.pipeline(*models).run(other, [name])
            assert outcome.status == "absorbed", outcome

    for write in ("replace", "count_copies", "overwrite"):
        called = getattr(TableWriter, write)

        def late(self: TableWriter, *args: Any, _called: Any = called, **kwargs: Any) -> None:
            overtake(str(self.commit.table))
            _called(self, *args, **kwargs)

        monkeypatch.setattr(TableWriter, write, late)
    world.sql(
        "INSERT INTO final.t VALUES (4, 'b', 9), (5, 'c', 5)",
    )
    world.sql("UPDATE final.t SET g = 'b' WHERE id = 2")
    # Rows that arrived in between are absorbed by the next run at the latest.
    world.pipeline(*models).run(lake)
    assert sorted(overtaken) == sorted(f"agg.{name}" for name in TWO_RUNS)
    outcomes = world.run(*models)
    assert {o.error for o in outcomes.values()} == {None}
    assert {o.status for o in world.run(*models).values()} == {"nothing"}


@pytest.mark.long
def test_models_with_maps_follow_their_keys(lake: Lake) -> None:
    models = [
        {"name": "agg.ages", "key": ["id"], "sql": "SELECT id, map('age', age) AS m FROM final.people"},
        {"name": "agg.oldest", "sql": "SELECT city, map('age', max(age)) AS m FROM final.people GROUP BY city"},
        {
            "name": "agg.cities",
            "sql": "SELECT city, map('n', count(*)) AS m, count(*) AS n FROM final.people GROUP BY city",
        },
    ]
    people = People(lake, *models, seed=3)
    people.land(40)
    people.run()
    for _ in range(3):
        people.land(3)
        outcomes = people.run()
        assert not [o for o in outcomes.values() if o.status == "failed"]
        assert not [o for o in outcomes.values() if str(o.table).startswith("agg.") and o.strategy == "full"]
        people.check()

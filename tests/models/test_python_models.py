"""Python models: whatever happens to their inputs, each table holds the rows of its function over all input rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets import Changes, Lake, Lookup, Pipeline, model
from lake_assets.errors import KeyMissingError, ModelError
from lake_assets.models.python.python_model import PythonModel
from lake_assets.pipeline import Outcome, PipelineConfig
from lake_assets.pipeline.step_retries import absorb
from lake_assets.pipeline.verification import verify
from tests.support.kills import Points, killed_everywhere
from tests.support.pipeline_runs import run
from tests.support.plays import MODELS, History, daily, days, enriched, expected, log, plays, total
from tests.support.python_models import pipeline, rows_in
from tests.support.refresh_states import represents, with_refresh_states
from tests.support.seeds import seeds


def check(lake: Lake, p: Pipeline, history: History) -> None:
    expected_rows = expected(list(history.plays.values()), history.corrections, history.genres)
    for spec in p.specs(lake):
        if spec.table.name != "log":
            assert rows_in(lake, str(spec.table)) == expected_rows[str(spec.table)], spec.table


def follow(lake: Lake, seed: int, mode: str, batches: int) -> None:
    history, p = History(lake, seed, mode), pipeline(*MODELS)
    history.arrive()
    run(lake, p)
    for n in range(batches):
        history.empty() if n == batches - 2 else history.step()
        run(lake, p)
        check(lake, p, history)
    assert {o.status for o in run(lake, p).values()} == {"nothing"}
    assert all(verify(lake, spec).equal for spec in p.specs(lake) if spec.table.name != "log")


@pytest.mark.parametrize("batches", [1, pytest.param(3, marks=pytest.mark.long)])
def test_tables_equal_their_functions_over_everything_after_each_batch(lake: Lake, batches: int) -> None:
    follow(lake, 7, "copy-on-write", batches)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 2))
def test_tables_equal_their_functions_over_everything_in_many_histories(lake: Lake, seed: int) -> None:
    follow(lake, seed, ("copy-on-write", "merge-on-read")[seed % 2], 12)


# --- kills and races ----------------------------------------------------------------------------------------------


@pytest.mark.long  # as killed steps of tables
def test_a_step_that_is_killed_anywhere_is_done_once(lake: Lake, points: Points) -> None:
    history, p = History(lake, 3, "merge-on-read"), pipeline(log, enriched, daily, days, plays, total)
    history.arrive()
    run(lake, p)
    appended = sum(rows_in(lake, "agg.log").values())
    before = set(history.plays)
    history.arrive()
    for spec in p.specs(lake):
        assert killed_everywhere(points, partial(absorb, lake, spec)), spec.table
    check(lake, p, history)
    assert sum(rows_in(lake, "agg.log").values()) == appended + len(history.plays.keys() - before)


def test_rows_that_another_run_appended_meanwhile_are_not_appended_again(lake: Lake) -> None:
    history, p = History(lake, 4, "merge-on-read"), pipeline(log)
    history.arrive()
    run(lake, p)
    history.arrive()
    others: list[Outcome] = []

    @model("agg.log", write="append")
    def slow(playback: Changes) -> DataFrame:
        if not others:
            others.extend(pipeline(log).run(lake))
        return log(playback)

    assert [o.status for o in pipeline(slow).run(lake)] == ["nothing"]
    assert sum(rows_in(lake, "agg.log").values()) == len(history.plays)


def test_a_table_that_another_run_creates_first_is_not_replaced(
    new_lake: Callable[[str], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, other = new_lake("lake"), new_lake("lake")
    History(lake, 14, "merge-on-read").arrive()
    models = [{"name": "agg.n", "sql": "SELECT count(*) AS n FROM src.playback"}]
    config = PipelineConfig.model_validate({"name": "own", "models": models})
    p, run_sql, tables = Pipeline(config, models=(log,)), SparkSession.sql, dict[str, str]()

    def late(session: SparkSession, text: str, *arguments: Any, **more: Any) -> DataFrame:
        created = [t for t in ("agg.n", "agg.log") if text.startswith("CREATE ") and lake.sql_name(t) in text]
        if (name := next(iter(created), "")) and name not in tables:
            tables[name] = ""
            p.run(other, [name])
            tables[name] = str(lake.table(name).metadata.table_uuid)
        return run_sql(session, text, *arguments, **more)

    monkeypatch.setattr(SparkSession, "sql", late)
    assert {t: o.status for t, o in run(lake, p).items()} == {"agg.n": "nothing", "agg.log": "nothing"}
    for name in ("agg.n", "agg.log"):
        table = lake.table(name)
        assert str(table.metadata.table_uuid) == tables[name]
        assert len(table.snapshots()) == 1


# --- reports and costs of a step ----------------------------------------------------------------------------------


def test_an_input_that_was_only_compacted_calls_no_function(lake: Lake) -> None:
    history, calls = History(lake, 5, "merge-on-read"), list[int]()
    history.arrive()
    history.arrive()

    @model("agg.counted", write="overwrite")
    def counted(playback: Changes) -> DataFrame:
        calls.append(1)
        return playback.table.groupBy().count()

    p = pipeline(counted, daily)
    first = run(lake, p)
    assert {o.strategy for o in first.values()} == {"full"}
    history.compact()
    again = run(lake, p)
    assert {o.strategy for o in again.values()} == {"none"}
    assert len(calls) == 1


def test_only_rows_that_differ_are_written(lake: Lake) -> None:
    with_refresh_states(lake)
    history, p = History(lake, 6, "merge-on-read"), pipeline(daily, days, total)
    for _ in range(4):
        history.arrive()
    run(lake, p)
    lake.spark().sql(
        f"INSERT INTO {lake.sql_name('src.playback')} SELECT 99, 'x', 'a', TIMESTAMP '2026-03-09 10:00', 5"
    )
    assert {t: (o.inserted + o.updated, o.deleted) for t, o in run(lake, p).items()} == {
        "agg.daily": (1, 0), "agg.days": (1, 0), "agg.total": (1, 1)
    }  # fmt: skip
    assert represents(lake, "agg.daily", "src.playback")


def test_lookups_trigger_nothing_unless_declared(lake: Lake) -> None:
    history = History(lake, 8, "merge-on-read")

    @model("agg.named", write="merge", key="id", on_lookup_change="rebuild")
    def named(playback: Changes, titles: Lookup) -> DataFrame:
        return playback.rows.join(titles.table, "title", "left").select("id", "genre")

    history.arrive()
    p = pipeline(enriched, named)
    run(lake, p)
    lake.spark().sql(f"UPDATE {lake.sql_name('src.titles')} SET genre = 'farce' WHERE title = 'b'")
    outcomes = run(lake, p)
    assert outcomes["agg.enriched"].status == "nothing"
    assert outcomes["agg.named"].why == "a lookup changed"
    assert rows_in(lake, "agg.named") == Counter(
        (i, {"a": "drama", "b": "farce"}.get(t or "")) for i, _, t, _, _ in history.plays.values()
    )


@pytest.mark.long
def test_a_new_version_and_new_columns_rebuild_the_table(lake: Lake) -> None:
    history = History(lake, 9, "merge-on-read")
    history.arrive()
    run(lake, pipeline(daily))

    def declared(version: str, *more: str) -> PythonModel:
        @model("agg.daily", write="replace-keys", key="account", replace="account", version=version)
        def changed(playback: Changes) -> DataFrame:
            counts = [F.count("*").alias("n"), *(F.lit(1).alias(c) for c in more)]
            return playback.affected().groupBy("account").agg(*counts)

        return changed

    assert run(lake, pipeline(declared("1")))["agg.daily"].why == "its declaration changed"
    assert run(lake, pipeline(declared("1", "one")))["agg.daily"].status == "nothing"
    assert run(lake, pipeline(declared("2", "one")))["agg.daily"].strategy == "full"
    history.arrive()
    outcome = run(lake, pipeline(declared("2", "one", "two")))["agg.daily"]
    assert outcome.why == "its columns, or their types, changed"
    accounts = Counter(a for _, a, *_ in history.plays.values())
    assert rows_in(lake, "agg.daily") == Counter((a, n, 1, 1) for a, n in accounts.items())


def test_verify_finds_a_function_that_ignores_changes(lake: Lake) -> None:
    history = History(lake, 10, "merge-on-read")
    history.arrive()

    @model("agg.wrong", write="merge", key="account")
    def wrong(playback: Changes) -> DataFrame:
        return playback.rows.groupBy("account").agg(F.sum("seconds").alias("seconds"))

    p = pipeline(wrong)
    run(lake, p)
    assert verify(lake, p.specs(lake)[0]).equal
    lake.spark().sql(f"INSERT INTO {lake.sql_name('src.playback')} SELECT 90 + id, account, title, started_at, 7 "
                     f"FROM {lake.sql_name('src.playback')}")  # fmt: skip
    run(lake, p)
    assert not verify(lake, p.specs(lake)[0]).equal


def failing(lake: Lake, function: Callable[..., Any], **declared: Any) -> Outcome:
    (outcome,) = pipeline(model("agg.failing", **declared)(function)).run(lake)
    assert outcome.status == "failed"
    assert not lake.exists("agg.failing")
    return outcome


def test_errors_of_a_function_name_its_place(lake: Lake) -> None:
    history = History(lake, 11, "merge-on-read")
    history.arrive()

    def divides(playback: Changes) -> DataFrame:
        return playback.rows.limit(1 // 0)

    def misspells(playback: Changes) -> DataFrame:
        return playback.rows.select("secnods")

    def counts(playback: Changes) -> DataFrame:
        return playback.rows.count()  # type: ignore[return-value]

    def doubles(playback: Changes) -> DataFrame:
        return playback.rows.unionAll(playback.rows).select("id")

    def unnamed(playback: Changes) -> DataFrame:
        return playback.rows.select("seconds")

    told = {f.__name__: failing(lake, f, write="append").error or "" for f in (divides, misspells, counts)}
    assert "divides raised ZeroDivisionError" in told["divides"]
    assert "test_python_models.py, line" in told["divides"]
    assert "Spark does not accept misspells" in told["misspells"]
    assert "secnods" in told["misspells"]
    assert "counts returned int: return a DataFrame" in told["counts"]
    assert isinstance(failing(lake, doubles, write="merge", key="id").exception, KeyMissingError)
    outcome = failing(lake, unnamed, write="merge", key="id")
    assert isinstance(outcome.exception, ModelError)
    assert "`key` names id; the rows of its function have seconds" in str(outcome.error)


@pytest.mark.long
def test_a_table_can_be_read_in_several_ways(lake: Lake) -> None:
    history = History(lake, 12, "merge-on-read")
    history.arrive()
    inputs = {"began": "src.playback", "titled": "src.playback", "all_plays": "src.playback"}

    @model(
        "agg.pairs",
        write="replace-keys",
        replace={"name": {"began": "account", "titled": "title"}},
        inputs=inputs,
    )
    def pairs(began: Changes, titled: Changes, all_plays: Lookup) -> DataFrame:
        rows = began.affected().selectExpr("account AS name", "seconds")
        assert all_plays.snapshot == began.window.head.snapshot
        return rows.unionAll(titled.affected().selectExpr("title AS name", "seconds"))

    p = pipeline(pairs)
    for _ in range(3):
        run(lake, p)
        both = [(name, p[4]) for p in history.plays.values() for name in (p[1], p[2])]
        assert rows_in(lake, "agg.pairs") == Counter(both)
        history.step()
    assert run(lake, p)["agg.pairs"].strategy in ("replace-keys", "none")


@pytest.mark.long
def test_values_that_cannot_be_compared_are_replaced_too(lake: Lake) -> None:
    history = History(lake, 13, "merge-on-read")

    def with_map(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("id", "to_date(started_at) AS day", "map('seconds', seconds) AS facts")

    @model("agg.merged", write="merge", key="id")
    def merged(playback: Changes) -> DataFrame:
        gone = playback.feed("id").where("_change_type <> 'update_before'")
        return gone.selectExpr(
            "id",
            "to_date(started_at) AS day",
            "map('seconds', seconds) AS facts",
            "_change_type = 'delete' AS _deleted",
        )

    @model("agg.by_key", write="replace-keys", replace="id")
    def by_key(playback: Changes) -> DataFrame:
        return with_map(playback.affected())

    @model("agg.by_range", write="replace-ranges", replace={"day": "to_date(started_at)"})
    def by_range(playback: Changes) -> DataFrame:
        return with_map(playback.affected())

    p = pipeline(merged, by_key, by_range)
    history.arrive()
    for _ in range(3):
        run(lake, p)
        wanted = Counter((i, at.date() if at else None, s) for i, _, _, at, s in history.plays.values())
        for table in ("agg.merged", "agg.by_key", "agg.by_range"):
            rows = lake.spark().table(table).collect()
            assert Counter((r["id"], r["day"], r["facts"]["seconds"]) for r in rows) == wanted, table
        history.step()

"""Sources without rows: created empty, replaced by an empty table, or dropped and created again; readers follow them.

A table with a schema and no snapshot is an empty table, for new readers and for those that have absorbed its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame

from lake_assets import Changes, Lake, Pipeline, model
from lake_assets.errors import NotAnAncestorError, TableReplacedError
from lake_assets.health.table_status import table_status
from lake_assets.models.explanation import explain
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model import PythonModel
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.verification import verify
from tests.support.models import Proof
from tests.support.queries import Query

A, B = "src.a (id INT, g STRING, v INT)", "src.b (id INT, name STRING)"
SQL: Mapping[str, str] = {
    "agg.sums": "SELECT g, count(*) AS n, sum(v) AS s FROM src.a GROUP BY g",
    "agg.total": "SELECT count(*) AS n, sum(v) AS s FROM src.a",
    "agg.named": "SELECT a.id, a.v, b.name FROM src.a a JOIN src.b b ON a.id = b.id",
    "agg.every": "SELECT b.id, b.name, a.v FROM src.b b LEFT JOIN src.a a ON a.id = b.id",
    "agg.spans": "SELECT id, g, v FROM src.a WHERE v > 0",
    "agg.ranked": "SELECT id, row_number() OVER (ORDER BY v, id) AS place FROM src.a",
}
RANGED = {"name": "agg.spans", "sql": SQL["agg.spans"], "range": {"column": "id"}}


def created(*tables: str) -> list[str]:
    return [f"CREATE OR REPLACE TABLE {t} USING iceberg" for t in tables]


def created_again(*tables: str) -> list[str]:
    return [s for t in tables for s in (f"DROP TABLE {t.split()[0]}", f"CREATE TABLE {t} USING iceberg")]


FILL = (
    "INSERT INTO src.a VALUES (1, 'x', 1), (2, 'y', 2), (3, 'y', 2), (4, NULL, -3)",
    "INSERT INTO src.b VALUES (1, 'one'), (2, 'two'), (9, 'nine')",
)


def pipeline_of(*python: PythonModel, **settings: str) -> Pipeline:
    models = [{**(RANGED if n == "agg.spans" else {"name": n, "sql": sql}), **settings} for n, sql in SQL.items()]
    return Pipeline(PipelineConfig.model_validate({"name": "p", "models": [] if python else models}), models=python)


def proof_of(lake: Lake, **settings: str) -> Proof:
    proof = Proof(lake, {name: Query(sql, ()) for name, sql in SQL.items()}, ["src.a", "src.b"])
    proof.pipeline = pipeline_of(**settings)
    return proof


@pytest.mark.long  # as sources that are dropped and created again
def test_models_follow_sources_that_are_created_or_replaced_without_rows(lake: Lake) -> None:
    proof = proof_of(lake)
    proof.sql(*created(A, B))
    assert len(proof.pipeline.pending(lake)) > 0
    proof.run(spark=False)  # new models over empty tables
    assert proof.pipeline.pending(lake) == []
    assert {o.status for o in proof.run(spark=False).values()} == {"nothing"}
    proof.sql(FILL[1])
    proof.run(spark=False)  # one source is still empty
    proof.sql(FILL[0])
    before = proof.strategies.copy()
    proof.run(spark=False)
    assert {"retract", "keys", "ranges", "full"} <= (proof.strategies - before).keys()
    proof.sql(*created(A), "INSERT INTO src.b VALUES (3, 'three')")
    assert {p.table for p in proof.pipeline.pending(lake)} == set(SQL)
    every = next(s for s in proof.pipeline.specs(lake) if str(s.table) == "agg.every")
    assert isinstance(every, ModelSpec)
    assert explain(lake, every).state == "pending"
    behind = table_status(lake, every.table)
    assert (behind.behind, behind.rows_behind) == ({"src.a": 1, "src.b": 1}, 5)
    proof.run(spark=False)  # the new row of the other source is absorbed, too
    assert verify(lake, every).equal
    assert proof.pipeline.pending(lake) == []
    assert {o.status for o in proof.run(spark=False).values()} == {"nothing"}
    proof.sql("INSERT INTO src.b VALUES (4, 'four')", FILL[0])
    proof.run(spark=False)
    proof.sql(*created("src.a (id BIGINT, g STRING, v INT, more STRING)", B))
    proof.run(spark=False)
    proof.sql("INSERT INTO src.a VALUES (1, 'x', 5, '')")
    proof.run(spark=False)


@pytest.mark.long
def test_models_follow_sources_that_are_dropped_and_created_again_without_rows_as_declared(lake: Lake) -> None:
    proof = proof_of(lake, on_replaced="rebuild")
    proof.sql(*created(A, B), *FILL)
    proof.run(spark=False)
    proof.sql(*created_again(A), "INSERT INTO src.b VALUES (3, 'three')")
    stopping = pipeline_of()
    failed = {o.table: o.exception for o in stopping.run(lake, ["agg.sums", "agg.every"])}
    assert {type(e) for e in failed.values()} == {TableReplacedError}
    # The command that the error names.
    for table, error in failed.items():
        assert f"`lake-assets rebuild {table}`" in str(error)
        stopping.rebuild(lake, table)
    outcomes = proof.run(spark=False)
    assert (outcomes["agg.sums"].status, outcomes["agg.named"].status) == ("nothing", "absorbed")
    proof.sql(*created_again(A), FILL[0])  # nothing was absorbed from the table that was dropped
    outcomes = proof.run(spark=False)
    assert not [o for o in outcomes.values() if o.strategy == "rebuild"]
    assert {o.status for o in stopping.run(lake)} == {"nothing"}


# --- Python models --------------------------------------------------------------------------------------------------


@model("agg.copied", write="merge", key="id")
def copied(a: Changes) -> DataFrame:
    return a.feed("id").where("_change_type <> 'update_before'").selectExpr(
        "id", "v", "_change_type = 'delete' AS _deleted"
    )  # fmt: skip


@model("agg.whole", write="overwrite")
def whole(a: Changes, b: Changes) -> DataFrame:
    return a.table.join(b.table, "id").select("id", "name")


@model("agg.replaced", write="replace-keys", replace="g")
def replaced(a: Changes) -> DataFrame:
    return a.affected().groupBy("g").count()


@model("agg.log", write="append")
def log(a: Changes, b: Changes) -> DataFrame:
    new = a.feed().selectExpr("'a' AS which", "id", "_change_type AS what")
    return new.unionAll(b.feed().selectExpr("'b'", "id", "_change_type"))


def rows_in(lake: Lake, sql: str) -> Counter[Any]:
    return Counter(tuple(r) for r in lake.spark().sql(sql).collect())


def changes_of(which: str, what: str, ids: Sequence[int]) -> Counter[Any]:
    return Counter((which, n, what) for n in ids)


@pytest.mark.long
def test_python_models_receive_the_rows_of_an_emptied_source_as_deletes(lake: Lake) -> None:
    pipeline, sql = pipeline_of(copied, whole, replaced, log), lake.spark().sql
    lake.ensure_namespace(("src",))

    def run(*statements: str) -> None:
        for statement in statements:
            sql(statement)
        outcomes = pipeline.run(lake)
        assert {o.error for o in outcomes} == {None}
        assert rows_in(lake, "SELECT id, v FROM agg.copied") == rows_in(lake, "SELECT id, v FROM src.a")
        joined = rows_in(lake, "SELECT id, name FROM src.a JOIN src.b USING (id)")
        assert rows_in(lake, "SELECT id, name FROM agg.whole") == joined
        counted = rows_in(lake, "SELECT g, count(*) FROM src.a GROUP BY g")
        assert rows_in(lake, "SELECT g, count FROM agg.replaced") == counted
        assert pipeline.pending(lake) == []
        assert {o.status for o in pipeline.run(lake)} == {"nothing"}

    run(*created(A, B))
    run(FILL[1])
    run(FILL[0])
    expected = changes_of("b", "insert", [1, 2, 9]) + changes_of("a", "insert", [1, 2, 3, 4])
    assert rows_in(lake, "SELECT which, id, what FROM agg.log") == expected
    run(*created(A), "INSERT INTO src.b VALUES (3, 'three')")
    expected += changes_of("a", "delete", [1, 2, 3, 4]) + changes_of("b", "insert", [3])
    assert rows_in(lake, "SELECT which, id, what FROM agg.log") == expected
    run(FILL[0])
    expected += changes_of("a", "insert", [1, 2, 3, 4])
    assert rows_in(lake, "SELECT which, id, what FROM agg.log") == expected
    for statement in created_again(A):
        sql(statement)
    errors = {o.table: str(o.exception) for o in pipeline.run(lake)}
    assert "`lake-assets rebuild agg.copied`" in errors["agg.copied"]
    pipeline.rebuild(lake, "agg.copied")
    assert rows_in(lake, "SELECT id, v FROM agg.copied") == Counter()


def test_the_capture_of_an_emptied_table_is_all_of_its_rows(lake: Lake) -> None:
    lake.ensure_namespace(("src",))
    for statement in (*created(A), FILL[0]):
        lake.spark().sql(statement)
    start = lake.table("src.a").metadata.current_snapshot_id
    lake.spark().sql(*created(A))
    with pytest.raises(NotAnAncestorError, match="the table was replaced by an empty one"):
        lake.capture("src.a", start, granularity="snapshot")
    with lake.capture("src.a", start) as captured:
        feed = captured.feed(lake.spark()).collect()
        assert Counter(r["_change_type"] for r in feed) == Counter(delete=4)
        assert (captured.ranges["id"].low, captured.ranges["id"].high) == (1, 4)

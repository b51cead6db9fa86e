"""Models of one run that read the same source share its changed rows."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from pyspark.sql import SparkSession

from lake_assets import Lake, Pipeline
from lake_assets.capture import Capture
from lake_assets.lake import TableId
from lake_assets.models.operators.kept_frames import Frame
from lake_assets.models.steps import shared_changes
from lake_assets.models.steps.shared_changes import ChangeId, SharedChanges
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.verification import verify
from lake_assets.tables.writing.row_differences import SIGN

MODELS = {
    "agg.by_city": "SELECT city, count(*) AS n, sum(y) AS s FROM raw.a GROUP BY city",
    "agg.greatest": "SELECT city, max(x) AS m FROM raw.a GROUP BY city",
    "agg.cities": "SELECT DISTINCT city FROM raw.a",
    "agg.both": "SELECT a.id, a.city, b.y FROM raw.a JOIN raw.b ON a.id = b.id",
}


@pytest.fixture(autouse=True)
def _no_views_of_killed_runs(spark_lake: Lake) -> None:
    """Runs that other tests have killed leave theirs in the JVM."""
    for view in views(spark_lake.spark()):
        spark_lake.spark().catalog.dropGlobalTempView(view)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the changed rows of each table are computed."""
    read: Counter[str] = Counter()
    signed = Capture.signed

    def counted(self: Capture, *args: object, **more: object) -> object:
        read[str(self.window.table)] += 1
        return signed(self, *args, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Capture, "signed", counted)
    return read


def declared(lake: Lake, **models: str) -> Pipeline:
    chosen = {f"agg.{n}": sql for n, sql in models.items()} or MODELS
    spark = lake.spark()
    for table in ("a", "b"):
        lake.ensure_namespace(("raw",))
        spark.sql(
            f"CREATE TABLE lake.raw.{table} (id BIGINT, city STRING, x DOUBLE, y INT, other STRING) USING iceberg"
        )
        spark.sql(f"INSERT INTO lake.raw.{table} SELECT id, concat('c', id % 3), id / 2, id, 'o' FROM range(30)")
    listed = [{"name": n, "sql": sql} for n, sql in chosen.items()]
    return Pipeline(PipelineConfig.model_validate({"name": "p", "models": listed}))


def run(lake: Lake, pipeline: Pipeline, *sql: str) -> dict[str, str]:
    """Change the sources and run the models; returns their strategies. Each equals its query."""
    for statement in sql:
        lake.spark().sql(statement)
    outcomes = {o.table: o for o in pipeline.run(lake)}
    assert [o.error for o in outcomes.values() if o.error] == []
    assert [str(s.table) for s in pipeline.specs(lake) if not verify(lake, s).equal] == []  # pyright: ignore[reportArgumentType]
    return {t: o.strategy for t, o in outcomes.items()}


def views(spark: SparkSession) -> list[str]:
    return [
        v for (v,) in spark.sql("SHOW VIEWS IN global_temp LIKE 'lake_assets_shared_*'").select("viewName").collect()
    ]


@pytest.mark.long
def test_a_change_that_several_models_read_is_computed_once(lake: Lake, reads: Counter[str]) -> None:
    pipeline = declared(lake)
    run(lake, pipeline)
    reads.clear()
    strategies = run(
        lake,
        pipeline,
        "UPDATE lake.raw.a SET city = 'c9', x = -1 WHERE id IN (4, 5)",
        "DELETE FROM lake.raw.b WHERE id = 4",
    )
    assert set(strategies.values()) == {"retract", "keys"}
    assert reads == {"raw.a": 1, "raw.b": 1}
    assert views(lake.spark()) == []


@pytest.mark.long
def test_a_change_in_other_columns_concerns_only_the_models_that_read_them(lake: Lake, reads: Counter[str]) -> None:
    pipeline = declared(lake)
    run(lake, pipeline)
    strategies = run(lake, pipeline, "UPDATE lake.raw.a SET other = 'p' WHERE id < 9")
    assert set(strategies.values()) == {"none"}
    strategies = run(lake, pipeline, "UPDATE lake.raw.a SET x = 99 WHERE id = 3")
    assert {t for t, s in strategies.items() if s != "none"} == {"agg.greatest"}


@pytest.mark.long
def test_signs_of_zero_and_nan_are_changes_and_equal_numbers_are_none(lake: Lake) -> None:
    pipeline = declared(
        lake, low="SELECT id, x FROM raw.a", high="SELECT city, max(x) AS m, min(x) AS l FROM raw.a GROUP BY city"
    )
    run(lake, pipeline, "UPDATE lake.raw.a SET x = 0.0 WHERE id < 3")
    strategies = run(
        lake,
        pipeline,
        "UPDATE lake.raw.a SET x = -0.0D WHERE id = 1",
        "UPDATE lake.raw.a SET x = double('NaN') WHERE id = 2",
    )
    assert "none" not in strategies.values()
    stored = dict(lake.spark().table("lake.agg.low").where("id < 3").select("id", "x").collect())
    assert math.copysign(1, stored[0]) == 1
    assert math.copysign(1, stored[1]) == -1
    assert math.isnan(stored[2])
    same = "UPDATE lake.raw.a SET x = CASE id WHEN 0 THEN 0.0 WHEN 1 THEN -0.0D ELSE double('NaN') END WHERE id < 3"
    assert set(run(lake, pipeline, same).values()) == {"none"}


@pytest.mark.long
def test_models_that_have_absorbed_different_snapshots_read_their_own_changes(lake: Lake, reads: Counter[str]) -> None:
    pipeline = declared(lake)
    run(lake, pipeline)
    lake.spark().sql("UPDATE lake.raw.a SET y = 7 WHERE id = 1")
    pipeline.run(lake, select=["agg.by_city"])
    reads.clear()
    run(lake, pipeline, "INSERT INTO lake.raw.a VALUES (100, 'c1', 50, 1, 'o')")
    assert reads["raw.a"] == 2


@pytest.mark.long
def test_a_column_that_is_renamed_and_widened_is_shared_under_its_new_name(lake: Lake) -> None:
    pipeline = declared(lake)
    run(lake, pipeline, "UPDATE lake.raw.a SET y = 7 WHERE id = 1")
    renames = [
        "ALTER TABLE lake.raw.a RENAME COLUMN other TO more",
        "ALTER TABLE lake.raw.a ALTER COLUMN y TYPE BIGINT",
    ]
    run(
        lake,
        pipeline,
        "UPDATE lake.raw.a SET y = 8 WHERE id = 2",
        *renames,
        "UPDATE lake.raw.a SET y = 5000000000 WHERE id = 3",
    )


def test_a_model_that_fails_leaves_the_change_to_the_others(lake: Lake, reads: Counter[str]) -> None:
    pipeline = declared(
        lake, cast="SELECT id, CAST(city AS INT) AS c FROM raw.a WHERE id > 90", total="SELECT sum(y) AS s FROM raw.a"
    )
    run(lake, pipeline)
    reads.clear()
    lake.spark().sql("INSERT INTO lake.raw.a VALUES (100, 'no number', 50, 1, 'o')")
    failed, total = pipeline.run(lake)
    assert "no number" in (failed.error or "")
    assert total.strategy == "retract"
    assert views(lake.spark()) == []


@pytest.mark.long
def test_every_session_reads_the_shared_rows_until_all_models_have_ended(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = declared(lake)
    run(lake, pipeline)
    spark = lake.spark()
    shared = SharedChanges(list(pipeline.specs(lake)))  # pyright: ignore[reportArgumentType]
    change = ChangeId(TableId(("raw",), "a"), "", 1, 2, 0)

    def compute(columns: frozenset[str]) -> Frame:
        assert columns == {"city", "x", "y", "id"}
        frame = spark.sql(f"SELECT 'c1' AS city, 1 AS {SIGN}").localCheckpoint()
        return Frame("v", 1, {}, frame)

    models = [TableId(("agg",), n) for n in ("by_city", "greatest", "cities", "both")]
    rows = [shared.rows(lake, m, change, compute) for m in models]
    assert len({id(r) for r in rows}) == 1
    assert rows[0]
    assert spark.newSession().table(rows[0].view).collect() == [("c1", 1)]
    for model in models:
        assert views(spark)
        shared.release(lambda: spark, model)
    assert not views(spark)
    # A killed run leaves its views on a server: a later run drops those of yesterday.
    spark.range(1).createGlobalTempView("lake_assets_shared_1700000000_x")
    rows[0] = SharedChanges(shared.models).rows(lake, models[0], change, compute)
    shared_changes._drop_outdated(spark)  # pyright: ignore[reportPrivateUsage]
    (left,) = views(spark)
    assert rows[0]
    assert rows[0].view.endswith(left)
    spark.catalog.dropGlobalTempView(left)

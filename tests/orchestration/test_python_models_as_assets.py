"""Python models as Dagster assets: lineage, runs that their inputs trigger, metadata, partitions, mixed graphs."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lake_assets import Changes, Lake, Lookup, Pipeline, model
from lake_assets.pipeline import PipelineConfig
from tests.support import plays
from tests.support.dagster_harness import Harness, metadata_of, selected
from tests.support.plays import DAY, History, enriched
from tests.support.python_models import rows_in


@pytest.fixture
def daily_by_partition() -> Pipeline:
    @model(
        "agg.daily",
        write="replace-keys",
        key="day",
        replace=DAY,
        partitions={"by": "day", "every": "day", "start": "2026-03-01"},
        audits=[{"not_null": "n"}],
    )
    def daily(playback: Changes):
        """Rows by day."""
        return playback.affected().where("started_at IS NOT NULL").groupBy("started_at").count().selectExpr(
            "to_date(started_at) AS day", "count AS n"
        ).groupBy("day").sum("n").withColumnRenamed("sum(n)", "n")  # fmt: skip

    downstream = {"name": "agg.all", "sql": "SELECT sum(n) AS n FROM agg.daily"}
    config = PipelineConfig.model_validate({"name": "own", "models": [downstream]})
    return Pipeline(config, models=[daily, enriched])


@pytest.mark.long
def test_inputs_trigger_runs_and_lookups_do_not(
    daily_by_partition: Pipeline, lake: Lake, instance: dg.DagsterInstance
) -> None:
    history = History(lake, 1, "merge-on-read")
    history.arrive()
    own = Harness(daily_by_partition, lake, instance)
    graph = own.defs.resolve_asset_graph()
    node = graph.get(dg.AssetKey(["agg", "enriched"]))
    assert {k.path[-1] for k in node.parent_keys} == {"playback", "titles"}
    assert {"iceberg", "spark", "python"} <= set(graph.get(dg.AssetKey(["agg", "daily"])).kinds)

    request = own.request()
    assert selected(request) == {"agg.daily", "agg.enriched", "agg.all"}
    result = own.run(request)
    assert result.success
    metadata = metadata_of(result, "agg", "enriched")
    assert metadata["rows_inserted"] == len(history.plays)
    assert metadata["strategy"] == "full: first run"
    assert own.skipped().startswith("nothing new")

    lake.spark().sql(f"UPDATE {lake.sql_name('src.titles')} SET genre = 'farce'")
    assert own.skipped().startswith("nothing new")
    history.arrive()
    request = own.request()
    result = own.run(request)
    assert result.success
    assert sum(n for (n,) in rows_in(lake, "agg.all")) == sum(1 for p in history.plays.values() if p[3])
    checks = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    assert checks
    assert all(checks.values())


def test_an_asset_says_what_it_reads_and_opens_its_function(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    """Given a function and SQL over changes; then only the function has the kind `python` and a line in a file."""
    by_sql = {"name": "agg.log", "write": "append", "sql": "SELECT * FROM {{ changes('src.playback') }}"}
    config = PipelineConfig.model_validate({"name": "own", "models": [by_sql]})
    pipeline = Pipeline(config, models=[enriched])
    plain_lake.ensure_namespace(("src",))
    for name in ("playback", "titles"):
        plain_lake.catalog.create_table(f"src.{name}", Schema(NestedField(1, "id", LongType())))
    specs = {s.key.path[-1]: s for s in Harness(pipeline, plain_lake, instance).defs.resolve_all_asset_specs()}
    function, sql = specs["enriched"], specs["log"]
    assert "Computed by `enriched` from the changes of `src.playback`, with `src.titles` as it is." in (
        function.description or ""
    )
    (reference,) = function.metadata["dagster/code_references"].code_references
    assert reference.file_path == str(Path(plays.__file__))
    assert Path(plays.__file__).read_text().splitlines()[reference.line_number - 1].startswith("@model(")
    assert sql.kinds == {"agg", "iceberg", "spark"}
    assert (sql.description or "").startswith("Computed from the changes of `src.playback`. Its rows are applied with")
    assert "dagster/code_references" not in sql.metadata


def test_a_backfill_recomputes_the_chosen_partition(
    daily_by_partition: Pipeline, lake: Lake, instance: dg.DagsterInstance
) -> None:
    history = History(lake, 2, "merge-on-read")
    for _ in range(5):
        history.arrive()
    own = Harness(daily_by_partition, lake, instance)
    assert own.run(own.request()).success
    before = rows_in(lake, "agg.daily")
    (day, _), *_ = before
    lake.spark().sql(f"UPDATE {lake.sql_name('agg.daily')} SET n = -1")
    job = own.defs.get_repository_def().get_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection=frozenset({dg.AssetKey(["agg", "daily"])}))
    result = subset.execute_in_process(instance=instance, partition_key=str(day))
    assert result.success
    damaged = {d: n for d, n in rows_in(lake, "agg.daily") if n == -1}
    assert damaged.keys() == {d for d, _ in before} - {day}
    assert {(d, n) for d, n in rows_in(lake, "agg.daily") if d == day} == {(d, n) for d, n in before if d == day}


def test_a_lookup_is_a_table_of_the_pipeline_too(lake: Lake, instance: dg.DagsterInstance) -> None:
    history = History(lake, 3, "merge-on-read")
    history.arrive()

    @model("agg.genres", write="overwrite")
    def genres(titles: Changes):
        return titles.table

    @model("agg.counted", write="overwrite", inputs={"genres": "agg.genres"})
    def counted(playback: Changes, genres: Lookup):
        return playback.table.join(genres.table, "title").groupBy("genre").count()

    p = Pipeline(PipelineConfig(name="own"), models=[counted, genres])
    assert [str(s.table) for s in p.specs(lake)] == ["agg.genres", "agg.counted"]
    assert {o.status for o in p.run(lake)} == {"absorbed"}
    lake.spark().sql(f"INSERT INTO {lake.sql_name('src.titles')} VALUES ('c', 'noir')")
    assert {o.table: o.status for o in p.run(lake)} == {"agg.genres": "absorbed", "agg.counted": "nothing"}

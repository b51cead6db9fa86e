"""Partitioned tables in Dagster: marks of micro-batches, late data, mixed runs, kills."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from dagster._core.asset_graph_view.asset_graph_view import AssetGraphView
from dagster._core.definitions.temporal_context import TemporalContext
from dagster._core.execution.asset_backfill import AssetBackfillData

from lake_assets import Lake, Pipeline
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.orchestration import partition_marks
from lake_assets.orchestration.dagster_partitions import definition
from lake_assets.orchestration.partition_marks import mark_progress
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.verification import verify
from tests.support.dagster_harness import Harness, selected
from tests.support.partitioned_orders import BERLIN, MODELS, Days
from tests.support.seeds import seeds


def check(lake: Lake, instance: dg.DagsterInstance, seed: int, steps: int) -> None:
    days = Days(lake, instance, seed)
    days.land(30)
    days.run()
    for _ in range(steps):
        days.land(days.orders.choose.choice([1, 2, 5]))
        days.run()
    days.check()


BY_TIME = {"by": "at", "every": "month", "timezone": "Europe/Berlin", "start": "2024-02-10"}
READS = "SELECT id, at, country FROM final.orders"


@pytest.mark.parametrize(
    ("partitions", "kind"),
    [
        (BY_TIME, dg.MonthlyPartitionsDefinition),
        ({"by": "country", "values": ["de", "a,b"]}, dg.StaticPartitionsDefinition),
        ("country", dg.DynamicPartitionsDefinition),
    ],
)
def test_a_declaration_becomes_dagsters_partitions(
    plain_lake: Lake, instance: dg.DagsterInstance, partitions: Any, kind: type[dg.PartitionsDefinition[str]]
) -> None:
    below = {"name": "agg.below", "sql": READS, "partitions": BY_TIME}
    days = Days(plain_lake, instance, 0, {"partitions": partitions}, [below])
    repository = days.harness.defs.get_repository_def()
    node = repository.asset_graph.get(dg.AssetKey(["final", "orders"]))
    assert isinstance(node.partitions_def, kind)
    assert node.backfill_policy == dg.BackfillPolicy.single_run()
    assert node.parent_keys == {dg.AssetKey(["staging", "orders"])}
    assert repository.asset_graph.get(dg.AssetKey(["staging", "orders"])).partitions_def is None
    keys = [] if kind is dg.DynamicPartitionsDefinition else node.partitions_def.get_partition_keys()
    if kind is dg.StaticPartitionsDefinition:
        assert keys == ["de", "a%2Cb", "__other__"]
    elif keys:
        assert keys[0] == "2024-02-01"
        # The current month has a partition.
        assert keys[-1] == datetime.now(ZoneInfo("Europe/Berlin")).strftime("%Y-%m-01")
    # With one partitions definition, the pipeline has a job; with several, only Dagster's own job can have them.
    assert repository.has_job("p") == (kind is dg.MonthlyPartitionsDefinition)
    sensor = repository.get_sensor_def("p_capture_sensor")
    days.land(1)
    with dg.build_sensor_context(instance=instance, repository_def=repository) as context:
        (request,) = sensor.evaluate_tick(context).run_requests or []
    assert request.partition_key is None
    assert (request.job_name or sensor.job_name) == ("p" if repository.has_job("p") else "__ASSET_JOB")
    assert dg.AssetKey(["agg", "below"]) in (request.asset_selection or [])


@pytest.mark.parametrize(
    ("every", "start", "end", "last"),
    [
        ("hour", "2024-02-10", "2024-02-12", "2024-02-11-23:00"),
        ("day", "2024-02-10", "2024-03-01", "2024-02-29"),
        ("month", "2023-05-10", "2024-03-01", "2024-02-01"),
    ],
)
def test_declared_partitions_end_before_their_end(
    plain_lake: Lake, every: str, start: str, end: str, last: str
) -> None:
    partitions = {"by": "at", "every": every, "timezone": "Europe/Berlin", "start": start, "end": end}
    model = {"name": "agg.m", "sql": READS, "partitions": partitions}
    (spec,) = Pipeline(PipelineConfig.model_validate({"name": "p", "models": [model]})).specs(plain_lake)
    made = definition(spec)
    assert made is not None
    assert made.get_last_partition_key() == last


@pytest.mark.parametrize(("zone", "expected"), [("Europe/Berlin", {"2024-10-25"}), ("UTC", None)])
def test_a_backfill_includes_downstream_partitions(
    plain_lake: Lake, instance: dg.DagsterInstance, zone: str, expected: set[str] | None
) -> None:
    below = {"name": "agg.below", "sql": READS, "partitions": {**BERLIN, "timezone": zone}}
    days = Days(plain_lake, instance, 0, models=[below])
    graph = days.harness.defs.get_repository_def().asset_graph
    data = AssetBackfillData.from_asset_partitions(
        graph, ["2024-10-25"], [dg.AssetKey(["final", "orders"]), dg.AssetKey(["agg", "below"])], instance,
        datetime.now(UTC).timestamp(), all_partitions=False,
    )  # fmt: skip
    partitions = data.target_subset.get_partitions_subset(dg.AssetKey(["agg", "below"])).get_partition_keys()
    # Time windows of two time zones are not mapped: all partitions are included.
    assert set(partitions) == expected if expected else len(list(partitions)) > 300


KINDS: Mapping[str, Any] = {
    "day": {"by": "at", "every": "day", "timezone": "Europe/Berlin", "start": "2024-10-20", "end": "2024-11-03"},
    "month": {"by": "at", "every": "month", "timezone": "Europe/Berlin", "start": "2024-10-20", "end": "2024-12-01"},
    "utc": {"by": "at", "every": "day", "timezone": "UTC", "start": "2024-10-25", "end": "2024-11-10"},
    "values": {"by": "country", "values": ["de", "fr"]},
    "more values": {"by": "country", "values": ["de", "it"]},
    "rows": "country",
    "other rows": "kind",
}


@pytest.mark.parametrize("upstream", KINDS)
def test_partitions_of_any_kinds_load_and_can_be_launched_together(
    plain_lake: Lake, instance: dg.DagsterInstance, upstream: str
) -> None:
    models = [{"name": "agg.top", "sql": "SELECT id, at, country, kind FROM src.t", "partitions": KINDS[upstream]}]
    for n, kind in enumerate(KINDS):
        models.append({"name": f"agg.m{n}", "sql": "SELECT * FROM agg.top", "partitions": KINDS[kind]})
    config = PipelineConfig.model_validate({"name": "p", "models": models})
    defs = Harness(Pipeline(config), plain_lake, instance).defs
    dg.Definitions.validate_loadable(defs)
    for table in ("agg.top", *(f"agg.m{n}" for n in range(len(KINDS)))):
        # A country that comes from another source is no partition upstream.
        instance.add_dynamic_partitions(table, ["de", "us"] if table == "agg.top" else ["de", "at", "__null__"])
    graph = defs.get_repository_def().asset_graph
    view = AssetGraphView(
        temporal_context=TemporalContext(effective_dt=datetime.now(UTC), last_event_id=None),
        instance=instance,
        asset_graph=graph,
    )
    keys = {k.to_user_string(): k for k in graph.materializable_asset_keys}
    for name, key in keys.items():
        partitions = graph.get(key).partitions_def
        assert partitions is not None
        chosen = partitions.get_partition_keys(dynamic_partitions_store=instance)
        for selected_keys in ([key], [*keys.values()] if name == "agg/top" else [key]):
            for one in chosen:
                data = AssetBackfillData.from_asset_partitions(
                    graph, [one], selected_keys, instance, time.time(), all_partitions=False
                )
                for target in data.target_subset.asset_keys:
                    subset = view.get_entity_subset_from_asset_graph_subset(data.target_subset, target)
                    for parent in graph.get(target).parent_keys & {*keys.values()}:
                        _, missing = view.compute_parent_subset_and_required_but_nonexistent_subset(parent, subset)
                        assert missing.is_empty, (name, one, target, parent)


@pytest.mark.parametrize(
    ("upstream", "below"),
    [("day", "month"), ("day", "values"), ("rows", "values"), ("values", "more values"), ("", "day"), ("", "rows")],
)
def test_partitions_load_though_those_upstream_are_of_another_pipeline(
    plain_lake: Lake, instance: dg.DagsterInstance, upstream: str, below: str
) -> None:
    configs: list[dict[str, Any]] = [
        {"name": "a", "models": [{"name": "agg.top", "sql": "SELECT id, at, country FROM src.t"}]},
        {"name": "b", "models": [{"name": "agg.below", "sql": "SELECT * FROM agg.top", "partitions": KINDS[below]}]},
    ]
    if upstream:
        configs[0]["models"][0]["partitions"] = KINDS[upstream]
    parts = [Harness(Pipeline(PipelineConfig.model_validate(c)), plain_lake, instance).defs for c in configs]
    both = dg.Definitions(assets=[a for p in parts for a in p.assets or []], resources=parts[0].resources)
    dg.Definitions.validate_loadable(both)


def test_values_that_a_list_does_not_name_are_in_its_other_rows(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    models = [
        {"name": "agg.top", "sql": "SELECT id, at, country, kind FROM src.t", "partitions": KINDS["values"]},
        {"name": "agg.below", "sql": "SELECT * FROM agg.top", "partitions": KINDS["more values"]},
    ]
    config = PipelineConfig.model_validate({"name": "p", "models": models})
    graph = Harness(Pipeline(config), plain_lake, instance).defs.get_repository_def().asset_graph
    top, below = dg.AssetKey(["agg", "top"]), dg.AssetKey(["agg", "below"])
    for chosen, expected in (("de", {"de"}), ("fr", {"__other__"}), ("__other__", {"it", "__other__"})):
        data = AssetBackfillData.from_asset_partitions(
            graph, [chosen], [top, below], instance, time.time(), all_partitions=False
        )
        assert set(data.target_subset.get_partitions_subset(below).get_partition_keys()) == expected


@pytest.mark.parametrize("batches", [1, pytest.param(3, marks=pytest.mark.long)])
def test_late_data_reaches_all_downstream_tables_and_marks_changed_partitions(
    lake: Lake, instance: dg.DagsterInstance, batches: int
) -> None:
    days = Days(lake, instance, 1)
    days.land(30)
    result = days.run()
    # One run, without a partition key, of tables with three partitions definitions and of tables without any.
    assert not result.dagster_run.tags.get("dagster/partition")
    assert [str(f.transform) for f in lake.table("final.orders").spec().fields] == ["day"]
    assert [str(f.transform) for f in lake.table("agg.some").spec().fields] == ["identity"]
    countries = {str(row[0] or "__null__") for row in days.rows("agg.countries")}
    assert set(instance.get_dynamic_partitions("agg.countries")) == countries
    for _ in range(batches):
        days.land(days.orders.choose.choice([1, 2, 5]))
        days.run()
        for name in days.partitioned:
            progress = mark_progress(instance, TableId.parse(name))
            assert progress
            assert progress.snapshot == lake.table(name).metadata.current_snapshot_id
    days.check()
    assert days.harness.skipped().startswith("nothing new")


@pytest.mark.long  # test_partition_backfill and test_recompute do so in every run
def test_a_backfill_recomputes_its_partitions_and_publishes_differences(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    days = Days(lake, instance, 2, models=MODELS[:2])
    days.land(40)
    days.run()
    by, table = days.partitioned["final.orders"], lake.sql_name("final.orders")
    keys = {row[0]: str(by.key_of(row[1].replace(tzinfo=UTC))) for row in days.rows("final.orders")}
    (first, n), (second, _) = Counter(keys.values()).most_common(2)
    assert n > 3
    damaged, deleted, relocated = [i for i, k in keys.items() if k == first][:3]
    unselected = next(i for i, k in keys.items() if k == second)
    good = days.rows("final.orders")
    # Damage two partitions, and move a row from one to the other.
    lake.spark().sql(f"UPDATE {table} SET amount = 77 WHERE id IN ({damaged}, {unselected})")
    lake.spark().sql(f"DELETE FROM {table} WHERE id = {deleted}")
    lake.spark().sql(
        f"UPDATE {table} SET at = (SELECT max(at) FROM {table} WHERE id = {unselected}) WHERE id = {relocated}"
    )
    history, watermark = len(lake.table("final.orders").history()), read_marks(lake.table("final.orders"))

    result = backfill(days, first, "final.orders", "agg.wide")
    rest = days.rows("final.orders")
    wrong = list(rest - good)
    assert [(row[0], row[3]) for row in wrong] == [(unselected, 77)]
    assert rest.total() == good.total()
    assert len(lake.table("final.orders").history()) == history + 1
    assert read_marks(lake.table("final.orders")) == watermark
    marks = days.marks(result)
    assert {first, second} == set(marks["final.orders"])
    # The damage is included, since the partitions were not marked after it.
    assert first in marks["agg.wide"]
    assert verify(lake, days.specs["agg.wide"]).equal  # type: ignore[arg-type]

    # Again: nothing differs or is written, but the selected partition is marked.
    heads = [lake.table(t).metadata.current_snapshot_id for t in ("final.orders", "agg.wide")]
    again = days.marks(backfill(days, first, "final.orders", "agg.wide"))
    assert heads == [lake.table(t).metadata.current_snapshot_id for t in ("final.orders", "agg.wide")]
    assert {name: set(partitions) for name, partitions in again.items() if partitions} == {
        "final.orders": {first}, "agg.wide": {first}
    }  # fmt: skip

    # Downstream tables follow by the sensor, and absorbing continues as before.
    days.land(3)
    days.run()
    backfill(days, second, "final.orders")
    days.run()
    days.check()


def backfill(days: Days, key: str, *tables: str) -> dg.ExecuteInProcessResult:
    """Run what Dagster's backfill of one partition runs."""
    assets = frozenset(dg.AssetKey(t.split(".")) for t in tables)
    tags = {"dagster/asset_partition_range_start": key, "dagster/asset_partition_range_end": key}
    job = days.harness.job.get_subset(asset_selection=assets)
    result = job.execute_in_process(instance=days.harness.instance, tags=tags, raise_on_error=False)
    assert result.success, [e.message for e in result.all_events if e.is_failure]
    return result


@pytest.mark.long
def test_the_next_run_marks_what_a_killed_run_did_not(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = Days(lake, instance, 3, models=[])
    days.land(30)
    with monkeypatch.context() as patch:
        patch.setattr(partition_marks, "_progress_json", killed)
        assert not days.harness.run(days.harness.request()).success
    whole = days.changed("final.orders", Counter(), days.rows("final.orders"))
    assert mark_progress(instance, TableId.parse("final.orders")) is None
    # The table is up to date: the run is requested only for the marks.
    request = days.harness.request()
    assert selected(request) == {"final.orders"}
    marks = days.marks(days.harness.run(request))["final.orders"]
    assert {key: metadata["rows"] for key, metadata in marks.items()} == dict(whole)
    assert days.harness.skipped().startswith("nothing new")
    # Compaction rewrites files without changing a partition.
    lake.spark().sql(
        "CALL lake.system.rewrite_data_files(table => 'final.orders', options => map('rewrite-all', 'true'))"
    )
    assert days.harness.skipped().startswith("nothing new")
    days.land(2)
    days.run()
    # Changes by other writers are marked too.
    lake.spark().sql("DELETE FROM final.orders WHERE id = (SELECT min(id) FROM final.orders)")
    assert len(days.marks(days.harness.run(days.harness.request()))["final.orders"]) == 1


def killed(_: object) -> str:
    raise RuntimeError("killed")


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(10, 3))
def test_random_histories(lake: Lake, instance: dg.DagsterInstance, seed: int) -> None:
    check(lake, instance, seed, 12)

"""Audits as asset checks: in the definitions, and in what runs report."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from jsonschema import Draft202012Validator

from lake_assets import Lake, LakePipeline, Pipeline
from lake_assets.orchestration import build_definitions
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness, selected
from tests.support.debezium import INT, TEXT, Event, Table, to_lines, write_lines

T = Table({"id": INT, "city": TEXT})
MODEL = {
    "name": "agg.m",
    "sql": "SELECT city, count(*) AS n FROM final.t GROUP BY city",
    "audits": [
        {"accepted_values": {"city": ["a", "b"]}},
        {"equals_query": {"sample": "50%"}},
        {"equals_query": {"schedule": "0 * * * *"}, "name": "hourly", "severity": "warn"},
    ],
}
FINAL = dg.AssetKey(["final", "t"])
AGG = dg.AssetKey(["agg", "m"])


def pipeline(*audits: Any, table: str = "public.t", more: tuple[Any, ...] = ()) -> Pipeline:
    stream = {"name": "events", "tables": [{"table": table, "audits": list(audits)}, *more]}
    return Pipeline(PipelineConfig.model_validate({"name": "p", "streams": [stream], "models": [MODEL]}))


def land(harness: Harness, number: int, *rows: tuple[Any, int, str | None]) -> None:
    events = [
        Event(T, op, (number * 100 + n, number * 100 + n), {"id": i, "city": c}) for n, (op, i, c) in enumerate(rows)
    ]
    write_lines(harness.lake.config.home / "landing" / "events" / f"{number:04}.jsonl", to_lines(events))


def checked(result: dg.ExecuteInProcessResult) -> dict[str, tuple[bool, str]]:
    evaluations = result.get_asset_check_evaluations()
    return {".".join((*e.asset_key.path, e.check_name)): (e.passed, e.severity.value) for e in evaluations}


def test_every_audit_is_a_check_and_comparisons_have_their_own_job_and_schedules(plain_lake: Lake) -> None:
    audits = ("unique", {"not_null": "city", "severity": "warn"}, {"relationships": {"city": "final.c.id"}})
    defs = build_definitions(pipeline(*audits, more=("public.c",)), plain_lake)
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    blocking = {(k.asset_key, k.name): graph.get(k).blocking for k in graph.asset_check_keys if k.name != "upkeep"}
    assert blocking == {
        (FINAL, "unique"): True,
        (FINAL, "not_null_city"): False,
        (FINAL, "relationships_city"): True,
        (AGG, "accepted_values_city"): True,
        (AGG, "equals_query"): False,
        (AGG, "hourly"): False,
    }
    specs = {s.key: s for s in defs.resolve_all_asset_specs()}
    # Steps of one run keep the order that the audits need.
    above = {"staging/t", "final/c"}
    assert {d.asset_key.to_user_string() for d in specs[FINAL].deps} == above
    steps = {n.name for n in defs.resolve_job_def("p").nodes}
    assert "final__t" in steps
    assert not [s for s in steps if "equals" in s or "hourly" in s]
    assert {k.name for k in defs.resolve_job_def("p_verify").asset_layer.asset_graph.asset_check_keys} >= {
        "equals_query",
        "hourly",
    }
    assert {s.name: s.cron_schedule for s in defs.schedules or [] if isinstance(s, dg.ScheduleDefinition)} == {
        "p_verify_schedule_1": "0 * * * *",
        "p_verify_schedule_2": "0 3 * * *",
    }


def test_a_failed_audit_is_a_failed_check_and_a_failed_step_until_it_is_corrected(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    harness = Harness(pipeline({"not_null": "city"}, {"unique": "city", "severity": "warn"}), lake, instance)
    land(harness, 1, ("c", 1, "a"), ("c", 2, "a"))
    result = harness.run(harness.request())
    assert result.success
    assert checked(result) == {
        "final.t.not_null_city": (True, "ERROR"),
        "final.t.unique_city": (False, "WARN"),
        "agg.m.accepted_values_city": (True, "ERROR"),
    }
    head = lake.table("final.t").metadata.current_snapshot_id

    land(harness, 2, ("c", 3, None), ("c", 4, "b"))
    result = harness.run(harness.request())
    assert not result.success
    assert lake.table("final.t").metadata.current_snapshot_id == head
    assert checked(result)["final.t.not_null_city"] == (False, "ERROR")
    failure = result.failure_data_for_node("final__t")
    assert failure
    assert failure.error
    assert "AuditFailedError" in (failure.error.message or "")
    (evaluation,) = [e for e in result.get_asset_check_evaluations() if e.check_name == "not_null_city"]
    assert evaluation.blocking
    assert evaluation.metadata["failing_rows"].value == 1
    rows = evaluation.metadata["rows"]
    assert isinstance(rows, dg.TableMetadataValue)
    assert [r.data for r in rows.records] == [{"id": "3", "city": None}]

    # It waits like other failures, and counts from zero after a change of the declaration.
    assert "final.t failed and is retried in" in harness.skipped()
    harness.pipeline = pipeline({"not_null": "id"})
    harness.reload()
    assert selected(harness.request()) >= {"final.t", "agg.m"}
    harness.pipeline = pipeline({"not_null": "city"}, {"unique": "city", "severity": "warn"})
    harness.reload()
    # Or after new changes in the source.
    land(harness, 3, ("u", 3, "c"))
    result = harness.run(harness.request())
    assert checked(result)["final.t.not_null_city"] == (True, "ERROR")
    assert checked(result)["agg.m.accepted_values_city"] == (False, "ERROR")
    assert not result.success

    # Checks can be executed alone, over the published table.
    job = harness.defs.resolve_implicit_global_asset_job_def()
    keys = [
        dg.AssetCheckKey(FINAL, "unique_city"),
        dg.AssetCheckKey(AGG, "hourly"),
        dg.AssetCheckKey(AGG, "equals_query"),
    ]
    alone = job.get_subset(asset_selection=set(), asset_check_selection=set(keys)).execute_in_process(instance=instance)
    assert not alone.get_asset_materialization_events()
    assert checked(alone) == {
        "final.t.unique_city": (False, "WARN"),
        "agg.m.hourly": (True, "WARN"),
        "agg.m.equals_query": (True, "ERROR"),
    }
    lake.spark().sql("INSERT INTO agg.m VALUES ('zz', 9)")
    compared = harness.defs.resolve_job_def("p_verify").execute_in_process(instance=instance)
    (hourly,) = [e for e in compared.get_asset_check_evaluations() if e.check_name == "hourly"]
    assert (hourly.passed, hourly.severity.value, hourly.metadata["differing_rows"].value) == (False, "WARN", 1)


@pytest.mark.long
def test_a_change_of_a_table_that_audits_read_retries_the_audited_table(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE final.c (id STRING) USING iceberg")
    harness = Harness(pipeline({"relationships": {"city": "final.c.id"}}), lake, instance)
    land(harness, 1, ("c", 1, "a"))
    assert not harness.run(harness.request()).success
    # agg.m is created without rows: final.t has none until its first batch passes.
    without_rows = harness.request()
    assert selected(without_rows) == {"agg.m"}
    assert harness.run(without_rows).success
    assert "final.t failed and is retried in" in harness.skipped()
    lake.spark().sql("INSERT INTO final.c VALUES ('a')")
    assert harness.run(harness.request()).success


@pytest.mark.long
def test_tables_without_an_asset_report_their_audits_too(lake: Lake, instance: dg.DagsterInstance) -> None:
    harness = Harness(pipeline({"not_null": "city"}, table="public.*"), lake, instance)
    land(harness, 1, ("c", 1, None))
    result = harness.run(harness.request())
    assert not result.success
    assert checked(result)["final.t.not_null_city"] == (False, "ERROR")
    assert "AuditFailedError" in str(result.failure_data_for_node("p__new_tables"))
    land(harness, 2, ("u", 1, "b"))
    harness.reload()
    assert checked(harness.run(harness.request()))["final.t.not_null_city"] == (True, "ERROR")


@pytest.mark.parametrize("name", ["p", "p_verify"])
def test_jobs_of_a_pipeline_with_comparisons_resolve(plain_lake: Lake, name: str) -> None:
    assert build_definitions(pipeline(), plain_lake).resolve_job_def(name).name == name


def test_the_component_keeps_audits_as_declared() -> None:
    sql = "SELECT * FROM {table} WHERE id < 0"
    declared = ["unique", {"accepted_values": {"id": [1, "x"]}}, {"name": "s", "sql": sql}, {"row_count_change": "5%"}]
    stream = {"name": "e", "tables": [{"table": "public.a", "audits": declared}]}
    component = LakePipeline.from_attributes_dict(attributes={"name": "p", "streams": [stream], "models": [MODEL]})
    audits = component.streams[0].tables[0].audits
    assert [a.kinds for a in audits] == [["unique"], ["accepted_values"], ["sql"], ["row_count_change"]]
    assert audits[1].accepted_values == {"id": ["1", "x"]}
    assert audits[2].sql == sql
    assert [a.kinds[0] for a in component.models[0].audits] == ["accepted_values", "equals_query", "equals_query"]
    schema = LakePipeline.model().model_json_schema()
    assert not list(Draft202012Validator(schema).iter_errors({"name": "p", "streams": [stream], "models": [MODEL]}))
    wrong = {"name": "e", "tables": [{"table": "public.a", "audits": [{"not_nul": "id"}]}]}
    assert list(Draft202012Validator(schema).iter_errors({"name": "p", "streams": [wrong]}))

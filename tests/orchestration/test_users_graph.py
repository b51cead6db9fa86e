"""Lake tables in a user's asset graph: upstream and downstream assets, one run, checks and conditions."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.orchestration import build_definitions
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness, OtherSession, selected
from tests.support.debezium import BIGINT, TEXT, Event, Table, to_lines, write_lines

USERS = Table({"id": BIGINT, "city": TEXT}, name="public.users")
FINAL = dg.AssetKey(["final", "users"])


def pipeline(**stream: Any) -> Pipeline:
    declared = {"name": "crm", "streams": [{"name": "crm", "tables": ["public.users"], **stream}]}
    return Pipeline(PipelineConfig.model_validate(declared))


def land(lake: Lake, name: str, *rows: tuple[int, str]) -> Path:
    folder = lake.config.home / "landing" / "crm"
    folder.mkdir(parents=True, exist_ok=True)
    events = (Event(USERS, "c", (i, i), {"id": i, "city": city}) for i, city in rows)
    return write_lines(folder / f"{name}.jsonl", to_lines(events))


@dg.asset(deps=[FINAL], required_resource_keys={"pyspark"})
def cities(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
    """A user's plain table, fully refreshed."""
    spark = context.resources.pyspark.spark_session
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.mart")
    spark.sql("CREATE OR REPLACE TABLE lake.mart.cities USING iceberg AS SELECT DISTINCT city FROM lake.final.users")
    return dg.MaterializeResult(metadata={"rows": spark.table("lake.mart.cities").count()})


@dg.asset_check(asset=FINAL, required_resource_keys={"pyspark"})
def every_user_has_a_city(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    users = context.resources.pyspark.spark_session.table("lake.final.users")
    return dg.AssetCheckResult(passed=not users.where("city IS NULL").count())


def merged(lake: Lake, **more: Any) -> dg.Definitions:
    """Merge a user's definitions with a pipeline's; the Spark session is the pipeline's."""
    everything = dg.define_asset_job("everything", selection="*")
    schedule = dg.ScheduleDefinition(name="nightly", job=everything, cron_schedule="0 3 * * *")
    own = dg.Definitions([cities], asset_checks=[every_user_has_a_city], jobs=[everything], schedules=[schedule])
    return dg.Definitions.merge(build_definitions(pipeline(**more), lake, pyspark=OtherSession(lake)), own)


def test_incremental_tables_and_plain_assets_run_in_one_job(lake: Lake, instance: dg.DagsterInstance) -> None:
    defs = merged(lake)
    dg.Definitions.validate_loadable(defs)
    for n, rows in enumerate([((1, "Bonn"), (2, "Ulm")), ((3, "Ulm"), (4, "Kiel"))]):
        land(lake, str(n), *rows)
        result = defs.resolve_job_def("everything").execute_in_process(instance=instance)
        evaluations = result.get_asset_check_evaluations()
        assert [e.passed for e in evaluations if e.check_name != "upkeep"] == [True]
    metadata = {e.asset_key: e.materialization.metadata for e in result.get_asset_materialization_events()}
    assert metadata[FINAL]["rows_inserted"].value == 2
    assert metadata[dg.AssetKey(["cities"])]["rows"].value == 3
    assert lake.spark().table("lake.final.users").count() == 4


def test_a_users_schedule_coexists_with_the_pipelines_job_and_sensor(plain_lake: Lake) -> None:
    defs = merged(plain_lake)
    repository = defs.get_repository_def()
    assert {"everything", "crm"} <= set(repository.job_names)
    assert repository.has_sensor_def("crm_capture_sensor")
    assert repository.has_schedule_def("nightly")


def test_the_sensor_requests_only_lake_tables(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    land(plain_lake, "0", (1, "Bonn"))
    requested = Harness(pipeline(), plain_lake, instance).request()
    assert selected(requested) == {"raw.crm", "staging.users", "final.users"}


def test_an_asset_downstream_of_a_lake_table_follows_its_own_condition(
    plain_lake: Lake, instance: dg.DagsterInstance
) -> None:
    report = dg.AssetSpec("report", deps=[FINAL])  # like those that dagster-dbt creates from models and sources

    @dg.multi_asset(specs=[report.replace_attributes(automation_condition=dg.AutomationCondition.any_deps_updated())])
    def reports() -> None: ...

    defs = dg.Definitions.merge(build_definitions(pipeline(), plain_lake), dg.Definitions([reports]))
    before = dg.evaluate_automation_conditions(defs, instance)
    assert before.total_requested == 0
    instance.report_runless_asset_event(dg.AssetMaterialization(FINAL))
    after = dg.evaluate_automation_conditions(defs, instance, cursor=before.cursor)
    assert after.get_requested_partitions(report.key) == {None}


def test_a_condition_can_be_put_on_lake_tables(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = build_definitions(pipeline(depends_on=["exports/crm"]), plain_lake)
    condition = dg.AutomationCondition.any_deps_updated()
    defs = dg.Definitions.merge(
        definitions.map_resolved_asset_specs(
            func=lambda s: s.replace_attributes(automation_condition=condition, owners=["team:crm"]),
            selection="key:raw/crm",
        ),
        dg.Definitions([dg.AssetSpec(["exports", "crm"])]),
    )
    dg.Definitions.validate_loadable(defs)
    raw = dg.AssetKey(["raw", "crm"])
    assert next(s for s in defs.resolve_all_asset_specs() if s.key == raw).owners == ["team:crm"]
    before = dg.evaluate_automation_conditions(defs, instance)
    instance.report_runless_asset_event(dg.AssetMaterialization(["exports", "crm"]))
    after = dg.evaluate_automation_conditions(defs, instance, cursor=before.cursor)
    assert after.get_requested_partitions(raw) == {None}


def test_a_foreign_asset_runs_first_if_a_run_has_both(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(key=["exports", "crm"])
    def export() -> None:
        land(plain_lake, "0", (1, "Bonn"), (2, "Ulm"))

    definitions = build_definitions(pipeline(depends_on=["exports/crm"]), plain_lake)
    both = dg.define_asset_job("both", selection=dg.AssetSelection.assets(["exports", "crm"], ["raw", "crm"]))
    defs = dg.Definitions.merge(definitions, dg.Definitions([export], jobs=[both]))
    result = defs.resolve_job_def("both").execute_in_process(instance=instance)
    done = [e.asset_key for e in result.get_asset_materialization_events()]
    assert done == [dg.AssetKey(["exports", "crm"]), dg.AssetKey(["raw", "crm"])]
    assert plain_lake.table("raw.crm").scan().to_arrow().num_rows == 2


def test_the_sensor_does_not_wait_for_a_foreign_asset(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    harness = Harness(pipeline(depends_on=["exports/crm"]), plain_lake, instance)
    assert harness.skipped() == "nothing new: 3 tables are up to date"
    instance.report_runless_asset_event(dg.AssetMaterialization(["exports", "crm"]))
    assert harness.skipped() == "nothing new: 3 tables are up to date"
    land(plain_lake, "0", (1, "Bonn"))
    assert "raw.crm" in selected(harness.request())


@pytest.mark.parametrize("key", [["final", "users"], ["raw", "crm"]])
def test_an_asset_with_the_key_of_a_lake_table_is_rejected_on_load(plain_lake: Lake, key: list[str]) -> None:
    @dg.asset(key=key)
    def taken() -> None: ...

    defs = dg.Definitions.merge(build_definitions(pipeline(), plain_lake), dg.Definitions([taken]))
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=rf"Duplicate asset key: .*{key[0]}.*{key[1]}"):
        dg.Definitions.validate_loadable(defs)

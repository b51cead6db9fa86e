"""Ticks of the capture sensor on real lakes and an ephemeral instance; none of them starts Spark."""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg
import pytest

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.errors import CatalogUnavailableError, InputError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import land
from lake_assets.ingest.raw_tables import ensure_raw
from lake_assets.models.steps.sql_model_step import SqlModelStep
from lake_assets.orchestration.runs.run_retries import MAX_ATTEMPTS
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness, selected
from tests.support.dagster_shop import ALL, RAW, feed, landing


def test_an_empty_lake_is_up_to_date(dry: Harness) -> None:
    assert dry.skipped().startswith("nothing new")


def test_landed_files_request_raw_and_everything_downstream(dry: Harness) -> None:
    feed(dry)
    request = dry.request()
    assert selected(request) == ALL
    assert request.tags["lake_assets/tables"] == "raw.shop_events"
    assert request.tags["lake_assets/captured"] == "2 files, 2,456,127 bytes"


def test_a_second_tick_requests_the_same_run_key(dry: Harness) -> None:
    feed(dry)
    assert dry.request().run_key == dry.request().run_key


def test_a_request_can_be_launched_as_it_is(dry: Harness) -> None:
    feed(dry)
    request = dry.request()
    assert dg.validate_run_config(dry.job, dict(request.run_config))


def test_files_landed_without_dagster_request_the_tables_downstream_of_raw(dry: Harness) -> None:
    feed(dry)
    ensure_raw(dry.lake, RAW, "shop")
    land(dry.lake, RawSpec(RAW, landing(dry), "debezium", "shop"))
    request = dry.request()
    # The stream contains a table that only matches the pattern; it has no asset yet.
    assert selected(request) == ALL - {"raw.shop_events"}
    assert ": raw.shop_events.arrived_at " in request.tags["lake_assets/captured"]
    assert "staging.checkpoint_marker" not in dry.watch.asset_tables
    dry.reload()
    assert selected(dry.request()) >= {"staging.checkpoint_marker", "final.checkpoint_marker"}
    assert "shop.new_tables" not in selected(dry.request())


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED])
def test_a_run_in_progress_delays_the_next_one(dry: Harness, status: dg.DagsterRunStatus) -> None:
    feed(dry)
    run = dry.instance.create_run_for_job(dry.job, status=status)
    assert run.run_id[:8] in dry.skipped()


def test_a_manual_run_of_some_of_its_assets_does_too(dry: Harness) -> None:
    feed(dry)
    by_hand = dry.defs.resolve_implicit_global_asset_job_def()
    keys = frozenset({dg.AssetKey(["final", "users"])})
    run = dry.instance.create_run_for_job(by_hand, status=dg.DagsterRunStatus.STARTED, asset_selection=keys)
    assert run.run_id[:8] in dry.skipped()


def test_a_run_of_other_assets_does_not(dry: Harness) -> None:
    @dg.job
    def elsewhere() -> None: ...

    feed(dry)
    dry.instance.create_run_for_job(elsewhere, status=dg.DagsterRunStatus.STARTED)
    assert selected(dry.request()) == ALL


def cut(harness: Harness) -> Path:
    """A file that ends in the middle of a record: landing it fails, without Spark."""
    landing(harness).mkdir(parents=True, exist_ok=True)
    file = landing(harness) / "0001.jsonl"
    file.write_text('{"payload": {"op"')
    return file


def materialized_by_hand(harness: Harness, *key: str) -> dg.ExecuteInProcessResult:
    """A run without the sensor's tags, as Dagster's UI launches it."""
    job = harness.job.get_subset(asset_selection={dg.AssetKey(key)})
    return job.execute_in_process(instance=harness.instance, raise_on_error=False)


def test_a_failed_run_waits_is_retried_and_is_given_up(dry: Harness) -> None:
    file = cut(dry)
    keys: set[str] = set()
    now = time.time()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        request = dry.request(now)
        keys.add(request.run_key or "")
        assert request.tags.get("lake_assets/attempt", "1") == str(attempt)
        assert not dry.run(request).success
        if attempt < MAX_ATTEMPTS:
            assert "raw.shop_events failed and is retried in" in dry.skipped(time.time())
        now = time.time() + 3600
    assert len(keys) == MAX_ATTEMPTS
    given_up = dry.skipped(now)
    assert f"gave up on raw.shop_events after {MAX_ATTEMPTS} attempts" in given_up
    assert (
        "it is retried when its sources or its declaration change. After any other correction, materialize" in given_up
    )
    # An attempt by hand neither starts the retries again nor counts as one of them.
    assert not materialized_by_hand(dry, "raw", "shop_events").success
    assert dry.skipped(now) == given_up
    file.unlink()
    feed(dry)
    assert "raw.shop_events" in dry.request(now).tags["lake_assets/tables"]


def test_a_corrected_file_is_landed_at_once(dry: Harness) -> None:
    file = cut(dry)
    dry.run(dry.request())
    file.unlink()
    feed(dry)
    assert selected(dry.request()) == ALL


def test_a_failure_names_its_cause_and_is_not_retried(dry: Harness) -> None:
    file = cut(dry)
    result = dry.run(dry.request())
    failure = result.failure_data_for_node("raw__shop_events")
    assert failure
    assert failure.error
    assert "TruncatedInputError" in (failure.error.message or "")
    assert str(file) in (failure.error.message or "")
    assert failure.user_failure_data
    assert failure.user_failure_data.metadata["permanent"].value is True
    assert not [e for e in result.all_events if e.is_step_up_for_retry]


def test_a_table_with_broken_input_is_requested_so_that_its_step_reports_the_error(dry: Harness) -> None:
    feed(dry)
    ensure_raw(dry.lake, RAW, "shop")
    land(dry.lake, RawSpec(RAW, landing(dry), "debezium", "shop"))
    with sorted(landing(dry).iterdir())[0].open("a") as file:
        file.write("{}\n")
    request = dry.request()
    assert "raw.shop_events < ChangedInputError" in request.tags["lake_assets/windows"]
    assert "staging.users" in selected(request)


def test_an_unreachable_catalog_fails_the_tick(
    shop_pipeline: Pipeline, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    home = tmp_path / "lake"
    harness = Harness(shop_pipeline, Lake(LakeConfig.load(home=home)), instance)
    config = LakeConfig.load(home=home, catalog={"type": "sql", "uri": f"sqlite:///{tmp_path}/away/catalog.db"})
    harness.watch = type(harness.watch)(shop_pipeline, harness.watch.loaded, config)
    with pytest.raises(CatalogUnavailableError, match="away"):
        harness.tick()


def test_a_model_of_a_missing_table_reports_what_it_waits_for(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    model = {"name": "agg.n", "sql": "SELECT k, count(*) AS n FROM final.elsewhere GROUP BY k"}
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "models": [model]}))
    assert Harness(pipeline, plain_lake, instance).skipped() == (
        "agg.n waits for final.elsewhere, which is not in the lake"
    )


def test_a_table_that_fails_in_the_run_that_brought_its_rows_has_had_one_attempt(
    plain_lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise InputError("a value is too large")

    monkeypatch.setattr(SqlModelStep, "absorb", fail)
    config = {
        "name": "p",
        "streams": [{"name": "e"}],
        "models": [{"name": "agg.n", "sql": "SELECT source_table, count(*) AS n FROM raw.e GROUP BY source_table"}],
    }
    sensor = Harness(Pipeline(PipelineConfig.model_validate(config)), plain_lake, instance)
    folder = plain_lake.config.home / "landing" / "e"
    folder.mkdir(parents=True)
    (folder / "1.jsonl").write_text('{"payload": {"op": "c"}}\n')
    now, runs = time.time(), 0
    while isinstance(request := sensor.tick(now), dg.RunRequest):
        assert not sensor.run(request).success
        runs, now = runs + 1, time.time() + 3600
    assert runs == MAX_ATTEMPTS
    assert (request.skip_message or "").startswith(f"gave up on agg.n after {MAX_ATTEMPTS} attempts")

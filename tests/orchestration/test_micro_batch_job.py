"""The job that absorbs by hand what is pending, with or without partitions. No test starts Spark."""

from __future__ import annotations

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import InputError
from lake_assets.models.steps.sql_model_step import SqlModelStep
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness

DAYS = {"by": "arrived_at", "every": "day", "start": "2024-01-01"}
MODEL = {"name": "agg.n", "sql": "SELECT * FROM raw.e", "partitions": DAYS}


@pytest.fixture
def batches(plain_lake: Lake, instance: dg.DagsterInstance) -> Harness:
    config = {"name": "p", "streams": [{"name": "e"}], "models": [MODEL]}
    folder = plain_lake.config.home / "landing" / "e"
    folder.mkdir(parents=True)
    (folder / "1.jsonl").write_text('{"payload": {"op": "c"}}\n')
    return Harness(Pipeline(PipelineConfig.model_validate(config)), plain_lake, instance)


def run(harness: Harness) -> dg.ExecuteInProcessResult:
    job = harness.defs.get_repository_def().get_job("p_micro_batch")
    assert job.partitions_def is None
    return job.execute_in_process(instance=harness.instance, raise_on_error=False)


def test_it_absorbs_tables_in_their_order_and_reports_them_as_assets(
    batches: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise InputError("a value is too large")

    monkeypatch.setattr(SqlModelStep, "absorb", fail)
    result = run(batches)
    (event,) = result.get_asset_materialization_events()
    assert event.asset_key == dg.AssetKey(["raw", "e"])
    metadata = event.materialization.metadata
    assert metadata["rows_inserted"].value == 1
    assert (event.materialization.tags or {})["dagster/data_version"] == metadata["snapshot"].value
    failure = result.failure_data_for_node("batch__agg__n")
    assert failure is not None
    assert failure.user_failure_data is not None
    # A failure by hand is none of the sensor's attempts.
    assert "lake_assets/attempt" not in batches.request().tags


def test_the_sensor_waits_for_it(batches: Harness) -> None:
    job = batches.defs.get_repository_def().get_job("p_micro_batch")
    batches.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert "changes that arrive meanwhile are absorbed after it" in batches.skipped()

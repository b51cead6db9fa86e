"""Upkeep in Dagster of tables with partitions, of ones that do not exist, and of ones that are not the pipeline's."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness

BY_MONTH = {"by": "at", "every": "month", "start": "2024-02-10"}


def declared(partitions: Any) -> Pipeline:
    table = {"table": "public.t", "partitions": partitions}
    return Pipeline(PipelineConfig.model_validate({"name": "p", "streams": [{"name": "events", "tables": [table]}]}))


@pytest.mark.parametrize("partitions", [BY_MONTH, {"by": "country", "values": ["de"]}, "country"])
def test_the_checks_of_partitioned_tables_run_without_a_partition(plain_lake: Lake, partitions: Any) -> None:
    plain_lake.ensure_namespace(("final",))
    plain_lake.catalog.create_table(("final", "t"), pa.schema([]), properties={PIPELINE_PROPERTY: "q"})
    with dg.DagsterInstance.ephemeral() as instance:
        found = Harness(declared(partitions), plain_lake, instance)
        result = found.defs.resolve_job_def("p_upkeep").execute_in_process(instance=instance)
    assert result.success
    evaluations = {e.asset_key.to_user_string(): e for e in result.get_asset_check_evaluations()}
    assert {k: e.description for k, e in evaluations.items()} == {
        "raw/events": "the table does not exist yet",
        "staging/t": "the table does not exist yet",
        "final/t": "it belongs to another pipeline, or to another program",
    }
    assert all(e.passed for e in evaluations.values())

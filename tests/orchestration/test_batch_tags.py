"""A run's tags describe its batch, not the whole backlog. No test starts Spark."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lake_assets import Lake, Pipeline
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, to_properties
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.pending import pending_of
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.pending_windows import head_of
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY
from tests.support.dagster_harness import Harness

ROWS = pa.schema([pa.field("k", pa.int64()), pa.field("value", pa.string())])
SQL = "SELECT k, count(*) AS n FROM feeds.t GROUP BY k"
RECORD = json.dumps({"op": "c", "after": {"id": 1}, "source": {"schema": "public", "table": "u"}, "ts_ms": 1})


def rows(count: int) -> pa.Table:
    return pa.table({"k": list(range(count)), "value": [RECORD] * count}, schema=ROWS)


@pytest.fixture
def source(plain_lake: Lake) -> Table:
    """A table of another owner, with one snapshot."""
    plain_lake.ensure_namespace(("feeds",))
    table = plain_lake.catalog.create_table(("feeds", "t"), ROWS)
    table.append(rows(2))
    return table


def harness(lake: Lake, instance: dg.DagsterInstance, **declared: Any) -> Harness:
    return Harness(Pipeline(PipelineConfig.model_validate({"name": "p", **declared})), lake, instance)


def stream(**limits: int) -> dict[str, Any]:
    return {"name": "e", "source": {"table": "feeds.t", "value": "value"}, "tables": ["public.u"], **limits}


def test_the_tags_describe_the_batch_that_the_step_absorbs(
    plain_lake: Lake, source: Table, instance: dg.DagsterInstance
) -> None:
    for count in (2, 2, 2):
        source.append(rows(count))
    sensor = harness(plain_lake, instance, streams=[stream(max_rows=4)])
    snapshots = [s.snapshot_id for s in source.snapshots()]
    # The second time, staging has to absorb the file written by the first landing.
    for last, remaining, files in ((1, 2, 2), (3, 0, 3)):
        tags = sensor.request().tags
        start = snapshots[last - 2] if last > 1 else "empty"
        end = f"raw.e < feeds.t {start}..{snapshots[last]}"
        window = tags["lake_assets/windows"].partition(", staging.u")[0]
        assert window == end + (f" (a batch; {remaining} snapshots remain)" if remaining else "")
        assert tags["lake_assets/captured"].startswith(f"{files} files, ")
        raw = next(s for s in sensor.watch.loaded if str(s.table) == "raw.e")
        outcome = absorb(plain_lake, raw)
        assert outcome.inserted == 4
        assert outcome.details.get("snapshots_left", 0) == remaining


def test_attempts_are_counted_for_the_whole_backlog(
    plain_lake: Lake, source: Table, instance: dg.DagsterInstance
) -> None:
    source.append(rows(2))
    source.append(rows(2))
    sensor = harness(plain_lake, instance, streams=[stream(max_files=1)])
    before = sensor.request()
    source.append(rows(1))
    after = sensor.request()
    # The batch is equal, but later changes make a new window, which is retried.
    assert "1 file" in before.tags["lake_assets/captured"]
    assert before.tags["lake_assets/captured"] == after.tags["lake_assets/captured"]
    assert before.run_key != after.run_key


def test_models_of_one_run_are_tagged_with_a_shared_window(
    plain_lake: Lake, source: Table, instance: dg.DagsterInstance
) -> None:
    """The first model fixes the snapshot for later ones, even for a model without limits."""
    models = [{"name": "agg.few", "sql": SQL, "max_files": 1}, {"name": "agg.many", "sql": f"{SQL} HAVING n > 1"}]
    sensor = harness(plain_lake, instance, models=models)
    for spec in sensor.watch.loaded:
        assert isinstance(spec, ModelSpec)
        made(plain_lake, spec, source)
    for _ in range(3):
        source.append(rows(1))
    first, second = (s.snapshot_id for s in source.snapshots()[:2])
    window = f"feeds.t {first}..{second} (a batch; 2 snapshots remain)"
    tags = sensor.request().tags
    assert tags["lake_assets/windows"].startswith(f"agg.few < {window}")
    assert tags["lake_assets/captured"].startswith("1 file, ")
    assert all(len(pending_of(plain_lake, s)) == 1 for s in sensor.watch.loaded)


def test_without_limits_the_tags_describe_all_pending_changes(
    plain_lake: Lake, source: Table, instance: dg.DagsterInstance
) -> None:
    source.append(rows(2))
    tags = harness(plain_lake, instance, streams=[stream()]).request().tags
    assert tags["lake_assets/windows"] == f"raw.e < feeds.t empty..{source.metadata.current_snapshot_id}"
    assert tags["lake_assets/captured"].startswith("2 files, ")


def made(lake: Lake, spec: ModelSpec, source: Table) -> None:
    """Create a model's table with its query and a watermark, like a step."""
    lake.ensure_namespace(("agg",))
    properties = {PIPELINE_PROPERTY: "p", FINGERPRINT_PROPERTY: spec.definition}
    target = lake.catalog.create_table(TableId.parse(str(spec.table)).parts, ROWS, properties=properties)
    target.append(rows(1), snapshot_properties=to_properties({".".join(source.name()): head_of(source)}))

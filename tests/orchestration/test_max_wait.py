"""Small changes of tables with `max_wait` are collected before a run is requested. No test starts Spark."""

from __future__ import annotations

import time
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lake_assets import Lake, Pipeline
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, to_properties
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.pending_windows import head_of
from tests.support.dagster_harness import Harness, selected

ROWS = pa.schema([pa.field("k", pa.int64())])
SQL = "SELECT k, count(*) AS n FROM final.{} GROUP BY k"


def rows(count: int) -> pa.Table:
    return pa.table({"k": list(range(count))}, schema=ROWS)


def pipeline(*models: dict[str, Any], **more: Any) -> Pipeline:
    return Pipeline(PipelineConfig.model_validate({"name": "p", "models": list(models), **more}))


@pytest.fixture
def source(plain_lake: Lake) -> Table:
    """A table of another owner, with one snapshot."""
    plain_lake.ensure_namespace(("final",))
    table = plain_lake.catalog.create_table(("final", "t"), ROWS)
    table.append(rows(3))
    return table


def absorbed(lake: Lake, name: str, source: Table) -> None:
    """Create a model's table with a watermark, like a step."""
    lake.ensure_namespace(("agg",))
    target = lake.catalog.create_table(TableId.parse(name).parts, ROWS, properties={PIPELINE_PROPERTY: "p"})
    marks = {".".join(source.name()): head_of(source)}
    target.append(rows(1), snapshot_properties=to_properties(marks))


def test_a_model_waits_for_enough_or_for_long_enough(
    plain_lake: Lake, source: Table, instance: dg.DagsterInstance
) -> None:
    model = {"name": "agg.n", "sql": SQL.format("t"), "max_wait": "10m", "max_rows": 5}
    harness, now = Harness(pipeline(model), plain_lake, instance), time.time()
    # The first step does not wait.
    assert selected(harness.request(now)) == {"agg.n"}
    absorbed(plain_lake, "agg.n", source)
    assert harness.skipped(now).startswith("nothing new")
    source.append(rows(2))
    assert harness.skipped(time.time()).startswith("agg.n collects changes for up to 600 s more")
    assert selected(harness.request(time.time() + 600)) == {"agg.n"}
    source.append(rows(3))
    assert selected(harness.request(time.time())) == {"agg.n"}


def test_a_collecting_table_does_not_run_with_its_upstream_tables(
    plain_lake: Lake, source: Table, instance: dg.DagsterInstance
) -> None:
    models = [
        {"name": "agg.one", "sql": SQL.format("t")},
        {"name": "agg.rare", "sql": "SELECT n, count(*) AS m FROM agg.one GROUP BY n", "max_wait": "1h"},
        {"name": "agg.often", "sql": "SELECT n, count(*) AS m FROM agg.one GROUP BY n"},
    ]
    harness = Harness(pipeline(*models), plain_lake, instance)
    absorbed(plain_lake, "agg.one", source)
    one = plain_lake.table("agg.one")
    for name in ("agg.rare", "agg.often"):
        absorbed(plain_lake, name, one)
    source.append(rows(1))
    assert selected(harness.request()) == {"agg.one", "agg.often"}


@pytest.mark.parametrize(("stream", "own", "waits"), [(None, None, True), ("0s", None, False), ("1h", None, True)])
def test_pipeline_limits_apply_where_changes_enter(
    plain_lake: Lake, source: Table, stream: str | None, own: str | None, waits: bool
) -> None:
    declared = pipeline(
        {"name": "agg.outer", "sql": SQL.format("t")},
        {"name": "agg.inner", "sql": SQL.format("a")},
        max_wait="5m",
        max_rows=7,
        streams=[{"name": "e", "tables": ["public.a"], **({"max_wait": stream} if stream else {})}],
    )
    specs = {str(s.table): s.batch for s in declared.specs(plain_lake, alone=False)}
    assert (specs["raw.e"].wait > 0) == waits
    assert specs["agg.outer"].wait == 300
    assert [specs[t].wait for t in ("staging.a", "final.a", "agg.inner")] == [0, 0, 0]
    assert {b.rows for b in specs.values()} == {7}


def test_the_nearest_limit_counts(plain_lake: Lake) -> None:
    stream = {
        "name": "e",
        "max_files": 50,
        "tables": ["public.a", {"table": "public.b", "max_files": 5, "max_wait": "1m"}],
    }
    specs = {str(s.table): s.batch for s in pipeline(streams=[stream], max_files=500).specs(plain_lake)}
    assert {t: b.files for t, b in specs.items()} == {
        "raw.e": 50, "staging.a": 50, "final.a": 50, "staging.b": 5, "final.b": 5,
    }  # fmt: skip
    assert {t for t, b in specs.items() if b.wait} == {"final.b"}


def test_a_stream_from_a_table_waits_too(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    records = pa.schema([pa.field("value", pa.string())])
    stream = {"name": "e", "source": {"table": "kafka.o"}, "tables": ["public.a"], "max_wait": "10m", "max_files": 2}
    harness = Harness(pipeline(streams=[stream]), plain_lake, instance)
    assert harness.skipped() == "raw.e waits for kafka.o, which is not in the lake"
    plain_lake.ensure_namespace(("kafka",))
    table = plain_lake.catalog.create_table(("kafka", "o"), records)
    table.append(pa.table({"value": ["{}"]}, schema=records))
    # Nothing absorbed yet: due at once.
    assert "raw.e" in selected(harness.request())
    raw, *_ = harness.pipeline.specs(plain_lake)
    assert absorb(plain_lake, raw).inserted == 1
    table.append(pa.table({"value": ["{}"]}, schema=records))
    # The new records belong to no known table, so other tables have nothing to absorb.
    assert "raw.e collects changes" in harness.skipped()
    table.append(pa.table({"value": ["{}"]}, schema=records))
    assert "raw.e" in selected(harness.request())


def test_waiting_of_a_table_that_is_not_built_is_rejected() -> None:
    with pytest.raises(ValueError, match="`max_wait` applies to the final table"):
        pipeline(streams=[{"name": "e", "tables": [{"table": "public.a", "final": False, "max_wait": "1m"}]}])

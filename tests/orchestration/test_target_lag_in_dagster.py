"""The capture sensor requests runs as late as the targets of tables allow. No test starts Spark."""

from __future__ import annotations

import time
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lake_assets import Lake, Pipeline
from lake_assets.health.lake_status import lake_status
from lake_assets.health.late_tables import late_tables
from lake_assets.journal import recent_steps, step_journal
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, to_properties
from lake_assets.pipeline import PipelineConfig
from lake_assets.tables.pending_windows import head_of
from tests.support.dagster_harness import Harness, selected

ROWS = pa.schema([pa.field("k", pa.int64())])


def model(name: str, source: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "sql": f"SELECT k, count(*) AS n FROM {source} GROUP BY k", **more}


class Watched:
    """Models over one table of another owner, whose steps the test makes by hand."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, *models: dict[str, Any], **more: Any) -> None:
        self.lake = lake
        for namespace in ("final", "agg"):
            lake.ensure_namespace((namespace,))
        self.source = lake.catalog.create_table(("final", "t"), ROWS)
        self.source.append(pa.table({"k": [1]}, schema=ROWS))
        config = PipelineConfig.model_validate({"name": "p", "models": list(models), **more})
        self.harness = Harness(Pipeline(config), lake, instance)

    def absorb(self, name: str, source: str) -> Table:
        """Do what a step does."""
        parts = TableId.parse(name).parts
        if not self.lake.exists(name):
            self.lake.catalog.create_table(parts, ROWS, properties={PIPELINE_PROPERTY: "p"})
        table, read = self.lake.table(name), self.lake.table(source)
        table.append(pa.table({"k": [1]}, schema=ROWS), snapshot_properties=to_properties({source: head_of(read)}))
        return table

    def change(self) -> float:
        """Append a row to the source; return when."""
        self.source.append(pa.table({"k": [2]}, schema=ROWS))
        return self.source.current_snapshot().timestamp_ms / 1000  # type: ignore[union-attr]


@pytest.fixture
def chain(plain_lake: Lake, instance: dg.DagsterInstance) -> Watched:
    """Two models in a row: the second may be ten minutes behind."""
    watched = Watched(plain_lake, instance, model("agg.a", "final.t"), model("agg.b", "agg.a", target_lag="10m"))
    watched.absorb("agg.a", "final.t")
    watched.absorb("agg.b", "agg.a")
    return watched


def test_what_a_table_with_a_target_reads_waits_with_it(chain: Watched) -> None:
    at = chain.change()
    assert chain.harness.skipped(at + 5).startswith("agg.a collects changes for up to 565 s more")
    assert selected(chain.harness.request(at + 571)) == {"agg.a", "agg.b"}


def test_runs_begin_as_much_earlier_as_their_steps_take(chain: Watched) -> None:
    for table, seconds in (("agg.a", 100.0), ("agg.b", 60.0)):
        step_journal.note(chain.lake, StepRecord("p", table, "absorbed", time.time() - 500, seconds, 1.0))
    at = chain.change()
    assert "up to 405 s more" in chain.harness.skipped(at + 5)
    assert selected(chain.harness.request(at + 411)) == {"agg.a", "agg.b"}


def test_the_age_of_a_change_counts_from_its_arrival_in_the_lake(chain: Watched) -> None:
    chain.change()
    # Absorbed by agg.a long after its arrival.
    a = chain.absorb("agg.a", "final.t").current_snapshot()
    assert a is not None
    record = StepRecord(
        "p", "agg.a", "absorbed", a.timestamp_ms / 1000, 0.0, 0.0, snapshot=a.snapshot_id, lag_seconds=200
    )
    step_journal.note(chain.lake, record)
    assert "agg.b collects changes for up to 365 s more" in chain.harness.skipped(a.timestamp_ms / 1000 + 5)


def test_a_table_with_a_longer_target_has_no_part_in_the_run_of_another(
    plain_lake: Lake, instance: dg.DagsterInstance
) -> None:
    watched = Watched(
        plain_lake,
        instance,
        model("agg.now", "final.t", target_lag="1m"),
        model("agg.late", "agg.now"),
        target_lag="1h",
    )
    watched.absorb("agg.now", "final.t")
    watched.absorb("agg.late", "agg.now")
    at = watched.change()
    assert "agg.now collects changes" in watched.harness.skipped(at + 5)
    assert selected(watched.harness.request(at + 31)) == {"agg.now"}
    watched.absorb("agg.now", "final.t")
    at = watched.lake.table("agg.now").current_snapshot().timestamp_ms / 1000  # type: ignore[union-attr]
    assert "agg.late collects changes for up to 3,565 s".replace(",", "") in watched.harness.skipped(at + 5)


def test_a_table_without_a_target_does_not_wait(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    watched = Watched(plain_lake, instance, model("agg.now", "final.t"), model("agg.late", "final.t", target_lag="1h"))
    watched.absorb("agg.now", "final.t")
    watched.absorb("agg.late", "final.t")
    at = watched.change()
    assert selected(watched.harness.request(at + 5)) == {"agg.now"}


def test_a_full_batch_does_not_wait_and_a_target_ends_the_wait_for_one(
    plain_lake: Lake, instance: dg.DagsterInstance
) -> None:
    watched = Watched(
        plain_lake, instance,
        model("agg.full", "final.t", target_lag="1h", max_wait="2h", max_rows=1),
        model("agg.slow", "final.t", target_lag="10m", max_wait="2h", max_rows=100),
    )  # fmt: skip
    watched.absorb("agg.full", "final.t")
    watched.absorb("agg.slow", "final.t")
    at = watched.change()
    assert selected(watched.harness.request(at + 5)) == {"agg.full"}
    watched.absorb("agg.full", "final.t")
    assert selected(watched.harness.request(at + 571)) == {"agg.slow"}


def test_status_names_a_table_that_is_behind_its_target(chain: Watched) -> None:
    at = chain.change()
    pipelines = [chain.harness.pipeline]
    assert late_tables(chain.lake, pipelines, at + 5) == {}
    late = late_tables(chain.lake, pipelines, at + 700)["agg.b"]
    assert late.text.startswith("it is 11.7 min behind, with a target_lag of 10 min")
    step_journal.note(chain.lake, StepRecord("p", "agg.a", "absorbed", time.time() - 900, 800.0, 1.0))
    recent_steps.forget(chain.lake)
    (status,) = (t for t in lake_status(chain.lake, pipelines).tables if t.table == "agg.b")
    assert status.target_lag == 600
    assert status.late.startswith("target_lag 10 min cannot be kept: the step of agg.a takes 13.3 min of the 13.3 min")


def test_a_broken_table_is_not_held_back(chain: Watched) -> None:
    chain.change()
    chain.lake.catalog.drop_table(("final", "t"))
    chain.lake.catalog.create_table(("final", "t"), ROWS)
    assert "agg.a" in selected(chain.harness.request())

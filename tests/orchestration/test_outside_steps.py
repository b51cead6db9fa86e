"""What commands did to tables is seen in Dagster, once, in the order of time."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import BACKFILL, StepRecord
from lake_assets.lake import TableId
from lake_assets.orchestration.asset_metadata import of_outcome
from lake_assets.orchestration.asset_names import asset_key
from lake_assets.orchestration.build import build_definitions
from lake_assets.orchestration.sensing import outside_steps
from tests.support.debezium import BIGINT, Event, Table
from tests.support.pipeline_files import write_pipeline
from tests.support.streams import Feed

USERS = asset_key(TableId.parse("final.users"))


class Watched:
    """A pipeline whose sensor looks at the journal."""

    def __init__(self, lake: Lake, pipeline: Pipeline) -> None:
        self.lake, self.pipeline = lake, pipeline
        self.instance = dg.DagsterInstance.ephemeral()
        self.cursor: str | None = None
        self.sensor = build_definitions(pipeline, lake).get_sensor_def(f"{pipeline.name}_outside_steps_sensor")

    def step(self, ended: float, run: str = "", status: str = "absorbed", table: str = "final.users") -> StepRecord:
        window = {"source": "staging.users", "start_snapshot": 1, "end_snapshot": 2, "files": 3, "bytes": 4}
        record = StepRecord(
            "shop", table, status, ended - 2, 2.0, 3.0, strategy="merge", rows_updated=5, sources=[window], run=run,
            snapshot=2**60, lag_seconds=7.25, not_exact=["a rename", "a default"],
        )  # fmt: skip
        step_journal.note(self.lake, record)
        return record

    def tick(self) -> str:
        with dg.build_sensor_context(instance=self.instance, cursor=self.cursor) as context:
            result: Any = self.sensor(context)
            self.cursor = context.cursor
        return result.skip_message

    @property
    def reported(self) -> list[tuple[int, dict[str, Any]]]:
        """Those of final.users."""
        return self.reported_of(TableId.parse("final.users"))

    def reported_of(self, table: TableId) -> list[tuple[int, dict[str, Any]]]:
        """Time and metadata of the reported materializations of a table, the newest first."""
        found = self.instance.fetch_materializations(asset_key(table), limit=100).records
        events = [(r.event_log_entry.timestamp, r.asset_materialization) for r in found]
        return [(round(at), {n: v.value for n, v in e.metadata.items()}) for at, e in events if e]


@pytest.fixture
def watched(plain_lake: Lake, tmp_path: Path) -> Watched:
    plain_lake.ensure_namespace(("final",))
    stream = {"name": "shop", "landing": str(tmp_path / "landing"), "tables": [{"table": "public.users"}]}
    file = write_pipeline(tmp_path / "shop.yaml", {"name": "shop", "streams": [stream]})
    return Watched(plain_lake, Pipeline.load(file))


def test_steps_of_commands_are_reported_once_with_their_times(watched: Watched) -> None:
    now = time.time()
    assert watched.tick() == "no steps of others"
    watched.step(now - 60)
    watched.step(now - 30)
    watched.step(now - 20, status="failed")
    watched.step(now - 10, table="final.unknown")
    assert watched.tick() == "reported 2 steps of other programs"
    (last, metadata), (first, _) = watched.reported
    assert (last, first) == (round(now - 30), round(now - 60))
    assert metadata["rows_updated"] == 5
    assert (metadata["core_seconds"], metadata["lag_seconds"]) == (3.0, 7.2)
    assert metadata["strategy"] == "merge"
    assert metadata["executed_by"].startswith("a command on ")
    assert metadata["not_exact"] == "not exact: a rename; a default"
    assert metadata["snapshot"] == str(2**60)
    assert metadata["windows"].records[0].data["start"] == "1"
    assert watched.tick() == "no steps of others"
    watched.step(now)
    assert watched.tick() == "reported 1 step of other programs"
    # A killed daemon may have lost the cursor.
    watched.cursor = None
    watched.tick()
    assert len(watched.reported) == 3


def test_the_steps_of_a_real_run_have_the_figures_of_dagsters_own(lake: Lake) -> None:
    feed = Feed(lake, {"table": "public.t", "target_lag": "5m"})
    feed.land([Event(Table({"id": BIGINT}), "c", (n, n), {"id": n}) for n in (10, 20)])
    feed.land_text('{"payload": {"op": "c"}}\n')  # of no table
    outcomes = feed.run()
    watched = Watched(lake, feed.pipeline)
    assert watched.tick() == "reported 3 steps of other programs"
    specs = {str(s.table): s for s in feed.pipeline.specs(lake)}
    shown = {name: watched.reported_of(TableId.parse(name))[0][1] for name in outcomes}
    for name, outcome in outcomes.items():
        made = dg.AssetMaterialization("x", metadata=of_outcome(outcome, specs[name])).metadata
        own = {n: v.value for n, v in made.items() if n not in ("ranges", "seconds", "core_seconds")}
        expected = {n: v for n, v in own.items() if not n.startswith("detail/")}
        assert {n: shown[name].get(n) for n in expected} == expected
    assert {n: m["records_rejected"] for n, m in shown.items() if "records_rejected" in m} == {
        "raw.events": 1, "staging.t": 0
    }  # fmt: skip
    assert shown["final.t"]["target_lag_seconds"] == 300
    assert shown["final.t"]["dagster/row_count"] == 2


def test_a_step_that_ended_after_a_later_one_is_reported_too(watched: Watched) -> None:
    now = time.time()
    watched.step(now - 5, table="staging.users")
    watched.tick()
    record = StepRecord("shop", "final.users", "absorbed", now - 3600, 3599.0, 1.0)
    step_journal.note(watched.lake, record)
    watched.tick()
    assert [at for at, _ in watched.reported] == [round(now - 1)]


def test_steps_of_the_instances_own_runs_are_not_repeated(watched: Watched) -> None:
    run = dg.DagsterRun("shop", run_id="0b9a5f27-1f7c-4b2c-9b5c-2f86b4c2a001")
    watched.instance.add_run(run)
    watched.step(time.time() - 9, f"dagster {run.run_id}")
    assert watched.tick() == "no steps of others"
    watched.step(time.time() - 8, "dagster 0b9a5f27-1f7c-4b2c-9b5c-2f86b4c2a002")  # of another instance
    assert watched.tick() == "reported 1 step of other programs"


def test_what_backfills_have_redone_does_not_make_a_table_fresh(watched: Watched) -> None:
    record = watched.step(time.time() - 9, "backfill b0a1b2c")
    step_journal.note(watched.lake, replace(record, strategy=BACKFILL))
    assert watched.tick() == "no steps of others"
    assert watched.reported == []


def test_the_last_materialization_stays_the_last(watched: Watched) -> None:
    watched.step(time.time() - 60)
    watched.instance.report_runless_asset_event(dg.AssetMaterialization(USERS, metadata={"own": True}))
    watched.tick()
    ((_, metadata),) = watched.reported
    assert metadata == {"own": True}


def test_a_lake_that_does_not_exist_is_waited_for(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_steps.Lake, "is_there", False)
    assert watched.tick().startswith("there is no lake at ")

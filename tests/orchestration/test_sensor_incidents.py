"""Incidents of a sensor, its instance, its code and its clock: nothing is lost or absorbed twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.orchestration import build_definitions
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness, selected
from tests.support.debezium import BIGINT, TEXT, Event, Table, to_lines, write_lines
from tests.support.oracle import rows_of
from tests.support.upkeep import compact_and_expire

USERS = Table({"id": BIGINT, "city": TEXT}, name="public.users")
ORDERS = Table({"id": BIGINT, "city": TEXT}, name="public.orders")
MODEL = {"name": "agg.cities", "sql": "SELECT city, count(*) AS n FROM final.users GROUP BY city"}


def pipeline(*tables: str, models: list[Any] | None = None) -> Pipeline:
    streams = [{"name": "crm", "tables": list(tables or ["public.users"])}]
    declared = {"name": "crm", "streams": streams, "models": [MODEL] if models is None else models}
    return Pipeline(PipelineConfig.model_validate(declared))


@pytest.fixture
def crm(lake: Lake, instance: dg.DagsterInstance) -> Harness:
    return Harness(pipeline(), lake, instance)


@pytest.fixture
def dry_crm(plain_lake: Lake, instance: dg.DagsterInstance) -> Harness:
    return Harness(pipeline(), plain_lake, instance)


class Writer:
    """Delivers inserts, and knows the expected tables."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.files, self.expected = harness, 0, dict[str, list[tuple[int, str]]]()

    def __call__(self, *cities: str, table: Table = USERS) -> None:
        folder = self.harness.lake.config.home / "landing" / "crm"
        folder.mkdir(parents=True, exist_ok=True)
        rows = self.expected.setdefault(table.name.removeprefix("public."), [])
        new = [(len(rows) + n, city) for n, city in enumerate(cities)]
        rows += new
        self.files += 1
        at = self.files * 1000
        events = (Event(table, "c", (at + i, at + i), {"id": i, "city": city}) for i, city in new)
        write_lines(folder / f"{self.files:04}.jsonl", to_lines(events))

    def check(self) -> None:
        """Check that every table has each row once, and every event was staged once."""
        spark = self.harness.lake.spark()
        for name, rows in self.expected.items():
            assert rows_of(spark.table(f"lake.final.{name}"), ["id", "city"]) == Counter(rows)
            assert spark.table(f"lake.staging.{name}").count() == len(rows)
        assert spark.table("lake.raw.crm").count() == sum(map(len, self.expected.values()))
        counted = Counter(city for _, city in self.expected["users"])
        assert rows_of(spark.table("lake.agg.cities")) == Counter(dict.fromkeys(counted.items(), 1))


def settle(harness: Harness, most: int = 4) -> int:
    """Tick and run until nothing is new; return the number of runs."""
    for n in range(most):
        outcome = harness.tick()
        if isinstance(outcome, dg.SkipReason):
            assert (outcome.skip_message or "").startswith("nothing new"), outcome
            return n
        result = harness.run(outcome)
        assert result.success
    raise AssertionError(f"still something new after {most} runs")


def heads(harness: Harness) -> dict[str, int | None]:
    specs = harness.pipeline.specs(harness.lake)
    return {str(s.table): harness.lake.table(s.table).metadata.current_snapshot_id for s in specs}


CURSORS = [None, "", "garbage", '{"snapshot": 1}']


@pytest.mark.parametrize("cursor", CURSORS)
def test_a_cursor_of_any_content_changes_nothing(dry_crm: Harness, cursor: str | None) -> None:
    """A reset or renamed sensor begins without a cursor; its content is never read."""
    Writer(dry_crm)("Bonn")
    sensor, *_ = dry_crm.defs.sensors or []
    assert isinstance(sensor, dg.SensorDefinition)
    with dg.build_sensor_context(instance=dry_crm.instance, cursor=cursor, definitions=dry_crm.defs) as context:
        data = sensor.evaluate_tick(context)
    assert [r.run_key for r in data.run_requests or []] == [dry_crm.request().run_key]
    assert data.cursor in (None, cursor)


@pytest.mark.long
def test_a_renamed_sensor_continues_where_the_old_one_stopped(crm: Harness) -> None:
    write = Writer(crm)
    write("Bonn", "Ulm")
    assert settle(crm) == 1
    before = heads(crm)
    definitions = build_definitions(crm.pipeline, crm.lake)
    sensor, *_ = definitions.sensors or []
    assert isinstance(sensor, dg.SensorDefinition)
    renamed = dg.SensorDefinition(name="another_name", evaluation_fn=sensor._raw_fn, job_name="crm")
    defs = replace_sensor(definitions, renamed)
    with dg.build_sensor_context(instance=crm.instance, definitions=defs) as context:
        assert not renamed.evaluate_tick(context).run_requests
    write("Ulm")
    with dg.build_sensor_context(instance=crm.instance, definitions=defs) as context:
        (request,) = renamed.evaluate_tick(context).run_requests or []
    assert crm.run(request).success
    # If the old sensor were still on, it would find nothing.
    assert settle(crm) == 0
    assert heads(crm) != before
    write.check()


def replace_sensor(defs: dg.Definitions, sensor: dg.SensorDefinition) -> dg.Definitions:
    return dg.Definitions(assets=defs.assets, jobs=defs.jobs, sensors=[sensor], resources=defs.resources)


@pytest.mark.long  # test_snapshot_retention does that without Dagster
def test_a_week_without_ticks_while_snapshots_expire_loses_nothing(crm: Harness) -> None:
    write = Writer(crm)
    write("Bonn", "Ulm")
    settle(crm)
    # Meanwhile files are sometimes landed by hand, and maintenance continues.
    for n in range(3):
        write("Kiel", "Ulm")
        crm.pipeline.run(crm.lake, ["raw.crm"] if n else ["raw.crm", "staging.users"])
        compact_and_expire(crm.lake, "raw.crm", "staging.users", "final.users", "agg.cities")
    absorbed = read_marks(crm.lake.table("staging.users"))["raw.crm"].snapshot
    assert len(list(crm.lake.table("raw.crm").metadata.snapshots)) < 8
    assert absorbed != crm.lake.table("raw.crm").metadata.current_snapshot_id
    assert settle(crm) == 1
    write.check()
    assert settle(crm) == 0


@pytest.mark.long  # as a removed model
def test_a_redeployment_with_a_new_and_one_with_a_removed_table(crm: Harness) -> None:
    write = Writer(crm)
    write("Bonn")
    write("Ulm", table=ORDERS)
    settle(crm)
    # The stream has always contained orders; now they are declared.
    crm.pipeline = pipeline("public.users", "public.orders")
    crm.reload()
    assert selected(crm.request()) == {"staging.orders", "final.orders"}
    assert settle(crm) == 1
    write.check()
    # Without the declaration, their tables do not advance and are not requested.
    crm.pipeline = pipeline("public.users")
    crm.reload()
    write("Kiel")
    write("Kiel", table=ORDERS)
    assert "final.orders" not in selected(crm.request())
    assert settle(crm) == 1
    # Declared again, they catch up.
    crm.pipeline = pipeline("public.users", "public.orders")
    crm.reload()
    assert settle(crm) == 1
    write.check()


@pytest.mark.long
def test_a_removed_model_is_not_changed_and_catches_up_when_added_again(crm: Harness) -> None:
    write = Writer(crm)
    write("Bonn")
    settle(crm)
    before = crm.lake.table("agg.cities").metadata.current_snapshot_id
    crm.pipeline = pipeline(models=[])
    crm.reload()
    write("Bonn", "Ulm")
    settle(crm)
    assert crm.lake.table("agg.cities").metadata.current_snapshot_id == before
    crm.pipeline = pipeline()
    crm.reload()
    assert selected(crm.request()) == {"agg.cities"}
    settle(crm)
    write.check()


@pytest.fixture
def other_instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.mark.long
def test_a_lost_run_storage_loses_no_data(crm: Harness, other_instance: dg.DagsterInstance) -> None:
    write = Writer(crm)
    write("Bonn")
    settle(crm)
    write("Ulm")
    # A run was requested and had started when the storage was lost.
    crm.instance.create_run_for_job(crm.job, status=dg.DagsterRunStatus.STARTED)
    crm.skipped()
    crm.instance = other_instance
    assert settle(crm) == 1
    assert settle(crm) == 0
    write.check()


def test_a_lost_run_storage_restarts_the_count_of_attempts(
    dry_crm: Harness, other_instance: dg.DagsterInstance
) -> None:
    folder = dry_crm.lake.config.home / "landing" / "crm"
    folder.mkdir(parents=True)
    (folder / "0.jsonl").write_text('{"payload": {"op"')
    assert not dry_crm.run(dry_crm.request()).success
    assert "is retried in" in dry_crm.skipped()
    dry_crm.instance = other_instance
    assert "lake_assets/attempt" not in dry_crm.request().tags


def test_a_request_launched_twice_is_absorbed_once(crm: Harness) -> None:
    write = Writer(crm)
    write("Bonn")
    request = crm.request()
    assert crm.run(request).success
    before = heads(crm)
    assert crm.run(request).success
    assert heads(crm) == before
    write.check()


WEEK = 7 * 86_400.0


@pytest.mark.parametrize("back", [3600.0, WEEK])
def test_a_clock_set_back_delays_nothing(dry_crm: Harness, back: float) -> None:
    Writer(dry_crm)("Bonn")
    assert selected(dry_crm.request(time.time() - back)) >= {"raw.crm"}
    folder = dry_crm.lake.config.home / "landing" / "crm"
    (folder / "0001.jsonl").write_text('{"payload": {"op"')
    assert not dry_crm.run(dry_crm.request()).success
    assert "is retried in" in dry_crm.skipped()
    # According to Dagster, the last attempt ended in the future.
    assert dry_crm.request(time.time() - back).tags["lake_assets/attempt"] == "2"

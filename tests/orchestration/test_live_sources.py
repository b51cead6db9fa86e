"""Dagster keeps the service of live sources running, says how it is, and absorbs what it lands."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from lake_assets import Lake, Pipeline
from lake_assets.orchestration.live_sources import source_tick
from lake_assets.service import service_process, service_state
from lake_assets.service.service_state import StreamState
from tests.support.dagster_harness import Harness, selected
from tests.support.live_postgres import Database, live_database

PAGE = Path(__file__).parents[2] / "docs" / "live-sources.md"
TABLES = """
CREATE TABLE users (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, who int, amount numeric(8,2));
INSERT INTO users SELECT i, 'n' || i FROM generate_series(1, 20) i;
"""
SECONDS = 120.0


@pytest.fixture
def database() -> Generator[Database]:
    with live_database(TABLES) as found:
        yield found


def declared(database: Database, lake: Lake, **more: Any) -> Pipeline:
    """The pipeline of the page, with the test's own server."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    settings = yaml.safe_load(text)
    source = settings["attributes"]["streams"][0]["source"]["postgres"]
    source |= {
        "host": "127.0.0.1",
        "port": database.port,
        "database": "postgres",
        "user": "lake",
        "heartbeat": 1,
        **more,
    }
    file = lake.config.home / "shop.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return Pipeline.load(file)


def wait(what: str, is_so: Callable[[], Any]) -> Any:
    until = time.monotonic() + SECONDS
    while not (found := is_so()):
        assert time.monotonic() < until, f"no {what}"
        time.sleep(0.2)
    return found


class Location:
    """A code location whose source sensor is ticked by the test."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, pipeline: Pipeline) -> None:
        self.lake, self.instance, self.cursor = lake, instance, None
        self.harness = Harness(pipeline, lake, instance)

    cursor: str | None

    def tick(self) -> tuple[str, list[bool]]:
        """Tick the sensor; return what it says, and which checks it reports."""
        repository = self.harness.defs.get_repository_def()
        with dg.build_sensor_context(instance=self.instance, repository_def=repository, cursor=self.cursor) as context:
            result = source_tick(context, self.harness.pipeline, self.lake.config)
        self.cursor = result.cursor
        checks = [e.passed for e in result.asset_events if isinstance(e, dg.AssetCheckEvaluation)]
        return result.skip_reason.skip_message or "" if result.skip_reason else "", checks

    def reads(self) -> StreamState | None:
        state = service_state.read(self.lake, "raw.shop")
        return state if state and state.state == "reading" and state.is_alive else None


@pytest.mark.spark
@pytest.mark.system
@pytest.mark.long
def test_the_sensor_keeps_the_service_running_and_the_other_one_absorbs(
    lake: Lake, database: Database, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYDBZ_JVM_OPTS", "-Xmx512m -XX:TieredStopAtLevel=1")
    location = Location(lake, instance, declared(database, lake))
    assert "the service was not running: process " in location.tick()[0]
    # Ticks that come before it says anything start no second one.
    assert "was started" not in location.tick()[0]
    first = wait("service", location.reads)
    try:
        assert location.tick() == ("raw.shop: reading", [True])
        assert location.tick() == ("raw.shop: reading", [])
        request = wait("rows", lambda: r if isinstance(r := location.harness.tick(), dg.RunRequest) else None)
        assert {"staging.users", "final.users"} <= selected(request)
        assert "raw.shop" not in selected(request)
        assert location.harness.run(request).success
        assert lake.spark().sql("SELECT count(*) FROM final.users").collect()[0][0] == 20
        database("INSERT INTO orders VALUES (1, 2, 3.50)")
        request = wait("order", lambda: r if isinstance(r := location.harness.tick(), dg.RunRequest) else None)
        assert location.harness.run(request).success
        assert [tuple(r) for r in lake.spark().sql("SELECT id, amount FROM final.orders").collect()] == [(1, 3.5)]

        # It is killed: the next tick starts another.
        os.kill(first.process[0], signal.SIGKILL)
        wait("end", lambda: not first.is_alive)
        assert "the service was not running: process " in location.tick()[0]
        second = wait("service", location.reads)
        assert second.process != first.process
        # The declaration changes: one that reads it takes its place.
        location.harness.pipeline = declared(database, lake, max_wait=0.5)
        assert "the declaration has changed: process " in location.tick()[0]
        third = wait("service", lambda: s if (s := location.reads()) and s.process != second.process else None)
        # Somebody drops the slot: the check fails, with the reason.
        service_process.end_all(lake, location.harness.pipeline)
        assert not third.is_alive
        database("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        location.tick()
        wait("failure", lambda: (s := service_state.read(lake, "raw.shop")) and s.state == "failed" and s.is_alive)
        text, checks = location.tick()
        assert "slot lake_assets_shop_shop is gone" in text
        assert checks == [False]
    finally:
        service_process.end_all(lake, location.harness.pipeline)
    assert not any(s and s.is_alive for s in service_process.states(lake, location.harness.pipeline))

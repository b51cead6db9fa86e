"""Upkeep over a REST catalog, and over a Spark Connect server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.lake import thresholds
from lake_assets.upkeep.attend import attend, look
from lake_assets.upkeep.upkept_tables import policies
from tests.support.debezium import BIGINT, Event, Table, to_lines, write_lines
from tests.support.lakes import lake_on
from tests.support.people import CITIES, People
from tests.support.pipeline_files import write_pipeline
from tests.support.processes import python, started
from tests.support.rest_server import RestServer
from tests.support.spark_servers import connect_address

pytestmark = [pytest.mark.system, pytest.mark.long]
T = Table({"id": BIGINT, "n": BIGINT})
EAGER = {"commits": 5, "keep": "0s", "small_files": "1%", "deleted_rows": "10%"}


@pytest.fixture
def rest_lake(spark_lake: Lake, tmp_path: Path) -> Iterator[Lake]:
    server, folder = RestServer(tmp_path), tmp_path / "server"
    folder.mkdir()
    with server.catalog(folder) as catalog:
        yield lake_on(spark_lake, tmp_path / "lake", catalog)
    server.close()


def test_tables_of_a_rest_catalog_are_looked_after(rest_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "UPKEEP_EXPIRED_SNAPSHOTS", 2)
    monkeypatch.setattr(thresholds, "SNAPSHOTS_KEPT", 3)
    people = People(rest_lake, CITIES)
    config = people.feed.pipeline.config
    config.upkeep = type(config.upkeep)(**EAGER)
    for _ in range(6):
        people.land(5)
        people.run()
    wanted = policies(people.feed.pipeline, rest_lake)
    done = attend(rest_lake, wanted, is_forced=True)
    assert {a.action.kind for a in done} >= {"combine", "expire"}
    assert [a for a in done if a.done is None or a.done.error] == []
    people.check()
    people.land(5)
    people.check()
    assert {a.kind for t, policy in wanted.items() for a in look(rest_lake, t, policy).due} <= {"expire", "combine"}


def test_tables_are_looked_after_by_a_spark_connect_server(tmp_path: Path) -> None:
    home, pipelines = tmp_path / "lake", tmp_path / "pipelines"
    landing = home / "landing" / "events"
    landing.mkdir(parents=True)
    pipelines.mkdir()
    stream = {"name": "events", "tables": ["public.t"]}
    file = write_pipeline(pipelines / "defs.yaml", {"name": "p", "upkeep": EAGER, "streams": [stream]})
    with connect_address(tmp_path) as address:
        settings = {"LAKE_SPARK__REMOTE": address, "LAKE_HOME": str(home)}
        for n in range(5):
            write_lines(landing / f"{n}.jsonl", to_lines([Event(T, "c", (n, n), {"id": n, "n": 1})]))
            with started(python("lake_assets.cli", "run", file, "--no-upkeep"), tmp_path / "run.log", settings) as run:
                assert run.wait(timeout=300) == 0, (tmp_path / "run.log").read_text()
        log = tmp_path / "upkeep.log"
        with started(python("lake_assets.cli", "upkeep", "--pipeline", file, "--json"), log, settings) as upkeep:
            assert upkeep.wait(timeout=300) == 0, log.read_text()
    said = log.read_text()
    result = json.loads(said[said.index("{\n") :])
    assert {a["kind"] for a in result["actions"]} >= {"combine"}
    assert [a for a in result["actions"] if not a["done"] or a["done"]["error"]] == []
    table = Lake(LakeConfig(home=home)).table("final.t")
    assert len(table.inspect.data_files()) == 1

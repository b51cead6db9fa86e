"""`docs/how-to/dagster-deployment.md`: Dagster's storage in Postgres, two code locations, two services, on the files of the page."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest

from lake_assets import Lake, LakeConfig
from tests.support.dagster_process import Dagster, processes_of, wait_for
from tests.support.documents import snippets
from tests.support.postgres import database
from tests.support.processes import ROOT, SMALL_SPARK, free_port, started

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.long]

PAGE = ROOT / "docs" / "how-to" / "dagster-deployment.md"
BIN = Path(sys.executable).parent
SECONDS = 600.0
LOCATIONS = ("sales", "stock")


@pytest.fixture
def postgres() -> Iterator[str]:
    with database() as uri:
        assert uri.startswith("postgresql+psycopg2://")
        assert "DAGSTER_POSTGRES=postgresql+psycopg2://" in PAGE.read_text("utf-8")
        yield uri


def written(folder: Path) -> None:
    """Write the files of the page: a block that begins with a name, as a comment, is that file."""
    for block in snippets(PAGE):
        if block.language in ("yaml", "python"):
            file = folder / block.first.removeprefix("# ")
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.text)


@pytest.fixture
def dagster(tmp_path: Path, postgres: str) -> Iterator[Dagster]:
    """The daemon and the web server of the page."""
    written(tmp_path)
    home = tmp_path / "dagster_home"
    env = {"DAGSTER_HOME": str(home), "DAGSTER_POSTGRES": postgres, "LAKE_HOME": str(tmp_path / "lake"), **SMALL_SPARK}
    env |= {
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    workspace, port, log = str(tmp_path / "workspace.yaml"), free_port(), tmp_path / "dagster.log"
    web = [f"{BIN}/dagster-webserver", "-h", "127.0.0.1", "-p", str(port), "-w", workspace]
    found = Dagster(port, log)
    try:
        with started(web, log, env):
            # Both make the tables of an empty storage; one after the other.
            wait_for("the start of the web server", found.is_up, 300, log)
            with started([f"{BIN}/dagster-daemon", "run", "-w", workspace], log, env):
                yield found
    finally:
        for left in processes_of(home):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()


def start_sensor(dagster: Dagster, location: str) -> None:
    selector = {
        "repositoryLocationName": location,
        "repositoryName": "__repository__",
        "sensorName": f"{location}_capture_sensor",
    }
    started_: dict[str, Any] = dagster.ask(
        "mutation($s: SensorSelector!){startSensor(sensorSelector:$s){__typename ... on PythonError{message}}}",
        s=selector,
    )
    assert started_["startSensor"]["__typename"] == "Sensor", started_


def test_two_locations_follow_a_file_and_their_runs_are_in_postgres(
    dagster: Dagster, tmp_path: Path, postgres: str
) -> None:
    landing = tmp_path / "lake" / "landing" / "orders"
    landing.mkdir(parents=True)
    (landing / "1.csv").write_text("Op,id,day,amount\nI,1,2026-01-01,5\nI,2,2026-01-01,7\nI,3,2026-01-02,9\n")
    for location in LOCATIONS:
        start_sensor(dagster, location)
    lake = Lake(LakeConfig(home=tmp_path / "lake"))

    def busy_days() -> list[str]:
        if lake.find("agg.busy_days") is None:
            return []
        return [str(r["day"]) for r in lake.table("agg.busy_days").scan().to_arrow().to_pylist()]

    assert wait_for("the table of the second location", busy_days, SECONDS, dagster.log) == ["2026-01-01"]
    ended = wait_for(
        "the end of the runs", lambda: all(r["status"] == "SUCCESS" for r in dagster.runs()), SECONDS, dagster.log
    )
    assert ended
    with (
        contextlib.closing(psycopg2.connect(postgres.replace("+psycopg2", ""))) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT count(*) FROM runs WHERE status = 'SUCCESS'")
        assert cursor.fetchone() == (len(dagster.runs()),)
        cursor.execute("SELECT count(*) FROM event_logs")
        assert (cursor.fetchone() or (0,))[0] > 0
    assert not list((tmp_path / "dagster_home").rglob("*.db"))

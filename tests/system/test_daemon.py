"""The whole of it as users run it: `dagster dev`, the capture sensor, runs in processes of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lake_assets import Lake
from lake_assets.examples import shop
from lake_assets.runtime.processes import RunProcess
from tests.support.dagster_process import Dagster, dagster_dev, sensor, sparks, wait_for
from tests.support.debezium import BIGINT, Event, Table, to_lines, write_lines
from tests.support.lakes import small_lake
from tests.support.pipeline_files import write_pipeline
from tests.support.processes import SMALL_SPARK

pytestmark = [pytest.mark.system, pytest.mark.spark]

SECONDS = 600.0
T = Table({"id": BIGINT, "n": BIGINT})


def settled(dagster: Dagster, pipeline: str, after: int) -> list[dict[str, Any]]:
    """The runs beyond the first `after`, as soon as there are some, all are over, and a tick has found nothing new."""
    runs = dagster.runs()[after:]
    if not runs or any(r["status"] not in ("SUCCESS", "FAILURE", "CANCELED") for r in runs):
        return []
    return runs if "nothing new" in last_tick(dagster, pipeline) else []


def last_tick(dagster: Dagster, pipeline: str) -> str:
    reply = dagster.ask(
        """query($s: SensorSelector!){sensorOrError(sensorSelector:$s)
        {... on Sensor{sensorState{ticks(limit:1){status skipReason}}}}}""",
        s=sensor(f"{pipeline}_capture_sensor"),
    )
    ticks = reply["sensorOrError"]["sensorState"]["ticks"]
    return (ticks[0]["skipReason"] or "") if ticks else ""


def assert_equals_postgres(lake: Lake, checkpoint: shop.Checkpoint) -> None:
    assert [c.table for c in shop.compare(lake, checkpoint) if not c.equal] == []


def test_what_lands_reaches_a_model_by_itself(tmp_path: Path) -> None:
    home, pipelines = tmp_path / "lake", tmp_path / "pipelines"
    landing = home / "landing" / "events"
    landing.mkdir(parents=True)
    pipelines.mkdir()
    attributes = {
        "name": "p",
        "interval": "2s",
        "streams": [{"name": "events", "tables": ["public.t"]}],
        "models": [{"name": "agg.m", "sql": "SELECT n, count(*) AS c FROM final.t GROUP BY n"}],
    }
    write_pipeline(pipelines / "defs.yaml", attributes)
    settings = {**SMALL_SPARK, "LAKE_HOME": str(home), "LAKE_PIPELINES": str(pipelines)}
    with dagster_dev(tmp_path, **settings) as dagster:
        dagster.start_sensor("p_capture_sensor")
        write_lines(landing / "1.jsonl", to_lines([Event(T, "c", (i, i), {"id": i, "n": i % 2}) for i in range(4)]))
        runs = wait_for("the first run", lambda: settled(dagster, "p", 0), SECONDS, dagster.log)
        assert [r["status"] for r in runs] == ["SUCCESS"]
        write_lines(landing / "2.jsonl", to_lines([Event(T, "c", (9, 9), {"id": 9, "n": 1})]))
        runs = wait_for("the micro-batch", lambda: settled(dagster, "p", len(runs)), SECONDS, dagster.log)
        assert [r["status"] for r in runs] == ["SUCCESS"]
        rows = small_lake(home).table("agg.m").scan().to_arrow().to_pylist()
        assert sorted((r["n"], r["c"]) for r in rows) == [(0, 2), (1, 3)]
        # Of Dagster's own code; its users cannot do anything about them.
        assert not re.findall(r".*(?:BetaWarning|PreviewWarning).*", dagster.log.read_text())


@pytest.mark.long
def test_the_demos_tables_equal_postgres_by_themselves(tmp_path: Path) -> None:
    home = tmp_path / "lake"
    home.mkdir()
    landing = home / "landing" / "shop_events"
    first, second = shop.checkpoints()[:2]
    with dagster_dev(tmp_path, **{**SMALL_SPARK, "LAKE_HOME": str(home)}) as dagster:
        dagster.start_sensor("shop_capture_sensor")
        shop.feed(landing, first)
        runs = wait_for("the first checkpoint", lambda: settled(dagster, "shop", 0), SECONDS, dagster.log)
        assert [r["status"] for r in runs] == ["SUCCESS"]
        lake = small_lake(home)
        assert_equals_postgres(lake, first)
        (jvm,) = sparks(tmp_path / "dagster_home")
        shop.feed(landing, second)
        runs = wait_for("the micro-batch", lambda: settled(dagster, "shop", len(runs)), SECONDS, dagster.log)
        assert [r["status"] for r in runs] == ["SUCCESS"]
        assert_equals_postgres(lake, second)
        # The second run did not wait for a JVM: it had the first one's.
        assert sparks(tmp_path / "dagster_home") == [jvm]
        # The UI does not show these tags.
        with dg.DagsterInstance.from_config(str(tmp_path / "dagster_home")) as instance:
            processes = [RunProcess.of(r.run_id, r.tags) for r in instance.get_runs()]
        assert len({p.pid for p in processes if p}) == 2
    jvm.wait(60)

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
from tests.support.dagster_process import Dagster, dagster_dev, sparks, wait_for
from tests.support.lakes import small_lake
from tests.support.processes import SMALL_SPARK

pytestmark = [pytest.mark.system, pytest.mark.spark]

SECONDS = 600.0


def settled(dagster: Dagster, after: int) -> list[dict[str, Any]]:
    """The runs beyond the first `after`, as soon as there are some, all are over, and a tick has found nothing new."""
    runs = dagster.runs()[after:]
    if not runs or any(r["status"] not in ("SUCCESS", "FAILURE", "CANCELED") for r in runs):
        return []
    return runs if "nothing new" in last_tick(dagster) else []


def last_tick(dagster: Dagster) -> str:
    reply = dagster.ask(
        """{sensorOrError(sensorSelector:{repositoryLocationName:"lake_assets", repositoryName:"__repository__",
        sensorName:"shop_capture_sensor"}){... on Sensor{sensorState{ticks(limit:1){status skipReason}}}}}"""
    )
    ticks = reply["sensorOrError"]["sensorState"]["ticks"]
    return (ticks[0]["skipReason"] or "") if ticks else ""


def assert_equals_postgres(lake: Lake, checkpoint: shop.Checkpoint) -> None:
    assert [c.table for c in shop.compare(lake, checkpoint) if not c.equal] == []


@pytest.mark.parametrize("micro_batch", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_lands_reaches_the_final_tables_by_itself(tmp_path: Path, micro_batch: bool) -> None:
    home = tmp_path / "lake"
    home.mkdir()
    landing = home / "landing" / "shop_events"
    first, second = shop.checkpoints()[:2]
    with dagster_dev(tmp_path, **{**SMALL_SPARK, "LAKE_HOME": str(home)}) as dagster:
        dagster.start_sensor("shop_capture_sensor")
        shop.feed(landing, first)
        runs = wait_for("the first checkpoint", lambda: settled(dagster, 0), SECONDS, dagster.log)
        assert [r["status"] for r in runs] == ["SUCCESS"]
        lake = small_lake(home)
        assert_equals_postgres(lake, first)
        # Of Dagster's own code; its users cannot do anything about them.
        assert not re.findall(r".*(?:BetaWarning|PreviewWarning).*", dagster.log.read_text())
        (jvm,) = sparks(tmp_path / "dagster_home")
        if micro_batch:
            shop.feed(landing, second)
            runs = wait_for("the micro-batch", lambda: settled(dagster, len(runs)), SECONDS, dagster.log)
            assert [r["status"] for r in runs] == ["SUCCESS"]
            assert_equals_postgres(lake, second)
            # The second run did not wait for a JVM: it had the first one's.
            assert sparks(tmp_path / "dagster_home") == [jvm]
            # The UI does not show these tags.
            with dg.DagsterInstance.from_config(str(tmp_path / "dagster_home")) as instance:
                processes = [RunProcess.of(r.run_id, r.tags) for r in instance.get_runs()]
            assert len({p.pid for p in processes if p}) == 2
    jvm.wait(60)

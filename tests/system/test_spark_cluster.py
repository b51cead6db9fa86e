"""A standalone cluster of several workers, with Spark Connect in front: workers and executors die in mid-step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lake_assets import Lake
from lake_assets.examples import shop
from tests.support.dagster_process import says, wait_for
from tests.support.processes import python, started
from tests.support.spark_servers import Cluster, cluster, connect_address

pytestmark = [pytest.mark.servers, pytest.mark.system, pytest.mark.spark, pytest.mark.long]


def executors(of: Cluster) -> list[psutil.Process]:
    """Return the processes of the workers' executors."""
    children = [c for w in of.workers if w.poll() is None for c in psutil.Process(w.pid).children(recursive=True)]
    return [c for c in children if says(c, "CoarseGrainedExecutorBackend")]


def landings(lake: Lake) -> int:
    """Return how often something has landed."""
    return len(lake.table("raw.shop_events").snapshots()) if lake.exists("raw.shop_events") else 0


@pytest.mark.parametrize("dies", ["nobody", "an executor", "a worker"])
def test_tables_equal_postgres_whoever_dies(new_lake: Callable[[str], Lake], tmp_path: Path, dies: str) -> None:
    lake = new_lake("lake")
    none = tmp_path / "none"
    with cluster(tmp_path, workers=2, cores=1) as workers, connect_address(tmp_path, workers.address) as remote:
        nothing = {"LAKE_SPARK__REMOTE": remote, "JAVA_HOME": str(tmp_path), "LAKE_JARS": str(none)}
        for checkpoint in shop.checkpoints()[:2]:
            shop.feed(lake.config.home / "landing" / "shop_events", checkpoint)
            before, log = landings(lake), tmp_path / "run.log"
            command = python("tests.system.run_pipeline", lake.config.home, shop.PIPELINE)
            with started(command, log, nothing) as run:
                if checkpoint is shop.checkpoints()[1] and dies != "nobody":
                    wait_for("landing", lambda before=before: landings(lake) > before, 120, log)
                    victim = executors(workers)[0] if dies == "an executor" else psutil.Process(workers.workers[0].pid)
                    for process in [*victim.children(recursive=True), victim]:
                        process.kill()
                    assert run.poll() is None
                assert run.wait(600) == 0, log.read_text()[-3000:]
            assert [c.table for c in shop.compare(lake, checkpoint) if not c.equal] == []
        if dies == "nobody":
            assert len(executors(workers)) == 2
        else:
            assert "Lost executor" in (tmp_path / "server.log").read_text()

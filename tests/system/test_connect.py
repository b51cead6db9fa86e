"""The same code over a Spark Connect server: no JVM in the process, nothing reached but SQL and DataFrames."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.errors import SparkUnavailableError
from lake_assets.examples import shop
from lake_assets.lake import SparkConfig, server
from tests.conftest import SMALL
from tests.support.oracle import rows_of
from tests.system.processes import python, started

pytestmark = pytest.mark.system

QUERY = (
    "SELECT c.city, count(*) AS population, sum(u.balance) AS balance "
    "FROM final.users u JOIN final.user_city c ON u.id = c.user_id GROUP BY c.city"
)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a server that is up."""
    port, log = free_port(), tmp_path / "server.log"
    spark = SparkConfig(master="local[2]", driver_memory="1g", conf=SMALL)
    command, env = server.command(LakeConfig(home=tmp_path, spark=spark), port)
    with started(command, log, env) as process:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(0.2)
            else:
                break
        assert process.poll() is None, log.read_text()
        yield f"sc://127.0.0.1:{port}"


def test_the_shop_equals_postgres_over_spark_connect(
    remote: str, new_lake: Callable[[str], Lake], tmp_path: Path
) -> None:
    lake = new_lake("lake")
    for checkpoint in shop.checkpoints()[:2]:
        shop.feed(lake.config.home / "landing" / "shop_events", checkpoint)
        log = tmp_path / "run.log"
        command = python("tests.system.run_pipeline", lake.config.home, shop.PIPELINE)
        # Without a Java to be found nothing but the server can have done it.
        nothing = {"LAKE_SPARK__REMOTE": remote, "JAVA_HOME": str(tmp_path), "LAKE_JARS": str(tmp_path / "none")}
        with started(command, log, nothing) as run:
            assert run.wait(timeout=300) == 0, log.read_text()
        assert not (tmp_path / "none").exists()
        assert {c.table: c.differences[:3] for c in shop.compare(lake, checkpoint) if not c.equal} == {}
        assert rows_of(lake.spark().table("agg.city_population")) == rows_of(lake.spark().sql(QUERY))


def test_a_server_that_is_away_is_named_at_once(tmp_path: Path) -> None:
    lake = Lake(LakeConfig(home=tmp_path, spark=SparkConfig(remote=f"sc://127.0.0.1:{free_port()}")))
    with pytest.raises(SparkUnavailableError, match=r"no Spark Connect server at sc://127\.0\.0\.1"):
        lake.spark()


def test_a_run_without_its_server_leaves_everything_as_it_was(tmp_path: Path) -> None:
    lake = Lake(LakeConfig(home=tmp_path / "lake"))
    shop.feed(lake.config.home / "landing" / "shop_events", shop.checkpoints()[0])
    command = python("tests.system.run_pipeline", lake.config.home, shop.PIPELINE)
    env = {"LAKE_SPARK__REMOTE": f"sc://127.0.0.1:{free_port()}"}
    log = tmp_path / "run.log"
    with started(command, log, env) as run:
        assert run.wait(timeout=60) != 0
    assert "SparkUnavailableError" in log.read_text()
    assert lake.tables("raw") == []

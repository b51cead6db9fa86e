"""JVMs that go from process to process: each process in turn is a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from lake_assets.errors import SparkUnavailableError
from lake_assets.lake import LakeConfig, SparkConfig
from lake_assets.lake.spark_session import session_conf
from lake_assets.runtime import warm_jvm
from lake_assets.runtime.java import find_java
from lake_assets.runtime.processes import identity
from tests.support.lakes import SHORT_JVM, SMALL

SECONDS = 120.0
REFERRED_TO = (
    "__import__('py4j').java_gateway.JavaObject('GATEWAY_SERVER', session.sparkContext._gateway._gateway_client)"
    ".getGateway().getBindings().size()"
)


started: list[subprocess.Popen[str]] = []


class Borrower:
    """A process that has borrowed a JVM.

    Attributes:
        jvm: the JVM's process.
    """

    def __init__(self, keeping: warm_jvm.KeeperSettings, conf: dict[str, str], log: Path, before: str = "None") -> None:
        given = json.dumps({"keeping": vars(keeping), "conf": conf, "log": str(log), "before": before})
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("jvm_borrower.py")), given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(self.process)
        assert self.process.stdout
        self.jvm = psutil.Process(int(self.process.stdout.readline()))

    def do(self, what: str) -> Any:
        """What an expression gives there."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def give_back(self) -> None:
        self.do("warm_jvm.give_back()")
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def keeping() -> Generator[warm_jvm.KeeperSettings]:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    # Paths of sockets have to be short.
    folder = Path(tempfile.mkdtemp(prefix="lake-assets-"))
    yield warm_jvm.KeeperSettings(str(folder), identity(owner.pid), SECONDS, 100)
    for borrower in started:
        borrower.kill()
        borrower.communicate()
    started.clear()
    owner.communicate(b"\n")
    if not list(folder.iterdir()):
        folder.rmdir()
    # An idle JVM sees that its owner is gone, and the last one leaves nothing behind.
    wait_for(lambda: not folder.exists())


@pytest.fixture
def conf(tmp_path: Path) -> dict[str, str]:
    os.environ["JAVA_HOME"] = str(find_java())
    (tmp_path / "lake").mkdir()
    spark = SparkConfig(master="local[1]", driver_memory="1g", conf=SMALL | SHORT_JVM)
    return session_conf(LakeConfig(home=tmp_path / "lake", spark=spark))


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < until
        time.sleep(0.1)


def open_catalogs(borrower: Borrower) -> list[str]:
    """Files of the catalog that the JVM has open."""
    return [f.path for f in borrower.jvm.open_files() if Path(f.path).name.startswith("catalog.db")]


@pytest.mark.long
@pytest.mark.spark
def test_the_next_process_has_the_same_jvm_and_nothing_of_the_last_one(
    keeping: warm_jvm.KeeperSettings, conf: dict[str, str], tmp_path: Path
) -> None:
    first = Borrower(keeping, conf, tmp_path / "spark.log")
    at_first = first.do(REFERRED_TO)
    first.do("session.range(7).createOrReplaceTempView('left')")
    first.do("session.conf.set('spark.sql.shuffle.partitions', '77')")
    first.do("session.builder.getOrCreate().range(3).createOrReplaceTempView('left')")
    first.do("session.sql('CREATE NAMESPACE lake.found') and None")
    assert open_catalogs(first)
    first.do("session.sql('CREATE TABLE lake.found.t USING iceberg AS SELECT 1 AS a') and None")
    assert first.do("session.table('lake.found.t').cache().count()") == 1
    assert first.do("[kept := [session.range(i) for i in range(500)], len(kept)][1]") == 500
    assert first.do(REFERRED_TO) > at_first + 300
    first.give_back()
    wait_for(lambda: not open_catalogs(first))

    second = Borrower(keeping, conf, tmp_path / "spark.log")
    assert second.jvm == first.jvm
    assert not second.do("session.catalog.dropTempView('left')")
    assert not second.do("session.builder.getOrCreate().catalog.dropTempView('left')")
    # What is cached is so for the whole JVM.
    assert second.do("session._jsparkSession.sharedState().cacheManager().isEmpty()")
    assert second.do("session.table('lake.found.t').count()") == 1
    assert second.do("session.conf.get('spark.sql.shuffle.partitions')") == conf["spark.sql.shuffle.partitions"]
    assert second.do("session.range(5).count()") == 5
    assert second.do(REFERRED_TO) < at_first + 100
    second.give_back()


@pytest.mark.long
@pytest.mark.spark
def test_a_jvm_is_lent_to_one_at_a_time_and_ends_with_who_does_not_give_it_back(
    keeping: warm_jvm.KeeperSettings, conf: dict[str, str], tmp_path: Path
) -> None:
    one, other = (Borrower(keeping, conf, tmp_path / "spark.log") for _ in range(2))
    assert one.jvm != other.jvm
    files = Path(one.do("session.sparkContext._jvm.java.lang.System.getProperty('java.io.tmpdir')"))
    assert list(files.iterdir())
    one.kill()
    one.jvm.wait(SECONDS)
    wait_for(lambda: not files.exists())
    assert other.do("session.range(5).count()") == 5
    other.give_back()
    # Its process died while nobody used it.
    other.jvm.kill()
    # Nor does it matter to this process that one which it was given first did not answer.
    third = Borrower(keeping, conf, tmp_path / "spark.log", "warm_jvm._attach(socket.socketpair()[0], 1, 'gone')")
    assert third.jvm not in (one.jvm, other.jvm)
    third.give_back()


@pytest.mark.long
def test_a_jvm_ends_when_it_is_of_no_use_any_more(
    keeping: warm_jvm.KeeperSettings, conf: dict[str, str], tmp_path: Path
) -> None:
    keeping = replace(keeping, loans=2)
    for _ in range(2):
        twice = Borrower(keeping, conf, tmp_path / "spark.log")
        twice.give_back()
    twice.jvm.wait(SECONDS)

    unlike = Borrower(keeping, conf, tmp_path / "spark.log")
    unlike.give_back()
    idle = Borrower(replace(keeping, idle_seconds=0.5), conf | {"spark.app.name": "other"}, tmp_path / "spark.log")
    unlike.jvm.wait(SECONDS)
    assert idle.do("session.sparkContext.appName") == "other"
    time.sleep(2)  # lent, it is not idle
    assert idle.jvm.is_running()
    idle.give_back()
    idle.jvm.wait(SECONDS)


@pytest.mark.spark
def test_a_jvm_that_does_not_start_is_named_with_its_log(
    keeping: warm_jvm.KeeperSettings, conf: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_jvm._Loan, "settings", keeping)
    log = tmp_path / "spark.log"
    with pytest.raises(SparkUnavailableError, match=str(log)):
        warm_jvm.session(conf | {"spark.driver.memory": "1k"}, log)
    assert "heap" in log.read_text()

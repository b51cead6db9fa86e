"""Lakes for tests: one JVM for the whole session, a lake of its own for every test."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig, thresholds
from lake_assets.lake.spark_session import packages
from lake_assets.runtime.jars import resolve
from tests.support.kills import Points, around_writes

# The data of a test is a handful of rows: what Spark does for big ones costs more than it saves.
SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # The plans that Spark's UI would show.
    "spark.sql.ui.explainMode": "simple",
}

# Whenever the room for classes has to grow, everything is collected: they get enough of it from the start. So does the
# heap, which keeps what Spark remembers of every session. Collectors with threads of their own cost more than they save
# where tests run on every core. Nor does the second compiler: it took a third of the time of the CPU.
_JVM = "-XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:MetaspaceSize=400m -XX:TieredStopAtLevel=1"
# Spark allocates a page of memory for each task that sorts or groups, and a block for each part of a query.
JVM_OF_TESTS = {
    "spark.driver.extraJavaOptions": f"{_JVM} -Xms3g -Xmn768m",
    "spark.buffer.pageSize": "1m",
    "spark.broadcast.blockSize": "64k",
}
# A JVM that lives for a few steps.
SHORT_JVM = {"spark.driver.extraJavaOptions": f"{_JVM} -Xms512m"}

# Hadoop starts four programs for each file that it writes (docs/decisions/0042-local-files.md).
_FILES = "spark.sql.catalog.lake.hadoop.fs.file.impl"
FILES = {_FILES: "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem", f"{_FILES}.disable.cache": "true"}
FILES_JAR = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"

# If it is set, the lakes of tests are in this database: one lake per database.
CATALOG_URI = "TESTS_CATALOG_URI"

# Where tests run beside each other there is no terminal whose width could be asked for.
os.environ["COLUMNS"] = "150"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a Spark session is marked as such; the longest come first, so that no process is left alone
    with one at the end."""
    for item in items:
        if {"lake", "spark_lake"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.spark)
    items.sort(key=lambda item: item.get_closest_marker("system") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests put down as `summary` (record_property) is shown at the end, also of other processes."""
    reports = [r for found in terminalreporter.stats.values() for r in found if isinstance(r, pytest.TestReport)]
    for report in reports:
        for name, value in report.user_properties:
            if name == "summary" and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid.split('::')[-1]}: {value}")


@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_the_user() -> Iterator[None]:
    """Whoever runs the tests may have a lake of their own configured; only the cache of jars is shared with it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("LAKE_") and n != "LAKE_JARS"]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def _few_rows_are_absorbed_as_many_are() -> Iterator[None]:
    """The tables of tests are small; what is tested is how changes are absorbed. Other programs have the default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds, "FULL_UP_TO_COST", 0)
        # Some are read whole, and some are large enough for lookups by keys, or for pruning.
        patch.setattr(thresholds, "SMALL_SIDE_ROWS", 12)
        patch.setattr(thresholds, "SMALL_TARGET_ROWS", 12)
        yield


def small_lake(
    home: Path, session: Callable[[], SparkSession] | None = None, catalog: dict[str, str] | None = None
) -> Lake:
    """A lake in `home` with settings for little data; the embedded one, unless a catalog is given."""
    uri = os.environ.get(CATALOG_URI)
    if uri:
        catalog = {"type": "sql", "uri": uri}
    conf = {**SMALL, **JVM_OF_TESTS, **FILES, "spark.jars": _jars(uri)}
    spark = SparkConfig(master="local[2]", driver_memory="3g", conf=conf)
    return Lake(LakeConfig(home=home, spark=spark, catalog=catalog or {}), session=session)


@functools.cache
def _jars(uri: str | None) -> str:
    """The jars of any lake, which `make setup` has downloaded, that of `FILES`, and the driver of the catalog's database."""
    config = LakeConfig(home=Path("lake"), catalog={"type": "sql", "uri": uri} if uri else {})
    return ",".join(map(str, [*resolve(packages(config)), *resolve([FILES_JAR])]))


@pytest.fixture(scope="session")
def spark_lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake for tests that only compute; whichever is opened first starts the session's one JVM."""
    lake = small_lake(tmp_path_factory.mktemp("spark"))
    _small(lake)
    return lake


@pytest.fixture
def new_lake(spark_lake: Lake, tmp_path: Path) -> Callable[[str], Lake]:
    """Makes lakes in folders of the test, each with its own catalog and Spark session on the shared JVM."""

    def make(name: str) -> Lake:
        return lake_on(spark_lake, tmp_path / name)

    return make


def lake_on(spark_lake: Lake, home: Path, catalog: dict[str, str] | None = None) -> Lake:
    """A lake in `home` on the JVM of another one, with a session of its own."""
    home.mkdir(exist_ok=True)
    # A session of the JVM that runs: opening it by its settings would check the jars' sums for each lake.
    lake = small_lake(home, spark_lake.spark().newSession, catalog)
    _small(lake)
    return lake


@pytest.fixture
def lake(new_lake: Callable[[str], Lake]) -> Lake:
    """The test's own lake."""
    return new_lake("lake")


@pytest.fixture
def plain_lake(tmp_path: Path) -> Lake:
    """A lake whose Spark is never started: catalog and files only."""
    return Lake(LakeConfig(home=tmp_path / "plain"))


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Points:
    """The points at which a step can be killed; it is not, until they are armed."""
    points = Points(only_after=True)
    around_writes(points, monkeypatch)
    return points


def _small(lake: Lake) -> None:
    # A JVM that was started elsewhere keeps its own defaults: settings of the session are set in the session.
    for key, value in SMALL.items():
        lake.spark().conf.set(key, value)
    # Spark looks through the stack with each job for the place that started it, which its UI would show.
    for form in ("short", "long"):
        lake.spark().sparkContext.setLocalProperty(f"callSite.{form}", "test")

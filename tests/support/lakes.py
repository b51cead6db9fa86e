"""Lakes with settings for little data, on the one JVM of a session of tests."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig
from lake_assets.lake.spark_session import packages
from lake_assets.runtime.jars import resolve

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
# A catalog is as safe as its disk: each commit waits for it, which no test can tell from one that does not.
QUICK_CATALOG = {"spark.sql.catalog.lake.jdbc.synchronous": "OFF"}
FILES_JAR = "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0"

# If it is set, the lakes of tests are in this database: one lake per database.
CATALOG_URI = "TESTS_CATALOG_URI"


def small_lake(
    home: Path, session: Callable[[], SparkSession] | None = None, catalog: dict[str, str] | None = None
) -> Lake:
    """A lake in `home` with settings for little data; the embedded one, unless a catalog is given."""
    uri = os.environ.get(CATALOG_URI)
    if uri:
        catalog = {"type": "sql", "uri": uri}
    conf = {**SMALL, **JVM_OF_TESTS, **FILES, **QUICK_CATALOG, "spark.jars": _jars(uri)}
    spark = SparkConfig(master="local[2]", driver_memory="3g", conf=conf)
    return Lake(LakeConfig(home=home, spark=spark, catalog=catalog or {}), session=session)


@functools.cache
def _jars(uri: str | None) -> str:
    """The jars of any lake, which `make setup` has downloaded, that of `FILES`, and the driver of the catalog's database."""
    config = LakeConfig(home=Path("lake"), catalog={"type": "sql", "uri": uri} if uri else {})
    return ",".join(map(str, [*resolve(packages(config)), *resolve([FILES_JAR])]))


def lake_on(spark_lake: Lake, home: Path, catalog: dict[str, str] | None = None) -> Lake:
    """A lake in `home` on the JVM of another one, with a session of its own."""
    home.mkdir(exist_ok=True)
    # A session of the JVM that runs: opening it by its settings would check the jars' sums for each lake.
    lake = small_lake(home, spark_lake.spark().newSession, catalog)
    set_for_little_data(lake)
    return lake


def set_for_little_data(lake: Lake) -> None:
    # A JVM that was started elsewhere keeps its own defaults: settings of the session are set in the session.
    for key, value in SMALL.items():
        lake.spark().conf.set(key, value)
    # Spark looks through the stack with each job for the place that started it, which its UI would show.
    for form in ("short", "long"):
        lake.spark().sparkContext.setLocalProperty(f"callSite.{form}", "test")

"""What the drivers of all peers share: requests as JSON lines on stdin, replies on stdout, and a Spark session.

Runs in the peers' own environments, so it imports PySpark and the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession

# What a table of upserts is compared by: in all engines the same types.
EXPORTED = ["id", "code", "a", "b", "name", "CAST(amount AS STRING) AS amount", "unix_seconds(ts) AS ts", "seq"]
COLUMNS = ["id", "code", "a", "b", "name", "amount", "ts", "seq"]
DAILY = [
    "account",
    "CAST(day AS STRING) AS day",
    "CAST(seconds AS BIGINT) AS seconds",
    "CAST(plays AS BIGINT) AS plays",
]
RUNNING = ["account", "CAST(day AS STRING) AS day", "CAST(seconds AS BIGINT) AS seconds"]
# Seconds and plays by account and day; seconds of an account up to each day.
DAILY_QUERY = (
    "SELECT account, to_date(started_at) AS day, sum(seconds) AS seconds, count(*) AS plays FROM db.events {where} "
    "GROUP BY account, to_date(started_at)"
)
RUNNING_QUERY = (
    "SELECT * FROM (SELECT account, day, sum(seconds) OVER (PARTITION BY account ORDER BY day) AS seconds "
    "FROM db.daily) {where}"
)
FILES = 16


class Driver:
    """A tool that keeps tables up to date from batches of changes."""

    packages: ClassVar[tuple[str, ...]] = ("pyspark",)
    conf: ClassVar[dict[str, str]] = {}

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.home = settings, Path(settings["home"])
        self.spark = self.open()
        self.batch = ""

    def open(self) -> SparkSession:
        """Open the Spark session, with the settings that all peers get and the peer's own."""
        conf = {
            "spark.master": "local[2]", "spark.app.name": "peer", "spark.driver.memory": self.settings["memory"],
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC", "spark.sql.warehouse.dir": str(self.home / "warehouse"),
            "spark.ui.showConsoleProgress": "false", "spark.jars": ",".join(self.settings["jars"]),
            **self.settings["spark"], **{k: v.format(home=self.home) for k, v in self.conf.items()},
        }  # fmt: skip
        builder = SparkSession.builder
        for name, value in conf.items():
            if value:
                builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        return session

    def scattered(self, folder: str) -> DataFrame:
        """Return the rows of the first load, scattered by a hash of the key over the files to be written."""
        return self.spark.read.parquet(folder).repartition(FILES, "id")

    def load(self, folder: str) -> None:
        """Create the tables and fill them."""
        raise NotImplementedError

    def prepare(self, batch: str) -> None:
        """Do what is not timed."""
        self.batch = batch

    def step(self) -> str | None:
        """Bring the tables up to date with the batch; this is timed. Return how, if the tool says so."""
        raise NotImplementedError

    def tables(self) -> dict[str, DataFrame]:
        """Return the maintained tables by name."""
        raise NotImplementedError

    def columns(self) -> dict[str, list[str]]:
        """Return the exported columns by table."""
        return {"final": EXPORTED, "daily": DAILY, "running": RUNNING}

    def read(self) -> None:
        """Read all rows and columns of the tables."""
        for name, table in self.tables().items():
            hashed = table.selectExpr(*self.columns()[name]).selectExpr("sum(CAST(xxhash64(*) AS DECIMAL(38)))")
            hashed.collect()

    def export(self, to: str) -> None:
        """Write the tables' rows as Parquet."""
        for name, table in self.tables().items():
            table.selectExpr(*self.columns()[name]).write.mode("overwrite").parquet(f"{to}/{name}")

    def versions(self) -> dict[str, str]:
        """Return the versions of what the tool consists of."""
        found: dict[str, str] = {}
        for package in self.packages:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = "missing"
        return found


def serve(workloads: dict[str, type[Driver]]) -> None:
    """Carry out requests until stdin ends."""
    # Whatever the tools print goes to the log, which is stderr.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    driver: Driver | None = None
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any] = {}
        try:
            began = time.perf_counter()
            if driver is None:
                driver = workloads[settings["workload"]](settings)
            said = getattr(driver, request["do"])(*request.get("with", []))
            reply = {"seconds": time.perf_counter() - began, "said": said}
        except Exception as e:
            traceback.print_exc()
            reply = {"error": f"{type(e).__name__}: {' '.join(str(e).split())[:600]}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    if driver is not None:
        driver.spark.stop()

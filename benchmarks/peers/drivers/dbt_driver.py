"""dbt with dbt-spark: its runner in this process, so that its Spark session stays warm from run to run.

Days by the microbatch strategy with a lookback, running totals by overwriting the same days (docs:
incremental-microbatch, spark-configs). The window is given, since the events' days are not the machine's today.
"""

from __future__ import annotations

import json
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import iceberg_driver
from driver_protocol import serve
from pyspark.sql.functions.partitioning import days

PROJECT = Path(__file__).parent.parent / "dbt_project"


class Totals(iceberg_driver.Totals):
    """Both models by `dbt run`, over Iceberg tables partitioned by day."""

    packages: ClassVar[tuple[str, ...]] = ("pyspark", "dbt-core", "dbt-spark")

    def load(self, folder: str) -> None:
        """Create the events; build both models from all of them."""
        self.create(self.spark.read.parquet(folder), "db.events", partition=days("started_at"), sort="started_at")
        self.run("--full-refresh", first="2026-03-01")

    def prepare(self, batch: str) -> None:
        """Append the events; note the newest day, which is today for a scheduled run."""
        super().prepare(batch)
        (self.newest,) = self.spark.sql("SELECT max(to_date(started_at)) FROM db.events").collect()[0]

    def step(self) -> None:
        """Run dbt over the newest day and those before it, as many as the lookback has."""
        self.run(first=str(self.newest - timedelta(days=self.settings["lookback"])))

    def run(self, *more: str, first: str) -> None:
        """Run dbt from a day on."""
        (newest,) = self.spark.sql("SELECT max(to_date(started_at)) FROM db.events").collect()[0]
        names = json.dumps({"lookback": self.settings["lookback"], "first": first})
        done = import_module("dbt.cli.main").dbtRunner().invoke(
            ["run", "--project-dir", str(PROJECT), "--profiles-dir", str(PROJECT), "--vars", names,
             "--target-path", str(self.home / "target"), "--log-path", str(self.home / "logs"), "--quiet",
             "--event-time-start", first, "--event-time-end", str(newest + timedelta(days=1)), *more]
        )  # fmt: skip
        if not done.success:
            failed = [r.message for r in getattr(done.result, "results", []) if r.status not in ("success", "pass")]
            raise RuntimeError(f"dbt run failed: {done.exception or failed}")


if __name__ == "__main__":
    serve({"totals": Totals})

"""Delta Lake: `MERGE INTO` with deletion vectors (docs: delta-update, delta-deletion-vectors)."""

from __future__ import annotations

from typing import ClassVar

from driver_protocol import DAILY_QUERY, RUNNING_QUERY, Driver, serve
from iceberg_driver import merge
from pyspark.sql import DataFrame


class DeltaDriver(Driver):
    """Tables in the session's catalog, with deletion vectors."""

    packages: ClassVar[tuple[str, ...]] = ("pyspark", "delta-spark")
    conf: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
        # The state of a table with few files is computed in 50 tasks by default.
        "spark.databricks.delta.snapshotPartitions": "2",
    }

    def path(self, table: str) -> str:
        """Return the name of a table: its path, so that it outlives the session."""
        return f"delta.`{self.home}/delta/{table}`"


class Upserts(DeltaDriver):
    """One MERGE a batch."""

    def load(self, folder: str) -> None:
        """Create the table and fill it."""
        self.scattered(folder).write.format("delta").save(f"{self.home}/delta/final")

    def step(self) -> None:
        """Apply the batch."""
        self.spark.sql(merge(self.path("final"), self.batch))

    def tables(self) -> dict[str, DataFrame]:
        """Return the tables."""
        return {"final": self.spark.table(self.path("final"))}


class Totals(DeltaDriver):
    """Daily sums adjusted by the new events of the change data feed, running totals recomputed for their accounts."""

    conf: ClassVar[dict[str, str]] = {
        **DeltaDriver.conf,
        "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
    }

    def query(self, text: str) -> str:
        """Return a query over the tables by their paths."""
        for table in ("events", "daily", "running"):
            text = text.replace(f"db.{table}", self.path(table))
        return text.format(where="")

    def load(self, folder: str) -> None:
        """Create the tables and fill them."""
        self.spark.read.parquet(folder).write.format("delta").save(f"{self.home}/delta/events")
        for table, query in (("daily", DAILY_QUERY), ("running", RUNNING_QUERY)):
            self.spark.sql(self.query(query)).write.format("delta").save(f"{self.home}/delta/{table}")

    def prepare(self, batch: str) -> None:
        """Append the events."""
        self.spark.read.parquet(batch).write.format("delta").mode("append").save(f"{self.home}/delta/events")

    def step(self) -> None:
        """Read the newest version's events from the feed, and bring both tables up to date."""
        (version,) = self.spark.sql(f"DESCRIBE HISTORY {self.path('events')} LIMIT 1").select("version").collect()[0]
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
        feed.load(f"{self.home}/delta/events").createOrReplaceTempView("new_events")
        by_day = DAILY_QUERY.format(where="").replace("db.events", "new_events")
        self.spark.sql(
            f"MERGE INTO {self.path('daily')} t USING ({by_day}) s ON t.account = s.account AND t.day = s.day "
            "WHEN MATCHED THEN UPDATE SET seconds = t.seconds + s.seconds, plays = t.plays + s.plays "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        accounts = "WHERE account IN (SELECT account FROM new_events)"
        running = self.query(RUNNING_QUERY.replace(") {where}", f" {accounts}) {{where}}"))
        self.spark.sql(
            f"MERGE INTO {self.path('running')} t USING ({running}) s ON t.account = s.account AND t.day = s.day "
            "WHEN MATCHED AND t.seconds <> s.seconds THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def tables(self) -> dict[str, DataFrame]:
        """Return the tables."""
        return {table: self.spark.table(self.path(table)) for table in ("daily", "running")}


if __name__ == "__main__":
    serve({"upserts": Upserts, "totals": Totals})

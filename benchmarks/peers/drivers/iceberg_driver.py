"""Plain Iceberg: `MERGE INTO` in Spark, as its documentation advises (spark-writes: MERGE INTO; merge-on-read)."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from driver_protocol import COLUMNS, DAILY_QUERY, RUNNING_QUERY, Driver, serve
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.functions.partitioning import days

MERGE = (
    "MERGE INTO {table} t USING (SELECT * FROM parquet.`{batch}`) s ON t.id = s.id WHEN MATCHED AND s.op = 'D' "
    "THEN DELETE WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT ({columns}) "
    "VALUES ({values})"
)


def merge(table: str, batch: str) -> str:
    """Return the MERGE of a batch."""
    return MERGE.format(
        table=table, batch=batch, sets=", ".join(f"t.{c} = s.{c}" for c in COLUMNS), columns=", ".join(COLUMNS),
        values=", ".join(f"s.{c}" for c in COLUMNS),
    )  # fmt: skip


# Deletion vectors, and no shuffle before rows are written: changes of a batch make few files.
PROPERTIES = {
    "format-version": "3", "write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read", "write.distribution-mode": "none", "write.merge.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
}  # fmt: skip


class IcebergDriver(Driver):
    """A catalog in a folder."""

    conf: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": "{home}/iceberg",
        # As lake_assets starts its JVM: local files are opened faster than worker threads are waited for.
        "spark.driver.defaultJavaOptions": "-Diceberg.scan.plan-in-worker-pool=false",
    }

    def create(self, rows: DataFrame, table: str, partition: Column | None = None, sort: str = "") -> None:
        """Create a table with these rows, by default not partitioned."""
        if sort:
            rows = rows.sortWithinPartitions(sort)
        writer = rows.writeTo(table).using("iceberg")
        if partition is not None:
            writer = writer.partitionedBy(partition)
        for name, value in PROPERTIES.items():
            writer = writer.tableProperty(name, value)
        writer.create()


class Upserts(IcebergDriver):
    """One MERGE a batch."""

    def load(self, folder: str) -> None:
        """Create the table and fill it."""
        self.create(self.scattered(folder), "lake.db.final")

    def step(self) -> None:
        """Apply the batch."""
        self.spark.sql(merge("lake.db.final", self.batch))

    def tables(self) -> dict[str, DataFrame]:
        """Return the tables."""
        return {"final": self.spark.table("lake.db.final")}


class Totals(IcebergDriver):
    """Both tables recomputed for the last days, by MERGE with a condition on the day, which is their partition."""

    conf: ClassVar[dict[str, str]] = {**IcebergDriver.conf, "spark.sql.defaultCatalog": "lake"}

    def load(self, folder: str) -> None:
        """Create the tables and fill them."""
        events = self.spark.read.parquet(folder)
        self.create(events, "db.events", partition=days("started_at"), sort="started_at")
        self.create(self.spark.sql(DAILY_QUERY.format(where="")), "db.daily", partition=F.col("day"), sort="day")
        self.create(self.spark.sql(RUNNING_QUERY.format(where="")), "db.running", partition=F.col("day"), sort="day")

    def prepare(self, batch: str) -> None:
        """Append the events."""
        self.spark.read.parquet(batch).sortWithinPartitions("started_at").writeTo("db.events").append()

    def step(self) -> None:
        """Recompute the days since the newest one that was seen, less the lookback, in both tables."""
        (newest,) = self.spark.sql("SELECT max(day) FROM db.daily").collect()[0]
        first = newest + timedelta(days=1 - self.settings["lookback"])
        for table, query in (("daily", DAILY_QUERY), ("running", RUNNING_QUERY)):
            where = f"WHERE started_at >= '{first}'" if table == "daily" else f"WHERE day >= '{first}'"
            same = "t.seconds = s.seconds"
            self.spark.sql(
                f"MERGE INTO db.{table} t USING ({query.format(where=where)}) s ON t.account = s.account "
                f"AND t.day = s.day AND t.day >= '{first}' WHEN MATCHED AND NOT ({same}) THEN UPDATE SET * "
                "WHEN NOT MATCHED THEN INSERT *"
            )

    def tables(self) -> dict[str, DataFrame]:
        """Return the tables."""
        return {table: self.spark.table(f"db.{table}") for table in ("daily", "running")}


if __name__ == "__main__":
    serve({"upserts": Upserts, "totals": Totals})

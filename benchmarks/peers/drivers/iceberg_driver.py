"""Plain Iceberg: `MERGE INTO` in Spark, as its documentation advises (spark-writes: MERGE INTO; merge-on-read)."""

from __future__ import annotations

from typing import ClassVar

from driver_protocol import COLUMNS, Driver, serve
from pyspark.sql import DataFrame

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

    def create(self, rows: DataFrame, table: str) -> None:
        """Create a table with these rows."""
        writer = rows.writeTo(table).using("iceberg")
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


if __name__ == "__main__":
    serve({"upserts": Upserts})

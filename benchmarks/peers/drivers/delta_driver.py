"""Delta Lake: `MERGE INTO` with deletion vectors (docs: delta-update, delta-deletion-vectors)."""

from __future__ import annotations

from typing import ClassVar

from driver_protocol import Driver, serve
from iceberg_driver import merge
from pyspark.sql import DataFrame


class DeltaDriver(Driver):
    """Tables in the session's catalog, with deletion vectors."""

    packages: ClassVar[tuple[str, ...]] = ("pyspark", "delta-spark")
    conf: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
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


if __name__ == "__main__":
    serve({"upserts": Upserts})

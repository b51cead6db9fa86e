"""Apache Hudi: upserts into a merge-on-read table with a global record-level index (docs: indexes, writing_data)."""

from __future__ import annotations

from typing import ClassVar

from driver_protocol import FILES, Driver, serve
from pyspark.sql import DataFrame

OPTIONS = {
    "hoodie.table.name": "final",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "seq",
    "hoodie.datasource.write.partitionpath.field": "",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.index.type": "GLOBAL_RECORD_LEVEL_INDEX",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.bulkinsert.shuffle.parallelism": str(FILES),
    # Files as they are loaded: 16, each a file group of its own.
    "hoodie.bulkinsert.sort.mode": "NONE",
    "hoodie.parquet.small.file.limit": "0",
}


class Upserts(Driver):
    """One upsert a batch by the data source; deletes are rows with `_hoodie_is_deleted`."""

    conf: ClassVar[dict[str, str]] = {
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    }

    def write(self, rows: DataFrame, operation: str, mode: str) -> None:
        """Write rows by an operation of Hudi."""
        options = {**OPTIONS, "hoodie.datasource.write.operation": operation}
        rows.write.format("hudi").options(**options).mode(mode).save(f"{self.home}/hudi/final")

    def load(self, folder: str) -> None:
        """Create the table and fill it."""
        self.write(self.scattered(folder).selectExpr("*", "false AS _hoodie_is_deleted"), "bulk_insert", "overwrite")

    def step(self) -> None:
        """Apply the batch."""
        changes = self.spark.read.parquet(self.batch)
        self.write(changes.selectExpr("*", "op = 'D' AS _hoodie_is_deleted").drop("op"), "upsert", "append")

    def tables(self) -> dict[str, DataFrame]:
        """Return the tables."""
        return {"final": self.spark.read.format("hudi").load(f"{self.home}/hudi/final")}


if __name__ == "__main__":
    serve({"upserts": Upserts})

"""Apache Paimon: a primary-key table with deletion vectors, written by INSERT (docs: primary-key-table).

Paimon decides by the key what an inserted row replaces; the field `op` says which rows are deletes (`rowkind.field`).
"""

from __future__ import annotations

from typing import ClassVar

from driver_protocol import COLUMNS, Driver, serve
from pyspark.sql import DataFrame

# 200 MB to 1 GB a bucket is advised.
BUCKETS = {"small": 2, "large": 4}
KIND = "CASE op WHEN 'D' THEN '-D' ELSE '+U' END AS op"


class Upserts(Driver):
    """One INSERT a batch."""

    conf: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
        "spark.sql.catalog.paimon": "org.apache.paimon.spark.SparkCatalog",
        "spark.sql.catalog.paimon.warehouse": "{home}/paimon",
    }

    def load(self, folder: str) -> None:
        """Create the table and fill it."""
        buckets = BUCKETS["large" if self.settings["rows"] > 5_000_000 else "small"]
        self.spark.sql("CREATE DATABASE IF NOT EXISTS paimon.db")
        self.spark.sql(
            "CREATE TABLE paimon.db.final (id BIGINT, code STRING, a BIGINT, b BIGINT, name STRING, "
            "amount DECIMAL(12,2), ts TIMESTAMP, seq BIGINT, op STRING) TBLPROPERTIES ('primary-key' = 'id', "
            f"'bucket' = '{buckets}', 'deletion-vectors.enabled' = 'true', 'rowkind.field' = 'op', "
            "'file.format' = 'parquet', 'sequence.field' = 'seq')"
        )
        self.scattered(folder).selectExpr(*COLUMNS, "'+I' AS op").writeTo("paimon.db.final").append()

    def step(self) -> None:
        """Apply the batch."""
        self.spark.read.parquet(self.batch).selectExpr(*COLUMNS, KIND).writeTo("paimon.db.final").append()

    def tables(self) -> dict[str, DataFrame]:
        """Return the tables."""
        return {"final": self.spark.table("paimon.db.final")}


if __name__ == "__main__":
    serve({"upserts": Upserts})

"""DataFrames of a few rows that Python holds.

With PySpark's own way, `createDataFrame` with a list, each query over the rows waits for a Python process that hands
them to Spark, even if there are none. That takes longer than most queries over few rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def no_rows(spark: SparkSession, columns: str) -> DataFrame:
    """Return a frame without rows, which Spark also removes from the plans of queries."""
    return spark.sql(f"SELECT r.* FROM (SELECT CAST(NULL AS STRUCT<{columns}>) AS r) WHERE false")


def rows_in_memory(spark: SparkSession, rows: Sequence[Sequence[object]], columns: str) -> DataFrame:
    """Return a frame of rows, by Arrow.

    Args:
        rows: the values of each row, of any types but maps and structs; times without a zone are in the session's.
    """
    if not rows:
        return no_rows(spark, columns)
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    values = {name: pa.array(column) for name, column in zip(schema.names, zip(*rows, strict=True), strict=True)}
    return spark.createDataFrame(pa.table(values), schema)


def arrow_rows(spark: SparkSession, rows: pa.Table, columns: str) -> DataFrame:
    """Return a frame of the rows of an Arrow table, in one piece, with columns by Spark's DDL."""
    if not rows.num_rows:
        return no_rows(spark, columns)
    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    return spark.createDataFrame(rows.select(schema.names).combine_chunks(), schema)

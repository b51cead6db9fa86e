"""Frames of a few rows equal those that PySpark makes from a list, and need no Python process."""

from __future__ import annotations

import datetime
from decimal import Decimal

from pyspark.sql import DataFrame

from lake_assets import Lake
from lake_assets.lake.rows_in_memory import no_rows, rows_in_memory

COLUMNS = (
    "id INT, `a b` STRING, at TIMESTAMP, wall TIMESTAMP_NTZ, price DECIMAL(20,3), none BIGINT, bytes BINARY, day DATE, "
    "many ARRAY<INT>, real DOUBLE, flag BOOLEAN"
)
AT = datetime.datetime(2020, 3, 29, 1, 30, 0, 123456, datetime.UTC)
ROWS = [
    (
        1, "it's", AT, AT.replace(tzinfo=None), Decimal("1.20"), None, b"\x00x", datetime.date(1, 1, 1),
        [1, None], float("inf"), True,
    ),
    (None,) * 11,
    (-(2**31), "", None, None, Decimal("-99999999999999999.999"), None, b"", datetime.date(9999, 12, 31), [], -0.0, False),
]  # fmt: skip


def test_rows_equal_those_made_from_a_list(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    made, expected = rows_in_memory(spark, ROWS, COLUMNS), spark.createDataFrame(ROWS, COLUMNS)
    assert made.schema == expected.schema
    # As text: the sign of a zero counts.
    assert list(map(str, made.collect())) == list(map(str, expected.collect()))


def test_no_rows_have_the_columns_and_are_removed_from_plans(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    columns = f"{COLUMNS}, m MAP<STRING, STRUCT<x: INT>>, v VARIANT, long INTERVAL DAY TO SECOND"
    for empty in (no_rows(spark, columns), rows_in_memory(spark, [], columns)):
        assert empty.schema == spark.createDataFrame([], columns).schema
        assert empty.collect() == []
    some = rows_in_memory(spark, ROWS, COLUMNS)
    assert "Union" not in _plan(some.unionByName(no_rows(spark, COLUMNS)))
    assert "Join" not in _plan(some.join(no_rows(spark, "id INT"), "id"))


def _plan(rows: DataFrame) -> str:
    return rows._jdf.queryExecution().optimizedPlan().toString()  # pyright: ignore

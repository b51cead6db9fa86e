"""Columns of a Python model's inputs at fixed snapshots: whose names they have, then and now."""

from __future__ import annotations

from pyiceberg.schema import Schema, index_by_name
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.models.steps.model_sources import schema_at
from lake_assets.tables.pending_windows import Window


def rows_at(lake: LakeBase, name: TableId, snapshot: int | None) -> DataFrame:
    """Return the rows of a table at a snapshot, with the columns that it had then; None: no rows.

    Iceberg binds conditions over a past snapshot to the current columns: a condition on a column that was renamed since
    fails, and one on a name that belongs to another column since skips the wrong files. Spark does not push conditions
    on such columns down, since they are no plain columns here.
    """
    spark, source = lake.spark(), lake.sql_name(name)
    if snapshot is None:
        return spark.table(source).limit(0)
    rows = spark.read.option("versionAsOf", str(snapshot)).table(source)
    table = lake.table(name)
    then, now = (
        {f.name: index_by_name(Schema(f)) for f in schema.fields}
        for schema in (schema_at(table, snapshot), table.schema())
    )
    if all(now.get(name) == fields for name, fields in then.items()):
        return rows
    quoted = {name: quote(name) for name in then}
    return rows.selectExpr(
        *(c if now.get(name) == then[name] else f"element_at(array({c}), 1) AS {c}" for name, c in quoted.items())
    )


def replaced_columns(table: Table, window: Window) -> list[str]:
    """Return the columns whose names belonged to other columns at the start of a window (dropped and added again, or
    swapped): their values have changed in rows that have not.
    """
    if window.start is None or window.head.snapshot is None:
        return []
    then, now = (index_by_name(schema_at(table, s)) for s in (window.start, window.head.snapshot))
    return sorted(name for name, field in then.items() if now.get(name, field) != field)

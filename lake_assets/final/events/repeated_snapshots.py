"""Rows that a later snapshot of the source no longer held: they were deleted while no change was recorded."""

from __future__ import annotations

from pyspark.sql import functions as F

from lake_assets.final.added_columns import CURRENT, DELETED
from lake_assets.final.target import Target
from lake_assets.formats.event_model import OP, POSITION, TRUNCATE
from lake_assets.ingest.staging import exactness
from lake_assets.lake import quote
from lake_assets.tables.writing.table_ddl import set_properties

# Table property: position of the first record of the last snapshot that the table was compared with.
_COMPARED_PROPERTY = "lake-assets.compared-snapshot"


def reason_to_restart(target: Target) -> exactness.Reason | None:
    """Compare the table with a new snapshot of the source, once; None if there is none, or it holds all rows."""
    lake, spec = target.lake, target.spec
    start = next((r.count for r in exactness.stored_in(lake.table(spec.staging)) if r.kind == "snapshot"), None)
    table = lake.find(spec.table)
    if start is None or table is None:
        return None
    if not target.is_new and int(table.properties.get(_COMPARED_PROPERTY, "-1")) >= start:
        return None
    rows = _rows_without_event(target, start)
    set_properties(lake, spec.table, {_COMPARED_PROPERTY: str(start)})
    return exactness.read_again(start, rows) if rows is None or rows else None


def _rows_without_event(target: Target, start: int) -> int | None:
    """Count the rows that no event since a record of the raw table is about; None if rows are no rows of the source."""
    if target.mode == "append" or target.spec.by_row:
        return None
    spark, lake = target.lake.spark(), target.lake
    keys = zip(target.key, target.source_key, strict=True)
    recent = (
        spark.table(lake.sql_name(target.spec.staging))
        .where((F.col(POSITION) >= start) & (F.col(OP) != TRUNCATE))
        .selectExpr(*(f"{target.projection.source[source][1]} AS {quote(key)}" for key, source in keys))
    )
    rows = spark.table(lake.sql_name(target.spec.table))
    if CURRENT in target.own:
        rows = rows.where(CURRENT)
    if DELETED in target.own:
        rows = rows.where(f"NOT {DELETED}")
    return rows.join(recent, list(target.key), "left_anti").count()

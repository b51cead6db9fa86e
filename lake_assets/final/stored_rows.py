"""Rows of a final table: reading those of some keys, merging changes, replacing all."""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.final.added_columns import FROM
from lake_assets.final.declaration import DECLARATION_PROPERTY, GENERATION
from lake_assets.final.events.key_changes import BASE_POSITION
from lake_assets.final.events.staging_projection import PARTIAL, TECHNICAL
from lake_assets.final.events.window_stats import Batch
from lake_assets.final.final_ddl import partitioned_by, sort_files
from lake_assets.final.target import Target
from lake_assets.formats.event_model import (
    ARRIVED_AT,
    EVENT_TIME,
    INDEX,
    OP,
    POSITION,
    SEQUENCE,
    UNAVAILABLE,
)
from lake_assets.lake import quote
from lake_assets.lake.names import literal
from lake_assets.tables.commits import committing, writing
from lake_assets.tables.merge_pruning import Pruning, prune
from lake_assets.tables.row_differences import incomparable, write_differences
from lake_assets.tables.spark_frames import new_name, over, temp_view
from lake_assets.tables.spark_tuning import tuned_for
from lake_assets.tables.table_ddl import (
    KEY_PROPERTY,
    columns_of,
    key_in,
    set_properties,
)


def stored_rows(target: Target, keys: DataFrame | None, branch: str | None = None) -> DataFrame:
    """The table's rows with these keys (None: all); only the files that can hold them are read.

    Args:
        keys: key columns.
        branch: SQL name of a branch to read instead of main.
    """
    lake, name = target.lake, branch or target.lake.sql_name(target.spec.table)
    if target.is_new:
        return lake.spark().createDataFrame([], ", ".join(f"{quote(c)} {t}" for c, t in target.all_types.items()))
    if keys is None:
        return lake.spark().table(name)
    pruning = prune_by(target, keys)
    sql = f"SELECT * FROM {name} t" + (f" WHERE {pruning.condition}" if pruning.condition else "")
    rows = lake.spark().sql(sql, args=pruning.values) if pruning.values else lake.spark().sql(sql)
    return rows.join(keys, list(target.key), "left_semi")


def prune_by(target: Target, keys: DataFrame, at_most: int | None = None) -> Pruning:
    """What tells the table's rows with these keys from most others; `at_most`: how many keys there can be."""
    types = target.types
    cast = keys.selectExpr(*(f"CAST({quote(k)} AS {types[k]}) AS {quote(k)}" for k in target.key))
    return prune(cast, target.key, target.lake.table(target.spec.table), at_most=at_most, types=types)


def as_events(target: Target, rows: DataFrame, op: str, index: int | Column = 0, at: Column | None = None) -> DataFrame:
    """Rows of the table as events before all others."""
    technical = {
        OP: F.lit(op),
        SEQUENCE: F.lit(""),
        POSITION: F.lit(BASE_POSITION).cast("bigint"),
        INDEX: (F.lit(index) if isinstance(index, int) else index).cast("int"),
        UNAVAILABLE: F.lit(None).cast("array<string>"),
        EVENT_TIME: (F.lit(None) if at is None else at).cast("timestamp"),
        ARRIVED_AT: F.lit(None).cast("timestamp"),
    }
    columns = (F.expr(f"CAST({quote(c)} AS {kind}) AS {quote(c)}") for c, kind in target.types_of_items.items())
    return rows.select(*columns, *(technical[c].alias(c) for c in TECHNICAL), F.lit(False).alias(PARTIAL))


def merge_rows(
    target: Target, rows: DataFrame, on: str, clauses: list[str], pruning: Pruning | None, batch: Batch
) -> None:
    """MERGE `rows` as `s` into the table `t`, reading no more of it than `pruning` says."""
    condition, values = (pruning.condition, pruning.values) if pruning else ("", {})
    condition = f"{on} AND {condition}" if condition else on
    spark, lake, table = target.lake.spark(), target.lake, target.spec.table
    fit, source = tuned_for(lake, (target.spec.staging, table)), new_name()
    with fit, writing(lake, table, batch.marks, batch.base, target.gate) as name:
        sql = f"MERGE INTO {name} t USING {source} s ON {condition} {' '.join(clauses)}"
        over(spark, sql, {source: rows}, values)


def replace_rows(target: Target, rows: DataFrame, batch: Batch) -> str:
    """Make the table of these rows and no others, in one commit: readers see the old one or the new one.

    Where it was made by the same declaration, only rows that differ are written.

    Returns:
        What was written.
    """
    lake, spec, types, marks = target.lake, target.spec, target.all_types, batch.marks
    rows = rows.selectExpr(*(f"CAST({quote(c)} AS {kind}) AS {quote(c)}" for c, kind in types.items()))
    key = (*target.key, FROM) if target.mode == "scd2" else target.key if target.mode == "scd1" else ()
    if _is_made_alike(target, batch) and write_differences(
        lake, spec.table, rows, types, key, marks, batch.base, target.gate
    ):
        # Killed before this, the next step does it all again, and finds no row that differs.
        set_properties(lake, spec.table, {DECLARATION_PROPERTY: json.dumps(target.declared), **spec.properties})
        return "rows that differ are written"
    if target.gate.is_blocking:
        rows = target.gate.audit_rows(rows)
    properties = {
        DECLARATION_PROPERTY: json.dumps(target.declared),
        KEY_PROPERTY: json.dumps(list(target.key)),
        **spec.properties,
    }
    said = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
    with temp_view(rows) as view, committing(lake.spark(), spec.table, marks):
        lake.spark().sql(
            f"CREATE OR REPLACE TABLE {lake.sql_name(spec.table)} USING iceberg {partitioned_by(target)} "
            f"TBLPROPERTIES ({said}) AS SELECT * FROM {view}"
        )
    sort_files(target)
    return "all rows are written"


def _is_made_alike(target: Target, batch: Batch) -> bool:
    """Whether the table was made by the declaration of now, and rows can be compared with those that it has."""
    table = target.lake.find(target.spec.table)
    if table is None or table.metadata.current_snapshot_id is None or not batch.base:
        return False
    made = json.loads(table.properties.get(DECLARATION_PROPERTY, "{}"))
    if made | {GENERATION: 0} != target.declared | {GENERATION: 0} or key_in(table) != target.key:
        return False
    return list(columns_of(target.lake, target.spec.table).items()) == list(
        target.all_types.items()
    ) and not incomparable(target.all_types)

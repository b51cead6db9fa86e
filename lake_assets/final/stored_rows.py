"""Rows of a final table: read the rows of some keys, merge changes, replace all rows."""

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
from lake_assets.lake.rows_in_memory import no_rows
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
    """Return the table's rows with these keys (None: all rows), reading only files that can contain them.

    Args:
        keys: key columns.
        branch: SQL name of a branch to read instead of main.
    """
    lake, name = target.lake, branch or target.lake.sql_name(target.spec.table)
    if target.is_new:
        return no_rows(lake.spark(), ", ".join(f"{quote(c)} {t}" for c, t in target.all_types.items()))
    if keys is None:
        return lake.spark().table(name)
    pruning = prune_by(target, keys)
    sql = f"SELECT * FROM {name} t" + (f" WHERE {pruning.condition}" if pruning.condition else "")
    return over(lake.spark(), sql, {}, pruning.values).join(keys, list(target.key), "left_semi")


def prune_by(target: Target, keys: DataFrame, at_most: int | None = None) -> Pruning:
    """Return conditions that most rows of the table with other keys do not meet.

    Args:
        target: the table.
        keys: key columns.
        at_most: the greatest possible number of keys; None: unknown.
    """
    types = target.types
    cast = keys.selectExpr(*(f"CAST({quote(k)} AS {types[k]}) AS {quote(k)}" for k in target.key))
    return prune(cast, target.key, target.lake.table(target.spec.table), at_most=at_most, types=types)


def as_events(target: Target, rows: DataFrame, op: str, index: int | Column = 0, at: Column | None = None) -> DataFrame:
    """Return rows of the table as events that precede all events of staging."""
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
    """MERGE `rows` as `s` into the table `t`, reading only the rows of `t` that `pruning` cannot rule out."""
    condition, values = (pruning.condition, pruning.values) if pruning else ("", {})
    condition = f"{on} AND {condition}" if condition else on
    spark, lake, table = target.lake.spark(), target.lake, target.spec.table
    fit, source = tuned_for(lake, (target.spec.staging, table)), new_name()
    with fit, writing(lake, table, batch.marks, batch.base, target.gate) as name:
        sql = f"MERGE INTO {name} t USING {source} s ON {condition} {' '.join(clauses)}"
        over(spark, sql, {source: rows}, values)


def replace_rows(target: Target, rows: DataFrame, batch: Batch) -> str:
    """Replace all rows of the table in one commit: readers see the old table or the new one.

    If the table was built with the same declaration, only rows that differ are written.

    Returns:
        Which rows were written, as text for the outcome.
    """
    lake, spec, types, marks = target.lake, target.spec, target.all_types, batch.marks
    rows = rows.selectExpr(*(f"CAST({quote(c)} AS {kind}) AS {quote(c)}" for c, kind in types.items()))
    key = (*target.key, FROM) if target.mode == "scd2" else target.key if target.mode == "scd1" else ()
    if _has_same_declaration(target, batch) and write_differences(
        lake, spec.table, rows, types, key, marks, batch.base, target.gate
    ):
        # If the step is killed before this, the next step repeats it and finds no row that differs.
        set_properties(lake, spec.table, {DECLARATION_PROPERTY: json.dumps(target.declared), **spec.properties})
        return "rows that differ are written"
    if target.gate.is_blocking:
        rows = target.gate.audit_rows(rows)
    properties = {
        DECLARATION_PROPERTY: json.dumps(target.declared),
        KEY_PROPERTY: json.dumps(list(target.key)),
        **spec.properties,
    }
    options = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
    with temp_view(rows) as view, committing(lake.spark(), spec.table, marks):
        lake.spark().sql(
            f"CREATE OR REPLACE TABLE {lake.sql_name(spec.table)} USING iceberg {partitioned_by(target)} "
            f"TBLPROPERTIES ({options}) AS SELECT * FROM {view}"
        )
    sort_files(target)
    return "all rows are written"


def _has_same_declaration(target: Target, batch: Batch) -> bool:
    """Whether the table was built with the current declaration and its rows can be compared with new ones."""
    table = target.lake.find(target.spec.table)
    if table is None or table.metadata.current_snapshot_id is None or not batch.base:
        return False
    stored = json.loads(table.properties.get(DECLARATION_PROPERTY, "{}"))
    if stored | {GENERATION: 0} != target.declared | {GENERATION: 0} or key_in(table) != target.key:
        return False
    return list(columns_of(target.lake, target.spec.table).items()) == list(
        target.all_types.items()
    ) and not incomparable(target.all_types)

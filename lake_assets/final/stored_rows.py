"""Rows of a final table: read the rows of some keys, merge changes, replace all rows."""

from __future__ import annotations

import json

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.final.added_columns import FROM
from lake_assets.final.declaration import GENERATION
from lake_assets.final.events.key_changes import BASE_POSITION
from lake_assets.final.events.window_stats import Batch
from lake_assets.final.final_ddl import partitioned_by
from lake_assets.final.staging_projection import PARTIAL, TECHNICAL
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
from lake_assets.lake.rows_in_memory import no_rows
from lake_assets.tables.merge_pruning import Pruning, prune
from lake_assets.tables.spark_frames import over
from lake_assets.tables.spark_tuning import tuned_for
from lake_assets.tables.writing.table_ddl import key_in
from lake_assets.tables.writing.table_state import DECLARATION_PROPERTY, KEY_PROPERTY


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
    with tuned_for(target.lake, (target.spec.staging, target.spec.table)):
        batch.writer.merge(rows, on, clauses, pruning)


def replace_rows(target: Target, rows: DataFrame, batch: Batch) -> str:
    """Replace all rows of the table in one commit: readers see the old table or the new one.

    If the table was built with the same declaration, only rows that differ are written.

    Returns:
        Which rows were written, as text for the outcome.
    """
    spec, types, before = target.spec, target.all_types, batch.writer.before
    rows = rows.selectExpr(*(f"CAST({quote(c)} AS {kind}) AS {quote(c)}" for c, kind in types.items()))
    key = (*target.key, FROM) if target.mode == "scd2" else target.key if target.mode == "scd1" else ()
    is_replaced = batch.writer.all_rows(
        rows,
        key,
        {KEY_PROPERTY: json.dumps(list(target.key))},
        {DECLARATION_PROPERTY: json.dumps(target.declared), **spec.properties},
        sort_by=spec.sort_by,
        partitioned_by=partitioned_by(spec),
        is_same=before is not None and _has_same_declaration(target, before),
    )
    return "all rows are written" if is_replaced else "rows that differ are written"


def _has_same_declaration(target: Target, table: Table) -> bool:
    """Whether the table was built with the current declaration, whatever staging has reread since."""
    stored = json.loads(table.properties.get(DECLARATION_PROPERTY, "{}"))
    return stored | {GENERATION: 0} == target.declared | {GENERATION: 0} and key_in(table) == target.key

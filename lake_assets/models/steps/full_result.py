"""Compute a model in full: create its table, replace its rows, or write the rows that differ."""

from __future__ import annotations

import json
import logging

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import KeyMissingError, ModelError
from lake_assets.lake import quote
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.names import is_of_iceberg, literal
from lake_assets.models.model_spec import FINGERPRINT_PROPERTY, declared
from lake_assets.models.steps.model_context import Done, ModelContext
from lake_assets.tables.commits import committing
from lake_assets.tables.row_differences import incomparable, write_differences
from lake_assets.tables.table_ddl import DEFAULT_PROPERTIES, KEY_PROPERTY, set_properties

log = logging.getLogger(__name__)


def make_table(ctx: ModelContext, *, is_new: bool) -> None:
    """Compute everything and create or replace the table, in one commit.

    If the table was built from the same definition and has the same columns, only rows that differ are written.

    Args:
        ctx: the run.
        is_new: whether there was no table when the run began.

    Raises:
        ConcurrentWriteError: the table is new, and another run created it first. Replacing that one would take the
            history from whatever has read it.
    """
    partitioned = ""
    if by := ctx.spec.partitions:
        by.check(ctx.spec.table, {f.name: f.dataType.simpleString() for f in ctx.query.schema.fields})
        partitioned = f"PARTITIONED BY ({by.field.sql}) "
    _check_columns(ctx)
    if ctx.spec.key:
        _check_key(ctx, ctx.query)
    properties = {
        **DEFAULT_PROPERTIES,
        PIPELINE_PROPERTY: ctx.spec.pipeline,
        KEY_PROPERTY: json.dumps(list(ctx.plan.key)),
        FINGERPRINT_PROPERTY: ctx.definition,
        **declared(ctx.spec),
        **ctx.spec.properties,
    }
    listed = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
    if _has_same_definition(ctx) and _write_differences(ctx):
        set_properties(ctx.lake, ctx.spec.table, {**declared(ctx.spec), **ctx.spec.properties})
        return
    name = ctx.lake.sql_name(ctx.spec.table)
    ctx.lake.ensure_namespace(ctx.spec.table.namespace)
    rows = ctx.gate.audit_rows(ctx.query) if ctx.gate.is_blocking else ctx.query
    view = ctx.frames.view(rows)
    create = "CREATE" if is_new else "CREATE OR REPLACE"
    with committing(ctx.frames.spark, ctx.spec.table, ctx.marks, ctx.commit_properties("full")):
        ctx.frames.spark.sql(
            f"{create} TABLE {name} USING iceberg {partitioned}TBLPROPERTIES ({listed}) AS SELECT * FROM {view}"
        )


def _write_differences(ctx: ModelContext) -> bool:
    table, types, key = ctx.spec.table, ctx.types, ctx.plan.key
    ctx.gate.check(types)
    return write_differences(
        ctx.lake, table, ctx.query, types, key, ctx.marks, ctx.base, ctx.gate, ctx.commit_properties("full")
    )


def _has_same_definition(ctx: ModelContext) -> bool:
    """Whether the table was built from the current definition, and its rows can be compared with the new ones."""
    table = ctx.lake.find(ctx.spec.table)
    if table is None or table.metadata.current_snapshot_id is None or not ctx.base:
        return False
    stored = {p: table.properties.get(p) for p in (FINGERPRINT_PROPERTY, KEY_PROPERTY)}
    if stored != {FINGERPRINT_PROPERTY: ctx.definition, KEY_PROPERTY: json.dumps(list(ctx.plan.key))}:
        return False
    return not ctx.columns_differ() and not incomparable(ctx.types)


def full(ctx: ModelContext, why: str) -> Done:
    """Compute everything and replace all rows."""
    if ctx.spec.key:
        _check_key(ctx, ctx.query)
    ctx.writer("full").overwrite(ctx.query)
    return Done("full", why)


def _check_columns(ctx: ModelContext) -> None:
    """Raise ModelError for columns that a table cannot have."""
    if reserved := [f.name for f in ctx.query.schema.fields if is_of_iceberg(f.name)]:
        raise ModelError(
            f"model {ctx.spec.table}: {', '.join(reserved)}: Iceberg has columns of this name itself: rename them"
        )
    columns = [f.name for f in ctx.query.schema.fields if "variant" in f.dataType.simpleString()]
    if columns:
        raise ModelError(
            f"model {ctx.spec.table}: {', '.join(columns)}: of type VARIANT, which tables of the lake cannot store: "
            "use to_json(...), or CAST the column to the type of its values"
        )


def _check_key(ctx: ModelContext, rows: DataFrame) -> None:
    key = list(ctx.spec.key)
    counted = rows.groupBy(*map(quote, key)).agg(F.count("*").alias("__lake_rows"))
    if duplicate := counted.where("__lake_rows > 1").first():
        *values, copies = duplicate
        raise KeyMissingError(
            f"{ctx.spec.table}: {', '.join(key)} is declared as its key, and the query gives {copies} "
            f"rows for {tuple(values)}: declare a key that identifies each row, or none"
        )


def full_for_lost_rows(ctx: ModelContext, why: str) -> Done:
    """Compute everything because rows that a change replaces are missing in the table."""
    log.warning("%s: computed in full: %s", ctx.spec.table, why)
    return full(ctx, why)

"""Compute a model in full: create its table, replace its rows, or write the rows that differ."""

from __future__ import annotations

import logging

from lake_assets.errors import ModelError
from lake_assets.lake.names import is_of_iceberg
from lake_assets.models.model_spec import declared
from lake_assets.models.steps.model_context import ModelContext
from lake_assets.models.steps.model_step import StepResult
from lake_assets.tables.writing.table_ddl import definition_of
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY

log = logging.getLogger(__name__)


def make_table(ctx: ModelContext) -> None:
    """Compute everything and create or replace the table, in one commit.

    If the table was built from the same definition and has the same columns, only rows that differ are written.

    Raises:
        ConcurrentWriteError: another run has changed the table, or created it first.
    """
    partitioned, spec = "", ctx.spec
    kinds = {f.name: f.dataType.simpleString() for f in ctx.query.schema.fields}
    if by := spec.partitions:
        by.check(spec.table, kinds)
        partitioned = by.field.sql
    _check_columns(ctx)
    writer = ctx.writer("full")
    if spec.key:
        writer.check_key(ctx.query, spec.key)
    definition = definition_of(spec.pipeline, ctx.plan.key, {FINGERPRINT_PROPERTY: ctx.definition})
    writer.all_rows(
        ctx.query, ctx.plan.key, definition, {**declared(spec), **spec.properties}, partitioned_by=partitioned
    )


def full(ctx: ModelContext, why: str) -> StepResult:
    """Compute everything and replace all rows."""
    writer = ctx.writer("full")
    if ctx.spec.key:
        writer.check_key(ctx.query, ctx.spec.key)
    writer.overwrite(ctx.query)
    return StepResult("full", why)


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


def full_for_lost_rows(ctx: ModelContext, why: str) -> StepResult:
    """Compute everything because rows that a change replaces are missing in the table."""
    log.warning("%s: computed in full: %s", ctx.spec.table, why)
    return full(ctx, why)

"""Write a query's table: all rows, the rows that differ, the rows of touched keys, or inserted and deleted rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark.sql import DataFrame

from lake_assets.errors import ModelError
from lake_assets.lake import quote, thresholds
from lake_assets.lake.foreign_errors import is_unreadable
from lake_assets.lake.names import is_of_iceberg
from lake_assets.models.model_spec import declared
from lake_assets.models.operators.kept_frames import Frame, types_of
from lake_assets.models.operators.operator_rows import KeyFilter
from lake_assets.models.operators.query_tree import Tree
from lake_assets.models.steps.model_context import ModelContext
from lake_assets.models.steps.model_step import StepResult
from lake_assets.tables.spark_tuning import planned_once
from lake_assets.tables.writing.row_differences import FOUND, incomparable
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
    if by := spec.partitions:
        by.check(spec.table, types_of(ctx.query))
        partitioned = by.field.sql
    _check_columns(ctx)
    writer = ctx.writer("full")
    if spec.key:
        writer.check_key(ctx.query, spec.key)
    definition = definition_of(spec.pipeline, ctx.plan.key, {FINGERPRINT_PROPERTY: spec.definition})
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
    types = types_of(ctx.query)
    if reserved := [c for c in types if is_of_iceberg(c)]:
        raise ModelError(
            f"model {ctx.spec.table}: {', '.join(reserved)}: Iceberg has columns of this name itself: rename them"
        )
    if columns := [c for c, kind in types.items() if "variant" in kind]:
        raise ModelError(
            f"model {ctx.spec.table}: {', '.join(columns)}: of type VARIANT, which tables of the lake cannot store: "
            "use to_json(...), or CAST the column to the type of its values"
        )


def full_for_lost_rows(ctx: ModelContext, why: str) -> StepResult:
    """Compute everything because rows that a change replaces are missing in the table."""
    log.warning("%s: computed in full: %s", ctx.spec.table, why)
    return full(ctx, why)


def replace_keys(
    ctx: ModelContext,
    tree: Tree,
    touched_keys: Frame,
    names: Mapping[str, str],
    more: DataFrame | None,
    strategy: str = "keys",
) -> None:
    """Replace the rows of the touched keys by recomputed ones, and write `more`.

    Args:
        names: the column of `touched_keys` for each key column of the result.
        more: further rows to write, with `FOUND`.
    """
    keys = list(names)
    key_filter = None
    if keys:
        key_filter = KeyFilter(tuple(ctx.inner(tree, k) for k in keys), tuple(names.values()), touched_keys)
    new = f"SELECT {tree.selected}, true AS {FOUND} FROM ({ctx.rows.sql(tree.root, 'end', key_filter)})"
    if keys:
        recomputed = f"({new})"
        same = " AND ".join(f"q.{quote(k)} <=> CAST(a.{quote(n)} AS {ctx.types[k]})" for k, n in names.items())
        columns = ", ".join(
            f"CAST(a.{quote(names[c])} AS {k}) AS {quote(c)}" if c in names else f"q.{quote(c)}"
            for c, k in ctx.types.items()
        )
        hint = "/*+ BROADCAST(q) */" if touched_keys.hint else ""
        new = f"SELECT {hint} {columns}, q.{FOUND} FROM {touched_keys.view} a LEFT JOIN {recomputed} q ON {same}"
    rows = ctx.frames.sql(new).select(*map(quote, ctx.types), FOUND)
    if more is not None:
        rows = rows.unionByName(more.select(*map(quote, ctx.types), FOUND))
    rows = ctx.frames.materialize(rows)
    ctx.writer(strategy).replace(rows, keys)


def write_change(ctx: ModelContext, delta: str, strategy: str, what: str) -> StepResult:
    """Write a change of the result; compute everything if rows to delete are missing in the table.

    Args:
        delta: SQL of the deleted and inserted rows, with `__sign`.
        what: what changed, for people.
    """
    writer, key = ctx.writer(strategy), ctx.plan.key
    if not key and (column := incomparable(ctx.types)):
        return full(ctx, f"rows without a key cannot be counted by column {column}")
    refused = writer.change(delta, key) if key else writer.count_copies(delta)
    return full_for_lost_rows(ctx, refused.reason) if refused else StepResult(strategy, what)


def full_by_differences(ctx: ModelContext, why: str) -> StepResult:
    """Compute everything, and write the rows that differ from the stored ones: so whatever reads the table sees only
    what changed."""
    if incomparable(ctx.types):
        return full(ctx, why)
    few = ctx.expected.rows + ctx.expected.stored <= thresholds.ONE_TASK_ROWS
    try:
        with planned_once(ctx.commit.lake, when=few, as_one=True):
            lost = ctx.writer("full", few=few, compared=True).differences(ctx.query, ctx.plan.key)
    except Exception as e:
        if not is_unreadable(e, ctx.commit.existing.location()):
            raise
        return full_for_lost_rows(ctx, "its stored rows cannot be read")
    return StepResult("full", lost or why)

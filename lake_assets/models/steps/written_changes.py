"""Write what a step computed: the rows of touched keys, or inserted and deleted rows."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from lake_assets.lake import quote
from lake_assets.lake.foreign_errors import is_unreadable
from lake_assets.models.operators.operator_rows import KeyFilter
from lake_assets.models.operators.query_tree import Tree
from lake_assets.models.steps.full_result import full, full_for_lost_rows
from lake_assets.models.steps.kept_frames import FOUND, ONE_PIECE, SIGN, Frame
from lake_assets.models.steps.model_context import Done, ModelContext
from lake_assets.tables.row_differences import incomparable
from lake_assets.tables.spark_tuning import planned_once


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
        ctx: the step.
        tree: the operators of the query.
        touched_keys: the touched keys.
        names: the column of `touched_keys` for each key column of the result.
        more: further rows to write, with `FOUND`.
        strategy: the strategy to record with the cost.
    """
    keys = list(names)
    key_filter = None
    if keys:
        key_filter = KeyFilter(tuple(ctx.inner(tree, k) for k in keys), tuple(names.values()), touched_keys)
    outputs = ", ".join(f"{quote(c)} AS {quote(o)}" for o, c in tree.outputs.items())
    new = f"SELECT {outputs}, true AS {FOUND} FROM ({ctx.rows.sql(tree.root, 'end', key_filter)})"
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


def write_change(ctx: ModelContext, delta: str, strategy: str, what: str) -> Done:
    """Write a change of the result; compute everything if rows to delete are missing in the table.

    Args:
        ctx: the step.
        delta: SQL of the deleted and inserted rows, with `__sign`.
        strategy: the strategy to record with the cost.
        what: what changed, for people.
    """
    writer, key = ctx.writer(strategy), ctx.plan.key
    if not key and (column := incomparable(ctx.types)):
        return full(ctx, f"rows without a key cannot be counted by column {column}")
    lost = writer.change(delta, key) if key else writer.count_copies(delta)
    return full_for_lost_rows(ctx, lost) if lost else Done(strategy, what)


def full_by_differences(ctx: ModelContext, why: str) -> Done:
    """Compute everything, and write the rows that differ from the stored ones: so whatever reads the table sees only
    what changed."""
    # Zeros of both signs are one key to a MERGE, but different values.
    if incomparable(ctx.types) or any(ctx.types[k] in ("float", "double") for k in ctx.plan.key):
        return full(ctx, why)
    try:
        lost = _write_differing_rows(ctx)
    except Exception as e:
        if not is_unreadable(e, ctx.table.location()):
            raise
        lost = "its stored rows cannot be read"
    return full_for_lost_rows(ctx, lost) if lost else Done("full", why)


def _write_differing_rows(ctx: ModelContext) -> str:
    """Write the rows that differ; return why they were not written, empty if they were."""
    few = ctx.expected.rows + ctx.expected.stored <= ONE_PIECE
    key, new, writer = ctx.plan.key, ctx.frames.view(ctx.query), ctx.writer("full", few=few, compared=True)
    with planned_once(ctx.lake, when=few, as_one=True):
        if not key:
            writer.differences(f"SELECT * FROM {new}")
            return ""
        columns = ", ".join(map(quote, ctx.types))
        delta = f"SELECT {columns}, 1 AS {SIGN} FROM {new} UNION ALL SELECT {columns}, -1 FROM {writer.name}"
        return writer.change(delta, key)

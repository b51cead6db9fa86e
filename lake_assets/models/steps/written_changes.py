"""Writing what a step computed: the rows of touched keys, or rows that come and go."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from lake_assets.lake import quote
from lake_assets.models.operators.operator_rows import KeyFilter
from lake_assets.models.operators.query_tree import (
    Tree,
)
from lake_assets.models.steps.full_result import full, full_for_lost_rows
from lake_assets.models.steps.kept_frames import Frame
from lake_assets.models.steps.model_context import Done, ModelContext
from lake_assets.models.steps.retract import FOUND
from lake_assets.tables.row_differences import incomparable


def replace_keys(
    ctx: ModelContext,
    tree: Tree,
    touched: Frame,
    names: Mapping[str, str],
    more: DataFrame | None,
    strategy: str = "keys",
) -> None:
    """Write the rows of the touched keys as they are now, and `more`.

    Args:
        names: by key column of the result, the one of `touched`.
    """
    keys = list(names)
    cut = None
    if keys:
        cut = KeyFilter(tuple(ctx.inner(tree, k) for k in keys), tuple(names.values()), touched)
    listed = ", ".join(f"{quote(c)} AS {quote(o)}" for o, c in tree.outputs.items())
    now = f"SELECT {listed}, true AS {FOUND} FROM ({ctx.rows.sql(tree.root, 'end', cut)})"
    if keys:
        found = f"({now})"
        same = " AND ".join(f"q.{quote(k)} <=> CAST(a.{quote(n)} AS {ctx.types[k]})" for k, n in names.items())
        picked = ", ".join(
            f"CAST(a.{quote(names[c])} AS {k}) AS {quote(c)}" if c in names else f"q.{quote(c)}"
            for c, k in ctx.types.items()
        )
        hint = "/*+ BROADCAST(q) */" if touched.hint else ""
        now = f"SELECT {hint} {picked}, q.{FOUND} FROM {touched.view} a LEFT JOIN {found} q ON {same}"
    rows = ctx.frames.sql(now).select(*map(quote, ctx.types), FOUND)
    if more is not None:
        rows = rows.unionByName(more.select(*map(quote, ctx.types), FOUND))
    rows = ctx.frames.materialize(rows)
    ctx.writer(strategy).replace(rows, keys, exclusive=more is not None)


def write_change(ctx: ModelContext, delta: str, strategy: str, what: str) -> Done:
    """Write a change of the result; everything is computed where the table does not hold what goes.

    Args:
        ctx: the step.
        delta: SQL of the rows that go and come, with `__sign`.
        strategy: what is recorded with the cost.
        what: what changed, for people.
    """
    writer, key = ctx.writer(strategy), ctx.plan.key
    if not key and (column := incomparable(ctx.types)):
        return full(ctx, f"rows without a key cannot be counted by column {column}")
    lost = writer.change(delta, key) if key else writer.count_copies(delta)
    return full_for_lost_rows(ctx, lost) if lost else Done(strategy, what)

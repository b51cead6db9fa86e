"""Write what a step computed: the rows of touched keys, or inserted and deleted rows."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from lake_assets.lake import quote, thresholds
from lake_assets.lake.foreign_errors import is_unreadable
from lake_assets.models.operators.kept_frames import Frame
from lake_assets.models.operators.operator_rows import KeyFilter
from lake_assets.models.operators.query_tree import Tree
from lake_assets.models.steps.full_result import full, full_for_lost_rows
from lake_assets.models.steps.model_context import ModelContext
from lake_assets.models.steps.model_step import StepResult
from lake_assets.tables.spark_tuning import planned_once
from lake_assets.tables.writing.row_differences import FOUND, incomparable


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


def write_change(ctx: ModelContext, delta: str, strategy: str, what: str) -> StepResult:
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
    return full_for_lost_rows(ctx, lost) if lost else StepResult(strategy, what)


def full_by_differences(ctx: ModelContext, why: str) -> StepResult:
    """Compute everything, and write the rows that differ from the stored ones: so whatever reads the table sees only
    what changed."""
    if incomparable(ctx.types):
        return full(ctx, why)
    few = ctx.expected.rows + ctx.expected.stored <= thresholds.ONE_TASK_ROWS
    try:
        with planned_once(ctx.lake, when=few, as_one=True):
            lost = ctx.writer("full", few=few, compared=True).differences(ctx.query, ctx.plan.key)
    except Exception as e:
        if not is_unreadable(e, ctx.table.location()):
            raise
        return full_for_lost_rows(ctx, "its stored rows cannot be read")
    return StepResult("full", lost or why)

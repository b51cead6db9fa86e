"""Recompute the ranges of a declared column that changed rows affect."""

from __future__ import annotations

from lake_assets.lake import quote
from lake_assets.models.operators.operator_rows import Rows
from lake_assets.models.operators.query_tree import Tree
from lake_assets.models.steps.full_result import full
from lake_assets.models.steps.model_context import ModelContext
from lake_assets.models.steps.model_step import StepResult
from lake_assets.models.steps.recomputed_ranges import touched_ranges
from lake_assets.models.steps.written_changes import write_change


def absorb_ranges(ctx: ModelContext, tree: Tree, why: str) -> StepResult:
    """Recompute the ranges of the declared column that changed rows affect, and write the rows that differ."""
    span = ctx.spec.span
    assert span is not None
    ranges = touched_ranges(tree, span, ctx.types[span.column], ctx.sources, ctx.frames)
    if isinstance(ranges, str):
        return full(ctx, ranges)
    if ranges.is_empty:
        return ctx.nothing("no range touched")
    rows = Rows(lambda scan, at: ranges.cut(scan, ctx.sources.of(scan, at)))
    outputs = ", ".join(f"{quote(c)} AS {quote(o)}" for o, c in tree.outputs.items())
    names = ", ".join(map(quote, ctx.types))
    in_ranges = ranges.condition(quote(span.column))
    new = f"SELECT {outputs} FROM ({rows.sql(tree.root, 'end')})"
    old = f"SELECT {names}, -1 AS __sign FROM {ctx.lake.sql_name(ctx.spec.table)} WHERE {in_ranges}"
    delta = f"SELECT {names}, 1 AS __sign FROM ({new}) WHERE {in_ranges} UNION ALL {old}"
    return write_change(ctx, delta, "ranges", f"{ranges}: {why}")

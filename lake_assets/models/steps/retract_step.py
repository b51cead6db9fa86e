"""Adjust the groups that a change touches, and recompute those in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from lake_assets.lake import quote, thresholds
from lake_assets.lake.counts import plural
from lake_assets.models.operators.adjustable_groups import IN_DOUBT, RECOMPUTE, Retraction
from lake_assets.models.operators.kept_frames import Frame
from lake_assets.models.operators.maintenance import is_linear
from lake_assets.models.operators.operator_deltas import Deltas, is_simple
from lake_assets.models.operators.query_tree import Tree, scans
from lake_assets.models.steps.model_context import ModelContext
from lake_assets.models.steps.model_step import StepResult
from lake_assets.models.steps.stored_result import full_for_lost_rows, replace_keys
from lake_assets.tables.spark_frames import new_name
from lake_assets.tables.spark_tuning import planned_once, size_of


def adjust_at_once(ctx: ModelContext, tree: Tree, how: Retraction) -> StepResult | None:
    """Absorb a few changed rows of one table in the query that reads them.

    Returns:
        None if the changes have to be counted or inspected first.
    """
    is_to_be_counted = ctx.expected.prefers_full and not ctx.expected.exact
    if is_to_be_counted or not is_simple(how.aggregate.input) or not _are_few(ctx, how):
        return None
    (scan,) = scans(how.aggregate.input)
    name, rows = new_name(), ctx.sources.changes(scan.table)
    if rows is None:
        return None
    deltas = Deltas(ctx.frames, ctx.rows, lambda _: Frame(name, 0, {}, rows), ctx.sources.size)
    why = "nothing changed in the rows and columns that the query reads"
    return adjust(ctx, tree, how, deltas.sql(how.aggregate.input), {name: rows}, untouched=why)


def _are_few(ctx: ModelContext, how: Retraction) -> bool:
    """Whether the table is small and few rows have changed."""
    is_small = size_of(ctx.commit.existing)[1] <= thresholds.SMALL_TARGET_ROWS
    return is_small and ctx.sources.has_few_changes() and is_linear(how.aggregate.input)


def adjust(
    ctx: ModelContext,
    tree: Tree,
    how: Retraction,
    below: str | None,
    frames: Mapping[str, DataFrame] | None = None,
    untouched: str = "no group touched",
) -> StepResult:
    """Add inserted rows to the groups and subtract deleted ones; recompute groups in doubt.

    Args:
        below: SQL of the changed rows to group; None if no row changed.
        frames: the DataFrames that `below` names.
        untouched: the reason to report if no group is touched, and only the watermarks move.
    """
    strategy = ctx.plan.strategy
    if below is None:
        return ctx.nothing("no row changed")
    keys = list(how.keys.values())
    few, name = _are_few(ctx, how), ctx.commit.name
    with planned_once(ctx.commit.lake, when=few):
        # Old values of the touched groups are looked up in the table, or joined with all of a small table.
        if not keys or size_of(ctx.commit.existing)[1] <= thresholds.SMALL_TARGET_ROWS:
            change, target, hint = f"({how.change(below)})", f"(SELECT * FROM {name})", "/*+ BROADCAST(t) */"
        else:
            measured = ctx.frames.measure(how.change(below))
            if not measured.rows:
                return ctx.nothing(untouched)
            if _is_sure(how, measured) and (done := _adjusted_by_merge(ctx, how, measured, keys)):
                return done
            change, target = measured.view, f"({_looked_up(ctx, name, measured, keys)})"
            hint = "/*+ BROADCAST(t) */" if measured.hint else ""
        result = how.result(change, target, ctx.types, hint)
        if few:
            result = f"SELECT /*+ COALESCE(1) */ * FROM ({result})"
        aggregates = ("count(*)", f"count_if({RECOMPUTE})")
        rows, (touched_count, doubtful_count) = ctx.frames.materialize_with_aggregates(
            result, *aggregates, frames=frames
        )
    rows_done = rows.where(f"NOT {RECOMPUTE}").drop(RECOMPUTE)
    if not touched_count:
        return ctx.nothing(untouched)
    if not doubtful_count:
        ctx.writer(strategy, few=few).replace(rows_done, keys, at_most=touched_count)
        return StepResult(strategy, f"{plural(touched_count, 'group')} adjusted")
    listed = ", ".join(f"{quote(k)} AS __k{i}" for i, k in enumerate(keys)) or "1 AS __k"
    doubtful_keys = ctx.frames.measure(f"SELECT {listed} FROM {ctx.frames.view(rows)} WHERE {RECOMPUTE}")
    replace_keys(ctx, tree, doubtful_keys, {k: f"__k{i}" for i, k in enumerate(keys)}, rows_done, strategy)
    return StepResult(strategy, f"{plural(touched_count, 'group')} adjusted, {doubtful_count} of them recomputed")


def _is_sure(how: Retraction, change: Frame) -> bool:
    """Whether it is unlikely that a group has to be recomputed."""
    lost = change.bounds["__gone"].high
    return bool(how.calls) and (how.is_counted or lost in (None, "0"))


def _adjusted_by_merge(ctx: ModelContext, how: Retraction, change: Frame, keys: Sequence[str]) -> StepResult | None:
    """Adjust groups in the MERGE that reads them; return None if nothing was written, as one has to be recomputed."""
    try:
        refused = ctx.writer(ctx.plan.strategy).adjust(change.frame, keys, how.clauses(ctx.types), change.rows)
    except Exception as e:
        if IN_DOUBT not in str(e):
            raise
        return None
    if refused:
        return full_for_lost_rows(ctx, refused.reason)
    return StepResult(ctx.plan.strategy, f"{plural(change.rows, 'group')} adjusted")


def _looked_up(ctx: ModelContext, view: str, change: Frame, keys: Sequence[str]) -> str:
    """Return SQL for the stored rows of the changed groups."""
    columns = tuple(ctx.typed(k) for k in keys)
    looked_up, names = change.with_positional_names(keys), [f"__k{i}" for i in range(len(keys))]
    condition, join = looked_up.condition(columns, names), looked_up.join(columns, names)
    inside = f"SELECT * FROM {view}" + (f" WHERE {condition}" if condition else "")
    return f"SELECT {change.hint} * FROM ({inside}) {join}" if join else inside

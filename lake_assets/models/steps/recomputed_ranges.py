"""Recompute the ranges of a declared column that a change affects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from lake_assets.errors import Refused
from lake_assets.lake import TableId, quote, thresholds
from lake_assets.lake.counts import plural
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.model_spec import Span
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.operator_rows import Rows, map_to_right, map_to_side, scan_sql, within
from lake_assets.models.operators.query_tree import column, equals, refs, scans, substitute, text
from lake_assets.models.steps.model_context import ModelContext
from lake_assets.models.steps.model_step import StepResult
from lake_assets.models.steps.stored_result import full, write_change

_MICROS = 1_000_000
_EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"


@dataclass(frozen=True)
class _Kind:
    """Conversion of a type's values to whole numbers and back, and the length of a second in these numbers."""

    out: str
    back: str
    second: float


_KINDS: dict[str, _Kind] = {
    "date": _Kind("unix_date({v})", "date_from_unix_date({n})", 1 / 86_400),
    "timestamp": _Kind("unix_micros({v})", "timestamp_micros({n}L)", _MICROS),
    "timestamp_ntz": _Kind(
        f"timestampdiff(MICROSECOND, {_EPOCH}, {{v}})", f"timestampadd(MICROSECOND, {{n}}L, {_EPOCH})", _MICROS
    ),
    **{k: _Kind("CAST({v} AS BIGINT)", "{n}L", 1) for k in ("tinyint", "smallint", "int", "bigint")},
}


@dataclass(frozen=True)
class Ranges:
    """Ranges of the declared column that changed rows affect.

    Attributes:
        kind: the kind of the column's type.
        intervals: first and last value of each range, inclusive; a last value of None means no upper end.
        null: whether rows without a value are affected.
        back, forward: how far beyond a range its rows read; `back` None: from the beginning.
        times: the expression for the column in each occurrence of a table, by its `id`.
    """

    kind: _Kind
    intervals: tuple[tuple[int, int | None], ...]
    null: bool
    back: int | None
    forward: int
    times: Mapping[int, exp.Expr]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is affected."""
        return not self.intervals and not self.null

    def condition(self, of: str) -> str:
        """Return a SQL condition: a value lies in one of the ranges."""
        return self._within(of, 0, 0)

    def cut(self, scan: op.Scan, view: str) -> str:
        """Return SQL for the rows of a table that the ranges are computed from."""
        time = self.times.get(id(scan))
        if time is None or self.back is None:
            return view
        of = text(substitute(time, {n: column(c) for n, c in scan.fields.items()}))
        return f"(SELECT * FROM {view} WHERE {self._within(of, self.back, self.forward)})"

    def _within(self, of: str, back: int, forward: int) -> str:
        parts = [f"{of} IS NULL"] if self.null else []
        for low, high in self.intervals:
            ends = [f"{of} >= {self.kind.back.format(n=low - back)}"]
            ends += [f"{of} <= {self.kind.back.format(n=high + forward)}"] if high is not None else []
            parts.append(f"({' AND '.join(ends)})")
        return f"({' OR '.join(parts) or 'false'})"

    def __str__(self) -> str:
        description = plural(len(self.intervals), "range")
        if self.intervals and self.intervals[-1][1] is None:
            description += ", the last without an end"
        return description + (" and rows without a value" if self.null else "")


def absorb_ranges(ctx: ModelContext, tree: op.Tree, why: str) -> StepResult:
    """Recompute the ranges of the declared column that changed rows affect, and write the rows that differ."""
    span = ctx.spec.span
    assert span is not None
    ranges = _touched(ctx, tree, span)
    if isinstance(ranges, Refused):
        return full(ctx, ranges.reason)
    if ranges.is_empty:
        return ctx.nothing("no range touched")
    rows = Rows(lambda scan, at: ranges.cut(scan, ctx.sources.of(scan, at)))
    names = ", ".join(map(quote, ctx.types))
    in_ranges = ranges.condition(quote(span.column))
    new = f"SELECT {tree.selected} FROM ({rows.sql(tree.root, 'end')})"
    old = f"SELECT {names}, -1 AS __sign FROM {ctx.commit.name} WHERE {in_ranges}"
    delta = f"SELECT {names}, 1 AS __sign FROM ({new}) WHERE {in_ranges} UNION ALL {old}"
    return write_change(ctx, delta, "ranges", f"{ranges}: {why}")


def _touched(ctx: ModelContext, tree: op.Tree, span: Span) -> Ranges | Refused:
    """Return the ranges that the changed rows of all sources affect, or a refusal if these are not known."""
    type_ = ctx.types[span.column]
    kind = _KINDS.get(type_)
    if kind is None:
        return Refused(f"{span.column} is of type {type_}: ranges are of dates, timestamps and whole numbers")
    times = column_expressions(tree, span.column)
    parts: list[str] = []
    for scan in scans(tree.root):
        feed = ctx.sources.feed(scan.table)
        if feed is None:
            continue
        if id(scan) not in times:
            return Refused(
                f"{scan.table} changed, and none of its columns corresponds to {span.column}: any row may be affected"
            )
        value = kind.out.format(v=f"CAST({text(times[id(scan)])} AS {type_})")
        parts.append(f"SELECT {value} AS v FROM ({scan_sql(scan, feed.view)})")
    back, forward = (_units(n, kind) for n in (span.back, span.forward))
    reach = None if span.cumulative else back
    if not parts:
        return Ranges(kind, (), False, reach, forward, times)
    distinct = ctx.frames.measure(f"SELECT DISTINCT v FROM ({' UNION ALL '.join(parts)})")
    bounds = distinct.bounds["v"]
    null = bounds.non_null < distinct.rows
    if null and span.cumulative:
        return Refused(f"a row without {span.column} changed: it may come before all others")
    if bounds.low is None or bounds.high is None:
        return Ranges(kind, (), null, reach, forward, times)
    low, high = int(bounds.low), int(bounds.high)
    if span.cumulative:
        return Ranges(kind, ((low - forward, None),), null, None, forward, times)
    intervals = [(low - forward, high + back)]
    if distinct.rows <= thresholds.RANGE_VALUES:
        values = sorted(r["v"] for r in distinct.frame.where("v IS NOT NULL").collect())
        separate = merged([(v - forward, v + back) for v in values])
        intervals = separate if len(separate) <= thresholds.SEPARATE_RANGES else intervals
    return Ranges(kind, tuple(intervals), null, back, forward, times)


def merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return intervals of whole numbers in order, with overlapping and adjacent ones merged."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out


def _units(seconds: float, kind: _Kind) -> int:
    return math.ceil(seconds * kind.second)


def column_expressions(tree: op.Tree, output: str) -> dict[int, exp.Expr]:
    """Return the expression for a column of the result in each occurrence of a table, by its `id`; occurrences without
    one are left out."""
    times: dict[int, exp.Expr] = {}

    def down(node: op.Node, e: exp.Expr | None) -> None:
        if e is None or not refs(e):
            return
        match node:
            case op.Scan():
                times[id(node)] = e
            case op.Unit():
                pass
            case op.Project():
                down(node.input, substitute(e, dict(node.items)))
            case op.Filter() | op.Distinct():
                down(node.input, e)
            case op.Generate() | op.Window():
                down(node.input, within(node.input.columns)(e))
            case op.Aggregate():
                by = dict(node.keys)
                down(node.input, substitute(e, by) if refs(e) <= set(by) else None)
            case op.InnerJoin():
                for side in node.inputs:
                    down(side, map_to_side(node.on, side, node)(e))
            case op.SideJoin():
                down(node.left, within(node.left.columns)(e))
                down(node.right, map_to_right(node)(e))
            case op.FullJoin():
                _full(node, e, down)
            case op.UnionAll() | op.SetOp():
                for side in node.inputs:
                    down(side, e)

    down(tree.root, column(tree.outputs[output]))
    return times


def _full(node: op.FullJoin, e: exp.Expr, down: Callable[[op.Node, exp.Expr | None], None]) -> None:
    for x, y in equals(node.on, node.left.columns, node.right.columns):
        both = (exp.Coalesce(this=a, expressions=[b]).sql(DIALECT) for a, b in ((x, y), (y, x)))
        if text(e) in both:
            down(node.left, x)
            down(node.right, y)


def tables_without_column(tree: op.Tree, output: str) -> list[TableId]:
    """Return the tables with an occurrence that has no expression for a column of the result."""
    times = column_expressions(tree, output)
    return list(dict.fromkeys(s.table for s in scans(tree.root) if id(s) not in times))

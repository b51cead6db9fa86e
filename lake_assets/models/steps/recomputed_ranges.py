"""Models that are recomputed in ranges of a column: which ranges a change reaches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from lake_assets.lake import TableId
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.model_spec import Span
from lake_assets.models.operators.operator_rows import followed, over_there, scan_sql, within
from lake_assets.models.operators.query_tree import (
    Aggregate,
    Distinct,
    Filter,
    FullJoin,
    Generate,
    InnerJoin,
    Node,
    Project,
    Scan,
    SetOp,
    SideJoin,
    Tree,
    UnionAll,
    Window,
    column,
    equals,
    refs,
    scans,
    substitute,
    text,
)
from lake_assets.models.steps.kept_frames import Frames
from lake_assets.models.steps.model_sources import Sources

# So many separate ranges are recomputed one by one; of more, all that lies between.
MOST_RANGES = 100
_MICROS = 1_000_000
_EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"


@dataclass(frozen=True)
class _Kind:
    """How values of a type become whole numbers and come back, and how many of them a second is."""

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
    """Ranges of the result's column that changed rows reach.

    Attributes:
        kind: of the column's values.
        intervals: first and last; the last is None where there is no end.
        null: whether rows without a value are reached.
        back, forward: how far beyond a range its rows are computed of; None: from the beginning.
        times: by occurrence of a table, what stands for the column there.
    """

    kind: _Kind
    intervals: tuple[tuple[int, int | None], ...]
    null: bool
    back: int | None
    forward: int
    times: Mapping[int, exp.Expr]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is reached."""
        return not self.intervals and not self.null

    def condition(self, of: str) -> str:
        """SQL: a value lies in one of them."""
        return self._within(of, 0, 0)

    def cut(self, scan: Scan, view: str) -> str:
        """A table without rows that none of the ranges is computed of."""
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
        said = f"{len(self.intervals)} range{'s' if len(self.intervals) != 1 else ''}"
        if self.intervals and self.intervals[-1][1] is None:
            said += ", the last without an end"
        return said + (" and rows without a value" if self.null else "")


def touched_ranges(tree: Tree, span: Span, type_: str, sources: Sources, frames: Frames) -> Ranges | str:
    """The ranges that the changed rows of all sources reach, or why everything is recomputed.

    Args:
        tree: the compiled query.
        span: what is declared.
        type_: Spark's type of the column.
        sources: with the changes.
        frames: keeps what is computed.
    """
    kind = _KINDS.get(type_)
    if kind is None:
        return f"{span.column} is of type {type_}: ranges are of dates, timestamps and whole numbers"
    times = followed_times(tree, span.column)
    parts: list[str] = []
    for scan in scans(tree.root):
        feed = sources.feed(scan.table)
        if feed is None:
            continue
        if id(scan) not in times:
            return f"{scan.table} changed, and none of its columns stands for {span.column}: any row may be touched"
        value = kind.out.format(v=f"CAST({text(times[id(scan)])} AS {type_})")
        parts.append(f"SELECT {value} AS v FROM ({scan_sql(scan, feed.view)})")
    back, forward = (_units(n, kind) for n in (span.back, span.forward))
    reach = None if span.cumulative else back
    if not parts:
        return Ranges(kind, (), False, reach, forward, times)
    found = frames.measure(f"SELECT DISTINCT v FROM ({' UNION ALL '.join(parts)})")
    bounds = found.bounds["v"]
    null = bounds.non_null < found.rows
    if null and span.cumulative:
        return f"a row without {span.column} changed: it may come before all others"
    if bounds.low is None or bounds.high is None:
        return Ranges(kind, (), null, reach, forward, times)
    low, high = int(bounds.low), int(bounds.high)
    if span.cumulative:
        return Ranges(kind, ((low - forward, None),), null, None, forward, times)
    intervals = [(low - forward, high + back)]
    if found.rows <= 100 * MOST_RANGES:
        values = sorted(r["v"] for r in found.frame.where("v IS NOT NULL").collect())
        apart = merged([(v - forward, v + back) for v in values])
        intervals = apart if len(apart) <= MOST_RANGES else intervals
    return Ranges(kind, tuple(intervals), null, back, forward, times)


def merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals of whole numbers, in order, those that meet made one."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out


def _units(seconds: float, kind: _Kind) -> int:
    return math.ceil(seconds * kind.second)


def followed_times(tree: Tree, output: str) -> dict[int, exp.Expr]:
    """What stands for a column of the result in the occurrences of tables, by their `id`; some may have nothing."""
    found: dict[int, exp.Expr] = {}

    def down(node: Node, e: exp.Expr | None) -> None:
        if e is None or not refs(e):
            return
        match node:
            case Scan():
                found[id(node)] = e
            case Project():
                down(node.input, substitute(e, dict(node.items)))
            case Filter() | Distinct():
                down(node.input, e)
            case Generate() | Window():
                down(node.input, within(node.input.columns)(e))
            case Aggregate():
                by = dict(node.keys)
                down(node.input, substitute(e, by) if refs(e) <= set(by) else None)
            case InnerJoin():
                for side in node.inputs:
                    down(side, followed(node.on, side, node)(e))
            case SideJoin():
                down(node.left, within(node.left.columns)(e))
                down(node.right, over_there(node)(e))
            case FullJoin():
                _full(node, e, down)
            case UnionAll() | SetOp():
                for side in node.inputs:
                    down(side, e)

    down(tree.root, column(tree.outputs[output]))
    return found


def _full(node: FullJoin, e: exp.Expr, down: Callable[[Node, exp.Expr | None], None]) -> None:
    for x, y in equals(node.on, node.left.columns, node.right.columns):
        both = (exp.Coalesce(this=a, expressions=[b]).sql(DIALECT) for a, b in ((x, y), (y, x)))
        if text(e) in both:
            down(node.left, x)
            down(node.right, y)


def untraced(tree: Tree, output: str) -> list[TableId]:
    """Tables with an occurrence in which nothing stands for a column of the result."""
    times = followed_times(tree, output)
    return list(dict.fromkeys(s.table for s in scans(tree.root) if id(s) not in times))

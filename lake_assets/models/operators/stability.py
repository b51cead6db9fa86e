"""Which values and rows of a query may come out otherwise when it is computed again over the same rows.

Spark adds floating-point numbers, and reads rows, in whatever order tasks end and files lie. A compaction changes
that order and no row, so a value that depends on it cannot be used to find the row that was stored with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from sqlglot import exp

from lake_assets.models.operators.operator_types import number
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
    UnionAll,
    Window,
    refs,
    text,
)
from lake_assets.models.operators.unique_columns import determined, tells_apart


class Level(IntEnum):
    """How much a value may differ between two computations."""

    ROUNDED = 1
    """By the order of addition: whichever value a row has, it is right for that row, whatever other rows have."""
    ARBITRARY = 2
    """By the order of rows: only right together with the values that the same computation gave other rows."""


@dataclass(frozen=True)
class Doubt:
    """Why something may come out otherwise.

    Attributes:
        level: how much.
        why: the cause, as a clause; names are those of the query.
        advice: what to write instead; empty where nothing simple would help.
        elements: whether the value is a list in which the order of the elements alone is in doubt.
    """

    level: Level
    why: str
    advice: str = ""
    elements: bool = False

    @property
    def no_identity(self) -> str:
        """The reason for a full recompute, for people."""
        advice = f". To absorb changes instead: {self.advice}" if self.advice else ""
        return f"{self.why}, so a change does not tell which stored rows it replaces{advice}"


@dataclass(frozen=True)
class State:
    """What is in doubt about an operator's rows.

    Attributes:
        columns: by column, its doubt; columns that are not listed are exact.
        rows: why other rows may come out, or rows may pair otherwise; None: they may not.
    """

    columns: Mapping[str, Doubt] = field(default_factory=dict)
    rows: Doubt | None = None

    @property
    def is_exact(self) -> bool:
        """Whether every computation gives the same rows."""
        return self.rows is None and not self.columns

    @property
    def is_rounded(self) -> bool:
        """Whether every computation gives the same rows up to rounding."""
        return self.rows is None and all(d.level == Level.ROUNDED for d in self.columns.values())


def worst(*doubts: Doubt | None) -> Doubt | None:
    """The first doubt of the highest level."""
    return max((d for d in doubts if d), key=lambda d: d.level, default=None)


def state(node: Node) -> State:
    """What is in doubt about an operator's rows."""
    below = [state(i) for i in node.inputs]
    columns = {n: d for s in below for n, d in s.columns.items()}
    rows = worst(*(s.rows for s in below))
    match node:
        case Scan():
            return State()
        case Filter():
            return State(columns, worst(rows, doubt(node.condition, columns)))
        case Project():
            return State(_present((n, doubt(e, columns)) for n, e in node.items), rows)
        case Generate():
            made = _generated(node.call, columns)
            return State({**columns, **_present((n, made) for n in node.generated)}, worst(rows, made))
        case Aggregate():
            return _aggregated(node, columns, rows)
        case Window():
            over = _present((n, worst(rows, _over(e, node, columns))) for n, e in node.items)
            return State({**columns, **over}, rows)
        case Distinct():
            return State(columns, worst(rows, *columns.values()))
        case InnerJoin() | SideJoin() | FullJoin():
            kept = {n: d for n, d in columns.items() if n in node.columns}
            return State(kept, worst(rows, *(doubt(e, columns) for e in node.on)))
        case UnionAll():
            return State(_merged(below), rows)
        case SetOp():
            merged = _merged(below)
            return State(merged, worst(rows, *merged.values()))


def doubt(expression: exp.Expr, columns: Mapping[str, Doubt]) -> Doubt | None:
    """What is in doubt about an expression over single rows."""
    if isinstance(expression, exp.Column):
        return columns.get(expression.name)
    if _ignores_order(expression):
        inside = expression.this if not isinstance(expression, exp.Anonymous) else expression.expressions[0]
        if isinstance(inside, exp.Column) and (found := columns.get(inside.name)) and found.elements:
            return None
    return worst(*(doubt(part, columns) for part in expression.iter_expressions()))


def shown(expression: exp.Expr) -> str:
    """An expression over columns of the tree with the names that the query has for them."""

    def one(node: exp.Expr) -> exp.Expr:
        return exp.column(re.sub(r"(?<=.)(_\d+)+$", "", node.name)) if isinstance(node, exp.Column) else node

    return text(expression.copy().transform(one))


# --- operators ------------------------------------------------------------------------------------------------------


def _aggregated(node: Aggregate, columns: Mapping[str, Doubt], rows: Doubt | None) -> State:
    keys = _present((n, doubt(e, columns)) for n, e in node.keys)
    grouped = worst(rows, *keys.values())
    by = frozenset(e.name for _, e in node.keys if isinstance(e, exp.Column))
    calls = _present((n, worst(grouped, _called(e, node.input, columns, by))) for n, e in node.calls)
    # Without keys there is one row, whatever is grouped.
    return State({**keys, **calls}, grouped if node.keys or node.vanishes else None)


def _generated(call: exp.Expr, columns: Mapping[str, Doubt]) -> Doubt | None:
    if type(call) is exp.Explode and isinstance(call.this, exp.Column):
        found = columns.get(call.this.name)
        if found and found.elements:
            return None
    return doubt(call, columns)


def _merged(sides: Iterable[State]) -> dict[str, Doubt]:
    found: dict[str, Doubt | None] = {}
    for side in sides:
        for name, one in side.columns.items():
            found[name] = worst(found.get(name), one)
    return _present(found.items())


def _present(doubts: Iterable[tuple[str, Doubt | None]]) -> dict[str, Doubt]:
    return {n: d for n, d in doubts if d}


# --- aggregates -----------------------------------------------------------------------------------------------------

# Of any order of rows.
_EXACT = (
    exp.Count, exp.CountIf, exp.Min, exp.Max, exp.LogicalAnd, exp.LogicalOr, exp.Any, exp.BitwiseAndAgg,
    exp.BitwiseOrAgg, exp.BitwiseXorAgg, exp.BitmapOrAgg, exp.BitmapConstructAgg, exp.RegrCount, exp.Median,
    exp.Quantile, exp.ApproxDistinct,
)  # fmt: skip
_EXACT_NAMES = {"any", "bitmap_and_agg", "every", "percentile", "percentile_cont", "percentile_disc", "some"}
_SUMS, _SUM_NAMES = (exp.Sum,), {"try_sum"}
_AVERAGES, _AVERAGE_NAMES = (exp.Avg,), {"mean", "try_avg"}
_ROUNDED = (
    exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.Corr, exp.CovarPop, exp.CovarSamp,
    exp.Skewness, exp.Kurtosis, exp.RegrAvgx, exp.RegrAvgy, exp.RegrIntercept, exp.RegrR2, exp.RegrSlope, exp.RegrSxx,
    exp.RegrSxy, exp.RegrSyy,
)  # fmt: skip
_LISTS = (exp.ArrayAgg, exp.ArrayUniqueAgg)
_IN_ORDER = (exp.First, exp.FirstValue, exp.Last, exp.LastValue, exp.AnyValue, *_LISTS)
_RANKS = (exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
_PLACES = (exp.RowNumber, exp.Ntile, exp.Lag, exp.Lead, exp.NthValue, *_IN_ORDER)
_AROUND = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)


def _called(call: exp.Expr, node: Node, columns: Mapping[str, Doubt], by: frozenset[str]) -> Doubt | None:
    """What is in doubt about an aggregate over an operator's rows, grouped by columns `by`, in no order."""
    of = doubt(call, columns)
    bare, within = _bare(call)
    name = bare.name.lower() if isinstance(bare, exp.Anonymous) else ""
    if (isinstance(bare, _EXACT) and not isinstance(bare, exp.ApproxQuantile)) or name in _EXACT_NAMES:
        return of
    if isinstance(bare, _SUMS + _AVERAGES) or name in _SUM_NAMES | _AVERAGE_NAMES:
        is_average = isinstance(bare, _AVERAGES) or name in _AVERAGE_NAMES
        return worst(of, _added(call, bare, node, is_average=is_average))
    if isinstance(bare, _ROUNDED) or name == "std":
        why = f"{shown(call)} adds floating-point numbers, whose sum depends on their order"
        return worst(of, Doubt(Level.ROUNDED, why))
    if isinstance(bare, exp.ArgMax | exp.ArgMin):
        return worst(of, _picked(call, bare, node, by))
    if within is not None and [text(o.this) for o in within.expressions] == [text(e) for e in _values(bare)[:1]]:
        return of  # sorted by what it lists
    advice = "use min, max, or max_by(x, struct(y, x)) to break ties of y"
    if isinstance(bare, _LISTS):
        advice = "sort the list with sort_array"
    why = f"{shown(call)} depends on the order in which rows are read"
    return worst(of, Doubt(Level.ARBITRARY, why, advice, elements=isinstance(bare, _LISTS) and of is None))


def _added(call: exp.Expr, bare: exp.Expr, node: Node, *, is_average: bool) -> Doubt | None:
    kind = number(node, _values(bare)[0])
    # Spark adds up whole numbers for an average as doubles; so many of these small ones that it shows do not exist.
    if kind == "decimal" or kind in ("tinyint", "smallint") or (kind and not is_average):
        return None
    advice = "CAST what it adds to a DECIMAL"
    if not kind or is_average:
        why = f"{shown(call)} adds floating-point numbers, whose sum depends on their order"
        return Doubt(Level.ROUNDED, why, advice)
    return None


def _picked(call: exp.Expr, bare: exp.Expr, node: Node, by: frozenset[str]) -> Doubt | None:
    """What is in doubt about max_by and min_by: which of the rows that are tied they take."""
    order = bare.expression
    parts = [p.expression if isinstance(p, exp.PropertyEQ) else p for p in order.expressions]
    names = {p.name for p in (parts if isinstance(order, exp.Struct) else [order]) if isinstance(p, exp.Column)}
    if text(order) == text(bare.this) or refs(bare.this) <= determined(node, names | by):
        return None
    why = f"{shown(call)} takes any of the rows with the same {shown(order)}"
    return Doubt(Level.ARBITRARY, why, "break ties by the value itself, as max_by(x, struct(y, x))")


def _bare(call: exp.Expr) -> tuple[exp.Expr, exp.Expr | None]:
    """The call without FILTER, IGNORE NULLS and WITHIN GROUP, and the order of the latter."""
    within: exp.Expr | None = None
    while isinstance(call, _AROUND):
        within = call.expression if isinstance(call, exp.WithinGroup) else within
        call = call.this
    return call, within


def _values(call: exp.Expr) -> list[exp.Expr]:
    """The arguments of an aggregate, without DISTINCT."""
    first = call.expressions if isinstance(call, exp.Anonymous) else [call.this]
    return [v for e in first for v in (e.expressions if isinstance(e, exp.Distinct) else [e])]


# --- window functions -----------------------------------------------------------------------------------------------


def _over(window: exp.Expr, node: Window, columns: Mapping[str, Doubt]) -> Doubt | None:
    """What is in doubt about a window function."""
    call = window.this
    bare, _ = _bare(call)
    by = list(window.args.get("partition_by") or [])
    order = [o.this for o in window.args["order"].expressions] if window.args.get("order") else []
    if moved := worst(*(doubt(e, columns) for e in (*by, *order))):
        # Which rows are beside a row, not only how many digits its value has.
        return Doubt(Level.ARBITRARY, moved.why, moved.advice)
    of = doubt(call, columns)
    names = {e.name for e in (*by, *order) if isinstance(e, exp.Column)}
    is_known = isinstance(bare, _EXACT + _SUMS + _AVERAGES + _ROUNDED + _RANKS + _PLACES)
    if is_known and order and tells_apart(node.input, names):
        return of  # computed in this very order each time
    if isinstance(bare, _RANKS):
        return of
    spec = window.args.get("spec")
    is_by_rows = spec is not None and str(spec.args.get("kind")).upper() == "ROWS" and not _is_all(spec)
    if is_by_rows or isinstance(bare, _PLACES):
        said = ", ".join(map(shown, order)) or "nothing"
        why = f"{shown(call)} depends on how ties are broken: rows with the same {said} come in any order"
        return Doubt(Level.ARBITRARY, why, "add columns to ORDER BY until it tells all rows of a partition apart")
    return _called(call, node.input, columns, frozenset(e.name for e in by if isinstance(e, exp.Column)))


def _is_all(spec: exp.Expr) -> bool:
    """Whether a frame is the whole partition."""
    return all(str(spec.args.get(end)).upper() == "UNBOUNDED" for end in ("start", "end"))


# --- calls that look at elements alone ------------------------------------------------------------------------------


def _ignores_order(e: exp.Expr) -> bool:
    """Whether a call of a list gives the same whatever the order of its elements."""
    if isinstance(e, exp.ArraySort):
        return not isinstance(e.expression, exp.Lambda)
    return isinstance(e, exp.ArraySize) or (
        isinstance(e, exp.Anonymous) and e.name.lower() in ("cardinality", "size") and len(e.expressions) == 1
    )

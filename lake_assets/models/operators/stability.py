"""Values and rows of a query that may differ when it is computed again over the same rows.

Spark adds floating-point numbers and reads rows in an order that depends on tasks and files. A compaction changes this
order but no row, so a value that depends on the order cannot be used to find the row that was stored with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from sqlglot import exp

from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.operator_types import number
from lake_assets.models.operators.query_tree import refs, text, walk
from lake_assets.models.operators.unique_columns import dependent_columns, identifies_rows


class Level(IntEnum):
    """How much a value may differ between two computations."""

    ROUNDED = 1
    """By the order of addition: each value is correct for its row, independently of other rows."""
    ARBITRARY = 2
    """By the order of rows: correct only together with the values of other rows from the same computation."""


@dataclass(frozen=True)
class Doubt:
    """Why something may differ.

    Attributes:
        level: how much it may differ.
        why: the cause, as a clause, with the names of the query.
        advice: what to write instead; empty if there is no simple remedy.
        elements: whether the value is a list, and only the order of its elements is in doubt.
    """

    level: Level
    why: str
    advice: str = ""
    elements: bool = False

    @property
    def no_identity(self) -> str:
        """The reason for a full recompute, for people."""
        advice = f". To absorb changes instead: {self.advice}" if self.advice else ""
        return f"{self.why}, so a change does not determine which stored rows it replaces{advice}"


@dataclass(frozen=True)
class State:
    """Doubts about an operator's rows.

    Attributes:
        columns: the doubt about each column; columns that are not listed are exact.
        rows: why there may be other rows, or other pairs of joined rows; None if there cannot.
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
    """Return the first doubt of the highest level; None if there is no doubt."""
    return max((d for d in doubts if d), key=lambda d: d.level, default=None)


def state(node: op.Node) -> State:
    """Return the doubts about an operator's rows."""
    below = [state(i) for i in node.inputs]
    columns = {n: d for s in below for n, d in s.columns.items()}
    rows = worst(*(s.rows for s in below))
    match node:
        case op.Scan() | op.Unit():
            return State()
        case op.Filter():
            return State(columns, worst(rows, doubt(node.condition, columns)))
        case op.Project():
            return State(_present((n, doubt(e, columns)) for n, e in node.items), rows)
        case op.Generate():
            generated = _generator_doubt(node.call, columns)
            return State({**columns, **_present((n, generated) for n in node.generated)}, worst(rows, generated))
        case op.Aggregate():
            return _aggregate_state(node, columns, rows)
        case op.Window():
            functions = _present((n, worst(rows, _window_doubt(e, node, columns))) for n, e in node.items)
            return State({**columns, **functions}, rows)
        case op.Distinct():
            return State(columns, worst(rows, *columns.values()))
        case op.InnerJoin() | op.SideJoin() | op.FullJoin():
            joined_columns = {n: d for n, d in columns.items() if n in node.columns}
            return State(joined_columns, worst(rows, *(doubt(e, columns) for e in node.on)))
        case op.UnionAll():
            return State(_merged_columns(below), rows)
        case op.SetOp():
            merged = _merged_columns(below)
            return State(merged, worst(rows, *merged.values()))


def doubt(expression: exp.Expr, columns: Mapping[str, Doubt]) -> Doubt | None:
    """Return the doubt about an expression over single rows."""
    if isinstance(expression, exp.Column):
        return columns.get(expression.name)
    if _ignores_order(expression):
        argument = expression.this if not isinstance(expression, exp.Anonymous) else expression.expressions[0]
        if isinstance(argument, exp.Column) and (column_doubt := columns.get(argument.name)) and column_doubt.elements:
            return None
    return worst(*(doubt(part, columns) for part in expression.iter_expressions()))


def depends_on_order(call: exp.Expr, node: op.Node) -> bool:
    """Whether an aggregate over a frame of rows of an operator may depend on the order in which they are added."""
    bare, _ = _bare(call)
    # Doubles hold the sum of any frame of INTs: it has fewer than four million rows.
    if isinstance(bare, _AVERAGES) and number(node, _values(bare)[0]) == "int":
        return False
    return _aggregate_doubt(call, node, {}, frozenset()) is not None


def query_text(expression: exp.Expr) -> str:
    """Return an expression over columns of the tree with the query's names for them."""

    def with_query_name(node: exp.Expr) -> exp.Expr:
        return exp.column(re.sub(r"(?<=.)(_\d+)+$", "", node.name)) if isinstance(node, exp.Column) else node

    return text(expression.copy().transform(with_query_name))


# --- operators ------------------------------------------------------------------------------------------------------


def _aggregate_state(node: op.Aggregate, columns: Mapping[str, Doubt], rows: Doubt | None) -> State:
    keys = _present((n, doubt(e, columns)) for n, e in node.keys)
    grouped = worst(rows, *keys.values())
    by = frozenset(e.name for _, e in node.keys if isinstance(e, exp.Column))
    calls = _present((n, worst(grouped, _aggregate_doubt(e, node.input, columns, by))) for n, e in node.calls)
    # Without keys there is always one row.
    return State({**keys, **calls}, grouped if node.keys or node.vanishes else None)


def _generator_doubt(call: exp.Expr, columns: Mapping[str, Doubt]) -> Doubt | None:
    if type(call) is exp.Explode and isinstance(call.this, exp.Column):
        column_doubt = columns.get(call.this.name)
        if column_doubt and column_doubt.elements:
            return None
    return doubt(call, columns)


def _merged_columns(sides: Iterable[State]) -> dict[str, Doubt]:
    merged: dict[str, Doubt | None] = {}
    for side in sides:
        for name, column_doubt in side.columns.items():
            merged[name] = worst(merged.get(name), column_doubt)
    return _present(merged.items())


def _present(doubts: Iterable[tuple[str, Doubt | None]]) -> dict[str, Doubt]:
    return {n: d for n, d in doubts if d}


# --- aggregates -----------------------------------------------------------------------------------------------------

# Aggregates that do not depend on the order of rows.
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


def _aggregate_doubt(call: exp.Expr, node: op.Node, columns: Mapping[str, Doubt], by: frozenset[str]) -> Doubt | None:
    """Return the doubt about an aggregate over an operator's unordered rows, grouped by the columns `by`."""
    argument_doubt = doubt(call, columns)
    bare, within = _bare(call)
    name = bare.name.lower() if isinstance(bare, exp.Anonymous) else ""
    if (isinstance(bare, _EXACT) and not isinstance(bare, exp.ApproxQuantile)) or name in _EXACT_NAMES:
        return argument_doubt
    if isinstance(bare, _SUMS + _AVERAGES) or name in _SUM_NAMES | _AVERAGE_NAMES:
        is_average = isinstance(bare, _AVERAGES) or name in _AVERAGE_NAMES
        return worst(argument_doubt, _sum_doubt(call, bare, node, is_average=is_average))
    if isinstance(bare, _ROUNDED) or name == "std":
        why = f"{query_text(call)} adds floating-point numbers, whose sum depends on their order"
        return worst(argument_doubt, Doubt(Level.ROUNDED, why))
    if isinstance(bare, exp.ArgMax | exp.ArgMin):
        return worst(argument_doubt, _max_by_doubt(call, bare, node, by))
    if within is not None and [text(o.this) for o in within.expressions] == [text(e) for e in _values(bare)[:1]]:
        return argument_doubt  # sorted by its own values
    advice = "use min, max, or max_by(x, struct(y, x)) to break ties of y"
    if isinstance(bare, _LISTS):
        advice = "sort the list with sort_array"
    why = f"{query_text(call)} depends on the order in which rows are read"
    return worst(
        argument_doubt,
        Doubt(Level.ARBITRARY, why, advice, elements=isinstance(bare, _LISTS) and argument_doubt is None),
    )


def _sum_doubt(call: exp.Expr, bare: exp.Expr, node: op.Node, *, is_average: bool) -> Doubt | None:
    kind = number(node, _values(bare)[0])
    # Averages of whole numbers are sums of doubles, which stay exact for any realistic number of small integers.
    if kind == "decimal" or kind in ("tinyint", "smallint") or (kind and not is_average):
        return None
    advice = "CAST its argument to a DECIMAL"
    if not kind or is_average:
        why = f"{query_text(call)} adds floating-point numbers, whose sum depends on their order"
        return Doubt(Level.ROUNDED, why, advice)
    return None


def _max_by_doubt(call: exp.Expr, bare: exp.Expr, node: op.Node, by: frozenset[str]) -> Doubt | None:
    """Return the doubt about max_by and min_by: which of several tied rows they take."""
    order = bare.expression
    parts = [p.expression if isinstance(p, exp.PropertyEQ) else p for p in order.expressions]
    names = {p.name for p in (parts if isinstance(order, exp.Struct) else [order]) if isinstance(p, exp.Column)}
    if text(order) == text(bare.this) or refs(bare.this) <= dependent_columns(node, names | by):
        return None
    why = f"{query_text(call)} takes any of the rows with the same {query_text(order)}"
    return Doubt(Level.ARBITRARY, why, "break ties by the value itself, as max_by(x, struct(y, x))")


def _bare(call: exp.Expr) -> tuple[exp.Expr, exp.Expr | None]:
    """Return the call without FILTER, IGNORE NULLS and WITHIN GROUP, and the order of WITHIN GROUP."""
    within: exp.Expr | None = None
    while isinstance(call, _AROUND):
        within = call.expression if isinstance(call, exp.WithinGroup) else within
        call = call.this
    return call, within


def _values(call: exp.Expr) -> list[exp.Expr]:
    """Return the arguments of an aggregate, without DISTINCT."""
    first = call.expressions if isinstance(call, exp.Anonymous) else [call.this]
    return [v for e in first for v in (e.expressions if isinstance(e, exp.Distinct) else [e])]


# --- window functions -----------------------------------------------------------------------------------------------


def _window_doubt(window: exp.Expr, node: op.Window, columns: Mapping[str, Doubt]) -> Doubt | None:
    """Return the doubt about a window function."""
    call = window.this
    bare, _ = _bare(call)
    by = list(window.args.get("partition_by") or [])
    order = [o.this for o in window.args["order"].expressions] if window.args.get("order") else []
    if order_doubt := worst(*(doubt(e, columns) for e in (*by, *order))):
        # Rounded values here change which rows are neighbors, and not only the digits of a value.
        return Doubt(Level.ARBITRARY, order_doubt.why, order_doubt.advice)
    argument_doubt = doubt(call, columns)
    names = {e.name for e in (*by, *order) if isinstance(e, exp.Column)}
    is_classified = isinstance(bare, _EXACT + _SUMS + _AVERAGES + _ROUNDED + _RANKS + _PLACES)
    if is_classified and order and identifies_rows(node.input, names):
        return argument_doubt  # the order is total, so every computation uses the same
    if isinstance(bare, _RANKS):
        return argument_doubt
    spec = window.args.get("spec")
    is_by_rows = spec is not None and str(spec.args.get("kind")).upper() == "ROWS" and not _is_all(spec)
    if is_by_rows or isinstance(bare, _PLACES):
        ordered_by = ", ".join(map(query_text, order)) or "nothing"
        why = f"{query_text(call)} depends on how ties are broken: rows with the same {ordered_by} come in any order"
        return Doubt(Level.ARBITRARY, why, "add columns to ORDER BY until it identifies each row of a partition")
    return _aggregate_doubt(call, node.input, columns, frozenset(e.name for e in by if isinstance(e, exp.Column)))


def are_windows_certain(root: op.Node) -> bool:
    """Whether no window function of a query depends on how ties are broken."""
    return all(_window_doubt(e, w, {}) is None for w in walk(root) if isinstance(w, op.Window) for _, e in w.items)


def _is_all(spec: exp.Expr) -> bool:
    """Whether a window frame is the whole partition."""
    return all(str(spec.args.get(end)).upper() == "UNBOUNDED" for end in ("start", "end"))


# --- calls that ignore the order of elements ------------------------------------------------------------------------


def _ignores_order(e: exp.Expr) -> bool:
    """Whether a call over a list does not depend on the order of its elements."""
    if isinstance(e, exp.ArraySort):
        return not isinstance(e.expression, exp.Lambda)
    return isinstance(e, exp.ArraySize) or (
        isinstance(e, exp.Anonymous) and e.name.lower() in ("cardinality", "size") and len(e.expressions) == 1
    )

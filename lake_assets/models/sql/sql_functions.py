"""Calls of aggregates and generators in a query, and calls that depend on the order of rows."""

from __future__ import annotations

from sqlglot import exp

from lake_assets.lake.spark_functions import is_aggregate, is_wide
from lake_assets.lake.sql_text import DIALECT

_BY_ORDER = (exp.First, exp.FirstValue, exp.Last, exp.LastValue, exp.AnyValue, exp.ArrayAgg, exp.ArrayUniqueAgg)
_BY_ORDER_NAMES = {"first_value", "last_value", "listagg", "string_agg"}
_TIED = (exp.RowNumber, exp.Lag, exp.Lead, exp.Ntile, exp.NthValue, exp.FirstValue, exp.LastValue, exp.First, exp.Last)
_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)


def wide_generator(query: exp.Query) -> exp.Expr | None:
    """Return the first call in the list of SELECT that returns several columns, or None."""
    return next((n for e in query.selects for n in e.walk() if isinstance(n, exp.Aliases) or is_wide(n)), None)


def whole_call(node: exp.Expr) -> exp.Expr:
    """Return the call with the FILTER, WITHIN GROUP and IGNORE NULLS around it."""
    while isinstance(node.parent, _WRAPPERS) and node.arg_key == "this":
        node = node.parent
    return node


def aggregates(expression: exp.Expr) -> list[exp.Expr]:
    """Return the outermost aggregate calls. Window functions are not aggregates, but their arguments may contain
    some."""
    calls: list[exp.Expr] = []

    def visit(node: exp.Expr, *, windowed: bool = False) -> None:
        if isinstance(node, exp.Query):
            return
        if isinstance(node, exp.Window):
            for name, value in node.args.items():
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, exp.Expr):
                        visit(part, windowed=name == "this")
            return
        if is_aggregate(node) and not windowed:
            calls.append(whole_call(node))
            return
        keeps = windowed and isinstance(node, _WRAPPERS)
        for part in node.iter_expressions():
            visit(part, windowed=keeps and part.arg_key == "this")

    visit(expression)
    return calls


def collation(query: exp.Expr) -> exp.Expr | None:
    """Return the first part of a query that compares different texts as equal, or None."""
    return next(
        (
            node
            for node in query.find_all(exp.Collate, exp.Anonymous)
            if isinstance(node, exp.Collate) or node.name.lower() == "collate"
        ),
        None,
    )


def warnings(query: exp.Expr, *, are_windows_certain: bool = False) -> list[str]:
    """Return warnings about values that may differ when the same rows are read in another order.

    Args:
        are_windows_certain: whether the order of every window function is known to be total.
    """
    messages: dict[str, None] = {}
    if (collated := collation(query)) is not None:
        messages[
            f"{collated.sql('spark')} compares different texts as equal: which of them stands for a group, a minimum "
            "or a maximum depends on the order in which rows are read. Use lower() or upper()"
        ] = None
    for window in [] if are_windows_certain else query.find_all(exp.Window):
        call = window.this.this if isinstance(window.this, _WRAPPERS) else window.this
        order = window.args.get("order")
        spec = window.args.get("spec")
        rows = spec is not None and str(spec.args.get("kind")).upper() == "ROWS"
        if isinstance(call, _TIED) or rows:
            by = ", ".join(o.this.sql(DIALECT) for o in order.expressions) if order else "nothing"
            messages[
                f"{call.sql('spark')} depends on how ties are broken: rows with the same {by} may come in any order. "
                "Add columns to ORDER BY until it identifies each row"
            ] = None
    for node in query.walk():
        name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
        if (isinstance(node, _BY_ORDER) or name in _BY_ORDER_NAMES) and not _is_order_checked(node):
            messages[
                f"{node.sql('spark')} depends on the order in which rows are read: use min, max, min_by, or sort"
            ] = None
    return list(messages)


def _is_order_checked(call: exp.Expr) -> bool:
    if isinstance(call.parent, exp.WithinGroup):
        return True
    node = whole_call(call)
    parent = node.parent
    if isinstance(parent, exp.Window) and node.arg_key == "this":
        return True  # warned about above
    return isinstance(parent, exp.ArraySize | exp.ArraySort) or (
        isinstance(parent, exp.Anonymous) and parent.name.lower() in ("array_sort", "sort_array", "size", "cardinality")
    )


def replaceable_text(part: exp.Expr) -> str:
    """Return the SQL by which a group key or an aggregate is recognized within an expression; empty: it is none.

    `count(*)` before OVER is a window function, and `ORDER BY n` in ascending order has the text of `n`.
    """
    return "" if is_window_call(part) or isinstance(part, exp.Ordered) else part.sql(DIALECT)


def is_window_call(part: exp.Expr) -> bool:
    """Whether a call is the function before an OVER clause."""
    whole = whole_call(part)
    return isinstance(whole.parent, exp.Window) and whole.arg_key == "this"

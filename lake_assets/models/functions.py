"""What is to be known of Spark's functions: which aggregate, which depend on the order of rows."""

from __future__ import annotations

from sqlglot import exp

from lake_assets.lake.sql import DIALECT

# Aggregates that sqlglot has no class for, or one that is no AggFunc.
_AGGREGATES = {
    "any",
    "bitmap_and_agg",
    "bitmap_construct_agg",
    "bitmap_or_agg",
    "count_min_sketch",
    "every",
    "first_value",
    "histogram_numeric",
    "hll_sketch_agg",
    "hll_union_agg",
    "kll_merge_agg_bigint",
    "kll_merge_agg_double",
    "kll_merge_agg_float",
    "kll_sketch_agg_bigint",
    "kll_sketch_agg_double",
    "kll_sketch_agg_float",
    "last_value",
    "listagg",
    "mean",
    "percentile",
    "percentile_cont",
    "percentile_disc",
    "some",
    "std",
    "string_agg",
    "theta_intersection_agg",
    "theta_sketch_agg",
    "theta_union_agg",
    "try_avg",
    "try_sum",
}
# Functions that make several rows of one, and each of them several columns.
_WIDE = (exp.Posexplode, exp.Inline, exp.Stack)
_WIDE_NAMES = {"inline_outer", "json_tuple", "variant_explode", "variant_explode_outer", "collations", "sql_keywords"}
_BY_ORDER = (exp.First, exp.FirstValue, exp.Last, exp.LastValue, exp.AnyValue, exp.ArrayAgg, exp.ArrayUniqueAgg)
_BY_ORDER_NAMES = {"first_value", "last_value", "listagg", "string_agg"}
_TIED = (exp.RowNumber, exp.Lag, exp.Lead, exp.Ntile, exp.NthValue, exp.FirstValue, exp.LastValue, exp.First, exp.Last)
_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)


def is_aggregate(node: exp.Expr) -> bool:
    """Whether it is a call of an aggregate (without what stands around it, as FILTER or OVER)."""
    if isinstance(node, exp.Any):
        return not isinstance(node.parent, exp.Binary)
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _AGGREGATES
    # How often a grouping set leaves out a column is no aggregate of rows.
    return isinstance(node, exp.AggFunc) and not isinstance(node, exp.GroupingId | exp.Grouping)


def is_generator(node: exp.Expr) -> bool:
    """Whether it is a call that makes several rows of one."""
    return isinstance(node, exp.Explode) or _is_wide(node)


def wide_generator(query: exp.Expr) -> exp.Expr | None:
    """The first call in a list of SELECT that makes several columns."""
    selected = (e for select in query.find_all(exp.Select) for e in select.expressions)
    return next((n for e in selected for n in e.walk() if isinstance(n, exp.Aliases) or _is_wide(n)), None)


def _is_wide(node: exp.Expr) -> bool:
    return isinstance(node, _WIDE) or (isinstance(node, exp.Anonymous) and node.name.lower() in _WIDE_NAMES)


def whole_call(node: exp.Expr) -> exp.Expr:
    """The call with FILTER, WITHIN GROUP and IGNORE NULLS around it."""
    while isinstance(node.parent, _WRAPPERS) and node.arg_key == "this":
        node = node.parent
    return node


def aggregates(expression: exp.Expr) -> list[exp.Expr]:
    """The outermost aggregate calls, those of window functions left out, but not what these are computed of."""
    found: list[exp.Expr] = []

    def look(node: exp.Expr, *, windowed: bool = False) -> None:
        if isinstance(node, exp.Query):
            return
        if isinstance(node, exp.Window):
            for name, value in node.args.items():
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, exp.Expr):
                        look(part, windowed=name == "this")
            return
        if is_aggregate(node) and not windowed:
            found.append(whole_call(node))
            return
        keeps = windowed and isinstance(node, _WRAPPERS)
        for part in node.iter_expressions():
            look(part, windowed=keeps and part.arg_key == "this")

    look(expression)
    return found


def warnings(query: exp.Expr) -> list[str]:
    """What may come out otherwise when the same rows are read in another order."""
    found: dict[str, None] = {}
    for window in query.find_all(exp.Window):
        call = window.this.this if isinstance(window.this, _WRAPPERS) else window.this
        order = window.args.get("order")
        spec = window.args.get("spec")
        rows = spec is not None and str(spec.args.get("kind")).upper() == "ROWS"
        if isinstance(call, _TIED) or rows:
            by = ", ".join(o.this.sql(DIALECT) for o in order.expressions) if order else "nothing"
            found[
                f"{call.sql('spark')} depends on how ties are broken: rows with the same {by} may come in any order. "
                "Order by what tells rows apart"
            ] = None
    for node in query.walk():
        name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
        if (isinstance(node, _BY_ORDER) or name in _BY_ORDER_NAMES) and not _is_settled(node):
            found[f"{node.sql('spark')} depends on the order in which rows are read: use min, max, min_by, or sort"] = (
                None
            )
    return list(found)


def _is_settled(call: exp.Expr) -> bool:
    if isinstance(call.parent, exp.WithinGroup):
        return True
    node = whole_call(call)
    parent = node.parent
    if isinstance(parent, exp.Window) and node.arg_key == "this":
        return True  # told above
    return isinstance(parent, exp.ArraySize | exp.ArraySort) or (
        isinstance(parent, exp.Anonymous) and parent.name.lower() in ("array_sort", "sort_array", "size", "cardinality")
    )

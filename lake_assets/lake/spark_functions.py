"""Which of Spark's functions make one value of many rows, and which many rows of one."""

from __future__ import annotations

from sqlglot import exp

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
    return isinstance(node, exp.Explode) or is_wide(node)


def is_wide(node: exp.Expr) -> bool:
    """Whether it is such a call, and makes several columns."""
    return isinstance(node, _WIDE) or (isinstance(node, exp.Anonymous) and node.name.lower() in _WIDE_NAMES)

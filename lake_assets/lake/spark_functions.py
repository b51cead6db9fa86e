"""Spark's aggregate functions, and its generators, which return several rows per input row."""

from __future__ import annotations

from sqlglot import exp

# Aggregates without a class in sqlglot, or with a class that is no AggFunc.
_AGGREGATES = {
    "any", "bitmap_and_agg", "bitmap_construct_agg", "bitmap_or_agg", "count_min_sketch", "every", "first_value",
    "histogram_numeric", "hll_sketch_agg", "hll_union_agg", "kll_merge_agg_bigint", "kll_merge_agg_double",
    "kll_merge_agg_float", "kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float", "last_value",
    "listagg", "mean", "percentile", "percentile_cont", "percentile_disc", "some", "std", "string_agg",
    "theta_intersection_agg", "theta_sketch_agg", "theta_union_agg", "try_avg", "try_sum",
}  # fmt: skip
# Generators that return several columns.
_WIDE = (exp.Posexplode, exp.Inline, exp.Stack)
_WIDE_NAMES = {"inline_outer", "json_tuple", "variant_explode", "variant_explode_outer", "collations", "sql_keywords"}


def is_aggregate(node: exp.Expr) -> bool:
    """Whether the node is a call of an aggregate; FILTER and OVER around it are not part of the node."""
    if isinstance(node, exp.Any):
        return not isinstance(node.parent, exp.Binary)
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _AGGREGATES
    # GROUPING and GROUPING_ID depend on the grouping set, not on rows.
    return isinstance(node, exp.AggFunc) and not isinstance(node, exp.GroupingId | exp.Grouping)


def is_generator(node: exp.Expr) -> bool:
    """Whether the node is a call of a generator."""
    return isinstance(node, exp.Explode) or is_wide(node)


def is_wide(node: exp.Expr) -> bool:
    """Whether the node is a call of a generator that returns several columns."""
    return isinstance(node, _WIDE) or (isinstance(node, exp.Anonymous) and node.name.lower() in _WIDE_NAMES)

"""Spark's types of operators' columns where they are certain, and comparisons of different types.

sqlglot only guesses the types of computed expressions: `coalesce(text, 1)` is not text in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlglot import exp

from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.query_tree import column, definitions, refs, users_text, with_inputs

# By name, without parameters.
_NUMBERS = {"tinyint", "smallint", "int", "integer", "bigint", "decimal"}
_PLAIN = {"string", "date", "timestamp", "timestamp_ntz", "boolean", "binary"}


def certain_type(node: op.Node, expression: exp.Expr) -> str:
    """Return Spark's type of an expression over an operator's columns; empty if it is not certain."""
    match expression:
        case exp.Column():
            return _of_column(node, expression.name)
        case exp.Cast() | exp.TryCast():
            to = short_type(expression.to.sql(DIALECT))
            return to if kind(to) in ("number", "float", *_PLAIN) else ""
        case exp.Count() | exp.CountIf():
            return "bigint"
        case exp.Null():
            return "void"
        case exp.Literal() if expression.is_string:
            return "string"
        case exp.Coalesce():
            return _same([certain_type(node, e) for e in (expression.this, *expression.expressions)])
        case exp.Upper() | exp.Lower():
            return "string" if certain_type(node, expression.this) == "string" else ""
        case exp.Min() | exp.Max() | exp.Paren():
            return certain_type(node, expression.this) if not expression.expressions else ""
        case _:
            return ""


def short_type(type_: str) -> str:
    """Return a type in Spark's short notation: lower case without spaces, unlike Iceberg's and sqlglot's."""
    return re.sub(r"\s*([,:<>()])\s*", r"\1", type_.strip().lower())


def _same(types: Sequence[str]) -> str:
    return types[0] if len(set(types)) == 1 else ""


def _of_column(node: op.Node, name: str) -> str:
    match node:
        case op.Scan():
            return node.types.get(name, "")
        case op.Unit():
            return "int"
        case _:
            return _same([certain_type(below, e) for below, e in definitions(node, name)])


def kind(type_: str) -> str:
    """Return the kind of a type; equality is transitive among values of one kind, whatever their types. Empty if
    unknown."""
    type_ = short_type(type_)
    name = type_.split("(")[0]
    if name in _NUMBERS:
        return "number"
    return "float" if name in ("float", "double") else type_


def is_plain(node: op.Node, expression: exp.Expr) -> bool:
    """Whether equal values of an expression's columns always give equal results.

    They do not if 0.0 and -0.0 are equal, or 'a' and 'A' by a collation.
    """
    types = (_of_column(node, name) for name in refs(expression))
    return all(t in _PLAIN or t.split("(")[0] in _NUMBERS for t in types)


# Calls that return one of their argument's values, and calls that return an INT.
_OF_ITS_TYPE = (
    exp.Paren, exp.Neg, exp.Abs, exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.Window, exp.Min, exp.Max,
    exp.Nullif, exp.First, exp.FirstValue, exp.Last, exp.LastValue, exp.AnyValue, exp.ArgMax, exp.ArgMin,
    exp.Lag, exp.Lead, exp.NthValue,
)  # fmt: skip
_INTS = (
    exp.Length, exp.Year, exp.Month, exp.Day, exp.Quarter, exp.DateDiff, exp.ArraySize, exp.RowNumber, exp.Rank,
    exp.DenseRank, exp.Ntile,
)  # fmt: skip
_WHOLE_OR_DECIMAL = ("tinyint", "smallint", "int", "bigint", "decimal")


def number(node: op.Node, e: exp.Expr) -> str:
    """Return the type, without parameters, of an expression that is certainly a whole number or decimal; empty if it
    may be floating-point.
    """
    match e:
        case exp.Column():
            return _number_of_column(node, e.name)
        case _ if isinstance(e, _OF_ITS_TYPE):
            return number(node, e.this)
        case exp.Literal():
            digits = "" if e.is_string else e.name
            return "bigint" if digits.isdigit() else "decimal" if digits.replace(".", "", 1).isdigit() else ""
        case _ if isinstance(e, _INTS):
            return "int"
        case exp.Sum() | exp.Avg():
            inner = number(node, e.this.expressions[0] if isinstance(e.this, exp.Distinct) else e.this)
            return inner if inner == "decimal" else "bigint" if inner and isinstance(e, exp.Sum) else ""
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Mod():
            return _widest(number(node, e.this), number(node, e.expression))
        case exp.If():
            return _widest(*(_or_null(node, p) for p in (e.args["true"], e.args.get("false") or exp.null())))
        case exp.Case():
            results = [i.args["true"] for i in e.args["ifs"]]
            return _widest(*(_or_null(node, r) for r in (*results, e.args.get("default") or exp.null())))
        case exp.Coalesce() | exp.Greatest() | exp.Least():
            return _widest(*(_or_null(node, p) for p in (e.this, *e.expressions)))
        case _:
            name = certain_type(node, e).split("(")[0]
            return name if name in _WHOLE_OR_DECIMAL else ""


def _number_of_column(node: op.Node, name: str) -> str:
    match node:
        case op.Scan():
            type_name = node.types.get(name, "").split("(")[0].replace("integer", "int")
            return type_name if type_name in _WHOLE_OR_DECIMAL else ""
        case op.Unit():
            return "int"
        case _:
            return _widest(*(number(below, e) for below, e in definitions(node, name)))


def _or_null(node: op.Node, e: exp.Expr) -> str:
    return "tinyint" if isinstance(e, exp.Null) else number(node, e)


def _widest(*types: str) -> str:
    return max(types, key=_WHOLE_OR_DECIMAL.index) if all(types) else ""


TypeOf = Callable[[exp.Expr, op.Node], str]


def mixed_types_reason(node: op.Node, type_of: TypeOf) -> str:
    """Return why join conditions do not determine keys: they compare values of different kinds; empty if they do not.

    '01' and '1' both equal 1, but not each other, so neither side's value tells which rows belong together. All such
    conditions are marked, and no rows are looked up by them. For inner joins that is enough.
    """
    reason = ""
    for below in node.inputs:
        reason = mixed_types_reason(below, type_of) or reason
    for condition, x, y, inputs in _compared(node):
        left_type, right_type = type_of(x, inputs[0]), type_of(y, inputs[1])
        if not (left_type and right_type) or kind(left_type) == kind(right_type):
            continue
        condition.meta["mixed"] = True
        if not isinstance(node, op.InnerJoin):
            where = users_text(node, condition)
            reason = f"it compares {left_type} with {right_type} in {where}: equal values are not the same there"
    return reason


def _compared(node: op.Node) -> Iterator[tuple[exp.Expr, exp.Expr, exp.Expr, tuple[op.Node, op.Node]]]:
    if not isinstance(node, op.InnerJoin | op.SideJoin | op.FullJoin):
        return
    for condition in node.on:
        bare = condition
        while isinstance(bare, exp.Paren):
            bare = bare.this
        if not isinstance(bare, exp.EQ):
            continue
        x, y = bare.this, bare.expression
        if not (refs(x) and refs(y)):
            continue
        if isinstance(node, op.InnerJoin):
            yield bare, x, y, (node, node)
            continue
        left, right = set(node.left.columns), set(node.right.columns)
        if refs(x) <= left and refs(y) <= right:
            yield bare, x, y, (node.left, node.right)
        elif refs(y) <= left and refs(x) <= right:
            yield bare, x, y, (node.right, node.left)


def with_common_types(tree: op.Tree, schema_of: Callable[[op.Node], Mapping[str, str]]) -> op.Tree:
    """Return the tree with each branch of a set operation cast to the types of the whole.

    A change may come from some branches only, and these alone do not determine the common types.

    Args:
        schema_of: returns Spark's types of an operator's columns, for types that are not certain.
    """

    def convert(node: op.Node) -> op.Node:
        node = with_inputs(node, [convert(i) for i in node.inputs])
        if not isinstance(node, op.UnionAll | op.SetOp) or all(
            _of_column(node, c) not in ("", "void") for c in node.columns
        ):
            return node
        whole = schema_of(node)
        return with_inputs(node, [_cast_to(side, schema_of(side), whole) for side in node.inputs])

    return op.Tree(convert(tree.root), tree.outputs)


def _cast_to(side: op.Node, types: Mapping[str, str], target_types: Mapping[str, str]) -> op.Node:
    if all(types[c] == target_types[c] for c in side.columns):
        return side
    items = tuple(
        (c, column(c) if types[c] == target_types[c] else exp.cast(column(c), target_types[c], dialect=DIALECT))
        for c in side.columns
    )
    # Names may repeat in the projection, since each operator is a SELECT of its own.
    return op.Project(side, items)

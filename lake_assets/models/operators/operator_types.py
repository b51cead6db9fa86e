"""Spark's types of what operators give, as far as they are certain, and what follows where they are not the same.

sqlglot's own notion of types is a guess as soon as something is computed: `coalesce(text, 1)` is no text to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from lake_assets.lake.sql_text import DIALECT
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
    refs,
    users_text,
)

# By name; of what has parameters the part before them.
_NUMBERS = {"tinyint", "smallint", "int", "integer", "bigint", "decimal"}
_PLAIN = {"string", "date", "timestamp", "timestamp_ntz", "boolean", "binary"}


def certain_type(node: Node, expression: exp.Expr) -> str:
    """The type of an expression over an operator's columns, as Spark writes it; empty: it is not certain."""
    match expression:
        case exp.Column():
            return _of_column(node, expression.name)
        case exp.Cast() | exp.TryCast():
            to = plainly(expression.to.sql(DIALECT))
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


def plainly(type_: str) -> str:
    """A type as Spark itself writes it in short: Iceberg's and sqlglot's are in upper case, with spaces."""
    return re.sub(r"\s*([,:<>()])\s*", r"\1", type_.strip().lower())


def _same(types: Sequence[str]) -> str:
    return types[0] if len(set(types)) == 1 else ""


def _of_column(node: Node, name: str) -> str:
    match node:
        case Scan():
            return node.types.get(name, "")
        case Filter() | Distinct():
            return _of_column(node.input, name)
        case Project() | Aggregate():
            items = node.items if isinstance(node, Project) else (*node.keys, *node.calls)
            return certain_type(node.input, dict(items)[name])
        case Window() | Generate():
            return _of_column(node.input, name) if name in node.input.columns else ""
        case InnerJoin() | SideJoin() | FullJoin():
            return next(_of_column(i, name) for i in node.inputs if name in i.columns)
        case UnionAll() | SetOp():
            return _same([_of_column(i, name) for i in node.inputs])


def kind(type_: str) -> str:
    """Values of one kind that are equal are equal to the same ones, whatever their types; empty: nothing is known."""
    type_ = plainly(type_)
    name = type_.split("(")[0]
    if name in _NUMBERS:
        return "number"
    return "float" if name in ("float", "double") else type_


def is_plain(node: Node, expression: exp.Expr) -> bool:
    """Whether whatever is computed of equal values of an expression's columns is equal as well.

    It is not where 0.0 and -0.0 are equal, or 'a' and 'A' by a collation.
    """
    types = (_of_column(node, name) for name in refs(expression))
    return all(t in _PLAIN or t.split("(")[0] in _NUMBERS for t in types)


# Calls that give a value of what they are called of, and those that give an INT of anything.
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


def number(node: Node, e: exp.Expr) -> str:
    """The type, without its parameters, of the whole numbers or decimals that an expression over an operator's columns
    certainly has; empty: it may be floating-point.
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
            of = number(node, e.this.expressions[0] if isinstance(e.this, exp.Distinct) else e.this)
            return of if of == "decimal" else "bigint" if of and isinstance(e, exp.Sum) else ""
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
            found = certain_type(node, e).split("(")[0]
            return found if found in _WHOLE_OR_DECIMAL else ""


def _number_of_column(node: Node, name: str) -> str:
    match node:
        case Scan():
            found = node.types.get(name, "").split("(")[0].replace("integer", "int")
            return found if found in _WHOLE_OR_DECIMAL else ""
        case Filter() | Distinct():
            return _number_of_column(node.input, name)
        case Project() | Aggregate() | Window():
            items = dict((*node.keys, *node.calls) if isinstance(node, Aggregate) else node.items)
            return number(node.input, items[name]) if name in items else _number_of_column(node.input, name)
        case Generate():
            return _number_of_column(node.input, name) if name in node.input.columns else ""
        case InnerJoin() | SideJoin() | FullJoin():
            return next(_number_of_column(i, name) for i in node.inputs if name in i.columns)
        case UnionAll() | SetOp():
            return _widest(*(_number_of_column(i, name) for i in node.inputs))


def _or_null(node: Node, e: exp.Expr) -> str:
    return "tinyint" if isinstance(e, exp.Null) else number(node, e)


def _widest(*types: str) -> str:
    return max(types, key=_WHOLE_OR_DECIMAL.index) if all(types) else ""


TypeOf = Callable[[exp.Expr, Node], str]


def mixed(node: Node, type_of: TypeOf) -> str:
    """Why keys cannot be told by the conditions of joins: they compare values of several kinds; empty: they do not.

    '01' and '1' both are 1, and yet they are not equal: which rows belong together is not told by either side's value.
    All such conditions are marked, so that nothing is looked up by them. For inner joins that is enough.
    """
    found = ""
    for below in node.inputs:
        found = mixed(below, type_of) or found
    for condition, x, y, of in _compared(node):
        one, other = type_of(x, of[0]), type_of(y, of[1])
        if not (one and other) or kind(one) == kind(other):
            continue
        condition.meta["mixed"] = True
        if not isinstance(node, InnerJoin):
            found = (
                f"it compares {one} with {other} in {users_text(node, condition)}: equal values are not the same there"
            )
    return found


def _compared(node: Node) -> Iterator[tuple[exp.Expr, exp.Expr, exp.Expr, tuple[Node, Node]]]:
    if not isinstance(node, InnerJoin | SideJoin | FullJoin):
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
        if isinstance(node, InnerJoin):
            yield bare, x, y, (node, node)
            continue
        left, right = set(node.left.columns), set(node.right.columns)
        if refs(x) <= left and refs(y) <= right:
            yield bare, x, y, (node.left, node.right)
        elif refs(y) <= left and refs(x) <= right:
            yield bare, x, y, (node.right, node.left)


def in_one_type(tree: Tree, schema_of: Callable[[Node], Mapping[str, str]]) -> Tree:
    """The same, with each branch of a set operation in the types of the whole.

    A change is that of some branches: without the others, nothing tells what they have in common.

    Args:
        tree: the operators.
        schema_of: asks Spark for the types of an operator's columns, where they are not certain.
    """

    def one(node: Node) -> Node:
        match node:
            case Scan():
                return node
            case InnerJoin():
                return _with(node, inputs=tuple(map(one, node.inputs)))
            case UnionAll():
                return _branches(_with(node, inputs=tuple(map(one, node.inputs))), schema_of)
            case SetOp():
                return _branches(_with(node, left=one(node.left), right=one(node.right)), schema_of)
            case SideJoin() | FullJoin():
                return _with(node, left=one(node.left), right=one(node.right))
            case _:
                return _with(node, input=one(node.input))

    root = one(tree.root)
    return tree if root is tree.root else Tree(root, tree.outputs)


def _with(node: Node, **parts: Any) -> Any:
    def listed(part: Any) -> tuple[Any, ...]:
        return part if isinstance(part, tuple) else (part,)

    pairs = [pair for k, new in parts.items() for pair in zip(listed(getattr(node, k)), listed(new), strict=True)]
    return node if all(a is b for a, b in pairs) else replace(node, **parts)


def _branches(node: UnionAll | SetOp, schema_of: Callable[[Node], Mapping[str, str]]) -> Node:
    if all(_of_column(node, c) not in ("", "void") for c in node.columns):
        return node
    whole = schema_of(node)
    sides = [_as(side, schema_of(side), whole) for side in node.inputs]
    if isinstance(node, SetOp):
        return _with(node, left=sides[0], right=sides[1])
    return _with(node, inputs=tuple(sides))


def _as(side: Node, types: Mapping[str, str], wanted: Mapping[str, str]) -> Node:
    if all(types[c] == wanted[c] for c in side.columns):
        return side
    items = tuple(
        (c, column(c) if types[c] == wanted[c] else exp.cast(column(c), wanted[c], dialect=DIALECT))
        for c in side.columns
    )
    # Of one name above and below: in SQL, one SELECT is around the other.
    return Project(side, items)

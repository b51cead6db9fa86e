"""PIVOT as aggregates under conditions, and UNPIVOT as a union."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlglot
from sqlglot import exp

from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.query_tree import column
from lake_assets.models.sql.scopes import Scope, Uncompilable
from lake_assets.models.sql.sql_functions import aggregates

# Values of these types Spark pivots in two steps, in which combinations without rows become null.
_TWO_STEPS = (*exp.DataType.NUMERIC_TYPES, exp.DataType.Type.BOOLEAN)
# They are null over no rows, so that it makes no difference.
_NULL_OF_NOTHING = (exp.Sum, exp.Avg, exp.Min, exp.Max)
_COMPARED = (
    *exp.DataType.INTEGER_TYPES, *exp.DataType.TEXT_TYPES, exp.DataType.Type.DECIMAL, exp.DataType.Type.BOOLEAN,
    exp.DataType.Type.DATE,
)  # fmt: skip


def pivoted(node: op.Node, below: Scope, pivot: exp.Pivot, name: Callable[[str], str]) -> tuple[op.Node, list[op.Item]]:
    """Return the rows of a PIVOT or UNPIVOT, and its output columns by name.

    Raises:
        Uncompilable: its meaning depends on something that is not known, such as a type.
    """
    if len(pivot.args["fields"]) != 1 or not isinstance(pivot.args["fields"][0], exp.In):
        raise Uncompilable("PIVOT over several FOR")
    return (_unpivot if pivot.args.get("unpivot") else _pivot)(node, below, pivot, name)


def _pivot(node: op.Node, below: Scope, pivot: exp.Pivot, name: Callable[[str], str]) -> tuple[op.Node, list[op.Item]]:
    field = pivot.args["fields"][0]
    by = [_resolved(c, below) for c in _listed(field.this)]
    values = [[_constant(v) for v in _listed(_unaliased(e))] for e in field.expressions]
    results = [_resolved(e.unalias(), below) for e in pivot.expressions]
    names = [c.name for c in pivot.args.get("columns") or []]
    if len(names) != len(values) * len(results) or any(len(v) != len(by) for v in values):
        raise Uncompilable("PIVOT whose columns have no names")
    types = [c.type for c in by if c.type is not None and c.type.is_type(*_COMPARED)]
    if len(types) < len(by):
        raise Uncompilable("PIVOT over a column whose values are not compared exactly")
    if not (all(r.type and r.type.is_type(*_TWO_STEPS) for r in results) or
            all(isinstance(r, _NULL_OF_NOTHING) for r in results)):  # fmt: skip
        raise Uncompilable("PIVOT of values whose type is unknown, or that may be no numbers")
    used = {c.name for e in (*by, *results) for c in e.find_all(exp.Column)}
    keys = [(n, name(n), c) for (_, n), c in below.columns.items() if c.name not in used]
    calls: list[op.Item] = []
    outputs: list[op.Item] = []
    for n, (of, result) in enumerate((v, r) for v in values for r in results):
        pairs = zip(by, of, types, strict=True)
        condition = exp.and_(*(exp.EQ(this=c.copy(), expression=exp.cast(v.copy(), t)) for c, v, t in pairs))
        rows = name("rows")
        calls.append((rows, _under(exp.Count(this=exp.Star(), big_int=True), condition)))
        value = exp.Paren(this=result.copy())
        for call in aggregates(value):
            if call.find(exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls):
                raise Uncompilable(f"{call.sql(DIALECT)} in PIVOT")
            calls.append((name(call.key), _under(call, condition)))
            call.replace(column(calls[-1][0]))
        if not aggregates(result) or {c.name for c in value.find_all(exp.Column)} & used:
            raise Uncompilable(f"{result.sql(DIALECT)} in PIVOT: it is no aggregate")
        has_rows = exp.GT(this=column(rows), expression=exp.Literal.number(0))
        outputs.append((names[n], exp.Case(ifs=[exp.If(this=has_rows, true=value)])))
    node = op.Aggregate(node, tuple((new, c.copy()) for _, new, c in keys), tuple(calls))
    items = [(n, name(n), e) for n, e in (*((n, column(new)) for n, new, _ in keys), *outputs)]
    return op.Project(node, tuple((new, e) for _, new, e in items)), [(n, column(new)) for n, new, _ in items]


def _unpivot(
    node: op.Node, below: Scope, pivot: exp.Pivot, name: Callable[[str], str]
) -> tuple[op.Node, list[op.Item]]:
    field = pivot.args["fields"][0]
    columns = [[_resolved(c, below) for c in _listed(_unaliased(e))] for e in field.expressions]
    values = [i.name for v in pivot.expressions for i in _listed(v)]
    if any(not isinstance(c, exp.Column) for of in columns for c in of) or any(
        len(of) != len(values) for of in columns
    ):
        raise Uncompilable("UNPIVOT of something else than columns")
    unpivoted = {c.name for of in columns for c in of}
    kept = [(n, c) for (_, n), c in below.columns.items() if c.name not in unpivoted]
    outputs = [*(n for n, _ in kept), field.this.name, *values]
    internal = [name(n) for n in outputs]
    branches: list[op.Node] = []
    for entry, of in zip(field.expressions, columns, strict=True):
        label = entry.args["alias"].name if isinstance(entry, exp.PivotAlias) else "_".join(_names(entry))
        row = [*(c.copy() for _, c in kept), exp.Literal.string(label), *(c.copy() for c in of)]
        rows = node
        if not pivot.args.get("include_nulls"):
            is_null = [exp.Is(this=c.copy(), expression=exp.Null()) for c in of]
            rows = op.Filter(node, exp.Not(this=exp.Paren(this=exp.and_(*is_null))))
        branches.append(op.Project(rows, tuple(zip(internal, row, strict=True))))
    return (
        branches[0] if len(branches) == 1 else op.UnionAll(tuple(branches)),
        [(n, column(new)) for n, new in zip(outputs, internal, strict=True)],
    )


def _listed(part: exp.Expr) -> list[exp.Expr]:
    return list(part.expressions) if isinstance(part, exp.Tuple) else [part]


def _unaliased(entry: exp.Expr) -> exp.Expr:
    return entry.this if isinstance(entry, exp.PivotAlias) else entry


def _names(entry: exp.Expr) -> Sequence[str]:
    return [c.name for c in _listed(entry)]


def _resolved(expression: exp.Expr, below: Scope) -> exp.Expr:
    """Return an expression with the tree's columns."""
    if expression.find(exp.Query, exp.Window):
        raise Uncompilable(f"{expression.sql(DIALECT)} in PIVOT")
    return expression.copy().transform(lambda e: below.find(e) if isinstance(e, exp.Column) else e)


def _constant(value: exp.Expr) -> exp.Expr:
    if not isinstance(value, exp.Literal | exp.Boolean | exp.Neg | exp.Cast) or value.find(exp.Column, exp.Null):
        raise Uncompilable(f"{value.sql(DIALECT)} in PIVOT: it is no plain value")
    return value


def _under(call: exp.Expr, condition: exp.Expr) -> exp.Expr:
    """Return an aggregate of the rows that meet a condition."""
    return sqlglot.parse_one(f"{call.sql(DIALECT)} FILTER (WHERE {condition.sql(DIALECT)})", dialect=DIALECT)

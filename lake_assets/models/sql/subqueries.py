"""Rewrite subqueries of one SELECT as joins: EXISTS, IN, NOT IN and scalar subqueries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from sqlglot import exp

from lake_assets.lake.spark_functions import is_generator
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.query_tree import column, equal, refs
from lake_assets.models.operators.unique_columns import unique
from lake_assets.models.sql.constant_rows import is_constant, is_single_row
from lake_assets.models.sql.operator_joins import filtered, joined
from lake_assets.models.sql.scopes import Uncompilable
from lake_assets.models.sql.sql_functions import aggregates, replaceable_text

if TYPE_CHECKING:
    from lake_assets.models.sql.compiler import Select

_NULL_OF_NOTHING = (
    exp.Sum, exp.Avg, exp.Min, exp.Max, exp.ArgMin, exp.ArgMax, exp.LogicalAnd, exp.LogicalOr, exp.Median, exp.Stddev,
    exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.AnyValue, exp.Any, exp.First, exp.Last,
)  # fmt: skip
_NULL_OF_NOTHING_NAMES = {"every", "some", "mean", "std", "percentile", "try_sum", "try_avg"}
Kind = Literal["semi", "anti", "null_anti"]


class Subqueries:
    """Rewrites the EXISTS, IN and scalar subqueries of one SELECT as joins."""

    def __init__(self, select: Select) -> None:
        self._select = select

    def filtered(self, node: op.Node, conditions: Sequence[exp.Expr]) -> op.Node:
        """Return `node` filtered by the conditions of a WHERE, which may contain subqueries."""
        plain = [self._select.resolved(c) for c in conditions if not c.find(exp.Query)]
        if self._select.scope.outer is not None and any(refs(c) - set(node.columns) for c in plain):
            raise Uncompilable("a subquery that groups or sorts, and reads columns of the query around it")
        node = filtered(node, plain)
        for condition in (c for c in conditions if c.find(exp.Query)):
            membership = _membership(condition)
            if membership:
                node = _semi_join(node, *self._matching(node, *membership))
            else:
                node, values = self.values(node, [condition], is_condition=True)
                node = filtered(node, [values[id(condition)]])
        return node

    def values(
        self, node: op.Node, expressions: Sequence[exp.Expr], *, is_condition: bool = False
    ) -> tuple[op.Node, dict[int, exp.Expr]]:
        """Return `node` with a column for each EXISTS, IN and scalar subquery.

        Args:
            is_condition: whether they are conditions of WHERE, where null counts as false.

        Returns:
            The node, and the rewritten form of each expression with subqueries, by the expression's `id`.
        """
        rewritten: dict[int, exp.Expr] = {}
        for expression in expressions:
            if not expression.find(exp.Query):
                continue
            copy = exp.Paren(this=expression.copy())
            placeholders: dict[str, exp.Expr] = {}

            def place(part: exp.Expr, value: exp.Expr, into: dict[str, exp.Expr] = placeholders) -> None:
                # A placeholder, so that the value is not resolved as a column of the query.
                into[f"held_{len(into)}"] = value
                part.replace(exp.Placeholder(this=f"held_{len(into) - 1}"))

            for part in [p for p in copy.find_all(exp.Exists, exp.In) if _is_outermost(p) and _membership(p)]:
                if isinstance(part, exp.In) and not _counts_null_as_false(part, is_condition=is_condition):
                    raise Uncompilable("IN with a subquery within an expression, in which null is not false")
                node, value = self._match(node, part)
                place(part, value)
            for sub in [s for s in copy.find_all(exp.Subquery) if _is_outermost(s)]:
                if not isinstance(sub.this, exp.Select) or isinstance(sub.parent, exp.In | exp.Any | exp.All):
                    raise Uncompilable(f"{type(sub.parent).__name__.upper()} with a subquery within an expression")
                node, value = self._value(node, sub.this)
                place(sub, value)
            resolved = self._select.resolved(copy)
            for placeholder in [m for m in resolved.find_all(exp.Placeholder) if m.name in placeholders]:
                placeholder.replace(placeholders[placeholder.name])
            rewritten[id(expression)] = resolved
        return node, rewritten

    # --- EXISTS, IN ---------------------------------------------------------------------------------------------

    def _match(self, node: op.Node, part: exp.Expr) -> tuple[op.Node, exp.Expr]:
        """Return `node` with a column for an EXISTS or IN of an expression, and the condition in its place."""
        membership = _membership(part)
        assert membership
        right, _, on = self._matching(node, *membership)
        pairs = [pair for c in on if (pair := equal(c, node.columns, right.columns))]
        if not on or len(pairs) < len(on):
            raise Uncompilable(
                "a subquery of EXISTS or IN within an expression, whose conditions are not all equalities"
            )
        name = self._select.compiler.name
        keys, is_matched = [(name("key"), y) for _, y in pairs], name("there")
        distinct = op.Distinct(op.Project(right, tuple(keys)))
        matched = op.Project(distinct, (*((n, column(n)) for n, _ in keys), (is_matched, exp.true())))
        on_keys = (exp.EQ(this=_wrapped(x), expression=column(n)) for (x, _), (n, _) in zip(pairs, keys, strict=True))
        is_missing = exp.Is(this=column(is_matched), expression=exp.Null())
        return op.SideJoin(node, matched, "left", tuple(on_keys)), exp.Paren(
            this=exp.Not(this=exp.Paren(this=is_missing))
        )

    def _matching(
        self, node: op.Node, kind: Kind, left: exp.Expr | None, query: exp.Expr
    ) -> tuple[op.Node, Kind, tuple[exp.Expr, ...]]:
        """Return the rows of the subquery of an EXISTS or IN, the kind of its join, and the conditions of the join."""
        select = self._select
        on: list[exp.Expr] = []
        if isinstance(query, exp.Select) and not _is_computed(query):
            inner = select.inner(query)
            right, on = inner.correlated()
            outputs = [inner.resolved(s.unalias()) for s in query.selects] if left is not None else []
        else:
            below = select.compiler.query(query, select.ctes, select.scope)
            right, outputs = below.node, [column(c) for _, c in below.outputs]
        if left is not None:
            values = list(left.expressions) if isinstance(left, exp.Tuple) else [left]
            if kind == "null_anti" and len(values) > 1:
                raise Uncompilable("NOT IN of several columns")
            if len(values) != len(outputs):
                raise Uncompilable("IN of another number of columns than the subquery has")
            for value, output in zip(values, outputs, strict=True):
                resolved_value = select.resolved(value)
                if refs(resolved_value) - set(node.columns) or refs(output) - set(right.columns):
                    raise Uncompilable("IN over columns of several queries")
                if kind == "null_anti" and not (refs(resolved_value) and refs(output)):
                    raise Uncompilable("NOT IN of a constant")
                on.insert(0, exp.EQ(this=_wrapped(resolved_value), expression=_wrapped(output)))
        visible = {*node.columns, *right.columns}
        if outside := {n for c in on for n in refs(c)} - visible:
            raise Uncompilable(
                f"a subquery over {', '.join(sorted(outside))} of a query that is not the next outer one"
            )
        return right, kind, tuple(on)

    # --- scalar subqueries --------------------------------------------------------------------------------------

    def _value(self, node: op.Node, query: exp.Select) -> tuple[op.Node, exp.Expr]:
        select = self._select
        calls = aggregates(query.selects[0]) if len(query.selects) == 1 else []
        if is_constant(query, select.ctes) and not query.args.get("with_"):
            row = select.compiler.query(query, select.ctes, None)
            if len(row.outputs) == 1 and frozenset() in unique(row.node):
                value = column(row.outputs[0][1])
                is_certain = is_single_row(row.node)
                return joined(node, row.node, []) if is_certain else op.SideJoin(node, row.node, "left", ()), value
        parts = ("group", "having", "distinct", "qualify", "limit", "offset")
        if not calls or any(query.args.get(p) for p in parts) or query.find(exp.Window):
            raise Uncompilable("a scalar subquery that is not a single aggregate: it may return several rows")
        inner = select.inner(query)
        below, on = inner.correlated()
        name = select.compiler.name
        keys: list[op.Item] = []
        outside: list[exp.Expr] = []
        for condition in on:
            pair = equal(condition, below.columns, node.columns)
            if pair is None:
                raise Uncompilable(f"{condition.sql(DIALECT)} between a scalar subquery and the query around it")
            keys.append((name("key"), pair[0]))
            outside.append(pair[1])
        item = query.selects[0].unalias()
        named = {c.sql(DIALECT): (name(c.key), inner.resolved(c)) for c in aggregates(item)}
        if any(refs(e) - set(below.columns) for _, e in named.values()):
            raise Uncompilable("an aggregate over columns of the query around it")

        def over(empty: bool) -> exp.Expr:
            def replace_call(part: exp.Expr) -> exp.Expr:
                call = named.get(replaceable_text(part))
                if call is None:
                    return part
                return of_nothing[call[0]].copy() if empty else column(call[0])

            return exp.Paren(this=item.copy()).transform(replace_call)

        total = op.Aggregate(below, tuple(keys), tuple(named.values()))
        full, value, is_matched = over(False), name("value"), name("there")
        if refs(full) - {n for n, _ in named.values()}:
            raise Uncompilable("a scalar subquery over columns that it does not aggregate")
        if not keys:
            return joined(node, op.Project(total, ((value, full),)), []), column(value)
        items = (*((n, column(n)) for n, _ in keys), (value, full), (is_matched, exp.true()))
        of_nothing = {n: self._of_nothing(c) for n, c in named.values()}
        pairs = tuple(exp.EQ(this=_wrapped(o), expression=column(n)) for o, (n, _) in zip(outside, keys, strict=True))
        right = op.Project(total, items)
        result = exp.If(
            this=exp.Is(this=column(is_matched), expression=exp.Null()), true=over(True), false=column(value)
        )
        return op.SideJoin(node, right, "left", pairs), exp.Paren(this=result)

    # --- LATERAL ------------------------------------------------------------------------------------------------

    def lateral(
        self, node: op.Node, query: exp.Expr, *, is_outer: bool
    ) -> tuple[op.Node, list[tuple[str, exp.Column]]]:
        """Join `node` with a LATERAL subquery, which reads its columns.

        Returns:
            The joined rows, and name and column of each output of the subquery.
        """
        select = self._select
        if not isinstance(query, exp.Select) or query.args.get("distinct"):
            raise Uncompilable("a LATERAL subquery that is not a plain SELECT")
        if not _is_computed(query):
            inner = select.inner(query)
            right, on = inner.correlated()
            values = [(s.alias_or_name, inner.resolved(s.unalias())) for s in query.selects]
            if any(refs(e) - set(right.columns) for _, e in values):
                raise Uncompilable("a LATERAL subquery that selects columns of the query around it")
            named = [(n, select.compiler.name(n or "value"), e) for n, e in values]
            right = op.Project(right, (*((c, column(c)) for c in right.columns), *((new, e) for _, new, e in named)))
            outputs = [(n, column(new)) for n, new, _ in named]
            return op.SideJoin(node, right, "left", tuple(on)) if is_outer else joined(node, right, on), outputs
        columns, values = node.columns, list[tuple[str, str, exp.Expr]]()
        for item in query.selects:
            single = query.copy()
            single.set("expressions", [item.copy()])
            # An aggregate without GROUP BY has one row, whatever it matches.
            node, value = self._value(node, single)
            values.append((item.alias_or_name, select.compiler.name(item.alias_or_name or "value"), value))
        node = op.Project(node, (*((c, column(c)) for c in columns), *((new, e) for _, new, e in values)))
        return node, [(n, column(new)) for n, new, _ in values]

    def _of_nothing(self, call: exp.Expr) -> exp.Expr:
        """Return the value of an aggregate over no rows."""
        bare = call
        while isinstance(bare, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
            bare = bare.this
        if isinstance(bare, exp.Count | exp.CountIf):
            return exp.Literal.number(0)
        if not isinstance(bare, _NULL_OF_NOTHING) and bare.name.lower() not in _NULL_OF_NOTHING_NAMES:
            raise Uncompilable(f"{call.sql(DIALECT)} in a scalar subquery: its value over no rows is unknown")
        return exp.Null()


def _membership(condition: exp.Expr) -> tuple[Kind, exp.Expr | None, exp.Expr] | None:
    """Return the kind of join for EXISTS, IN or their negation, the value and the subquery; None for other
    conditions."""
    negative = False
    while isinstance(condition, exp.Paren | exp.Not):
        negative ^= isinstance(condition, exp.Not)
        condition = condition.this
    if isinstance(condition, exp.Exists):
        query = condition.this
        return ("anti" if negative else "semi"), None, query.this if isinstance(query, exp.Subquery) else query
    if isinstance(condition, exp.In) and (sub := condition.args.get("query")) and not condition.this.find(exp.Query):
        query = sub.this if isinstance(sub, exp.Subquery) else sub
        return ("null_anti" if negative else "semi"), condition.this, query
    return None


def _counts_null_as_false(part: exp.Expr, *, is_condition: bool) -> bool:
    """Whether a part of an expression may be false instead of null: only AND and OR separate it from WHERE or WHEN."""
    while isinstance(part.parent, exp.And | exp.Or | exp.Paren):
        part = part.parent
    around = part.parent
    if isinstance(around, exp.If) and part.arg_key == "this":
        return not (isinstance(around.parent, exp.Case) and around.parent.this)
    return around is None and is_condition


def _is_computed(query: exp.Select) -> bool:
    """Whether a subquery does more than FROM and WHERE: it groups, limits, or generates rows."""
    parts = ("group", "having", "qualify", "limit", "offset")
    return (
        any(query.args.get(p) for p in parts)
        or any(aggregates(s) for s in query.selects)
        or any(s.find(exp.Window) for s in query.selects)
        or any(is_generator(n) for s in query.selects for n in s.walk())
    )


def _is_outermost(sub: exp.Expr) -> bool:
    return sub.find_ancestor(exp.Query) is None


def _wrapped(expression: exp.Expr) -> exp.Expr:
    plain = isinstance(expression, exp.Column | exp.Literal | exp.Func | exp.Paren)
    return expression.copy() if plain else exp.Paren(this=expression.copy())


def _semi_join(node: op.Node, right: op.Node, kind: Kind, on: tuple[exp.Expr, ...]) -> op.Node:
    """Return a semi or anti join; below an inner join if its conditions concern a single input of it."""
    if isinstance(node, op.InnerJoin):
        used = {n for c in on for n in refs(c)} & set(node.columns)
        for i, below in enumerate(node.inputs):
            if used and used <= set(below.columns):
                joined = _semi_join(below, right, kind, on)
                return op.InnerJoin((*node.inputs[:i], joined, *node.inputs[i + 1 :]), node.on)
    return op.SideJoin(node, right, kind, on)

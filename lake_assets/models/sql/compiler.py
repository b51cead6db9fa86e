"""Compile a qualified query to operators."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from lake_assets.lake import TableId
from lake_assets.lake.spark_functions import is_generator, is_wide
from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.operator_types import short_type
from lake_assets.models.operators.query_tree import column, conjuncts, expressions, refs, walk, with_inputs
from lake_assets.models.sql.constant_rows import constant_rows
from lake_assets.models.sql.grouped_subqueries import over_groups
from lake_assets.models.sql.grouping_sets import grouped, grouping, grouping_call
from lake_assets.models.sql.operator_joins import filtered, joined
from lake_assets.models.sql.pivots import pivoted
from lake_assets.models.sql.scopes import Closed, Compiled, Ctes, Scope, Uncompilable
from lake_assets.models.sql.sql_functions import aggregates, replaceable_text
from lake_assets.models.sql.subqueries import Subqueries
from lake_assets.models.sql.time_windows import check_no_time_window, with_time_window
from lake_assets.models.sql.using_joins import is_in_parentheses
from lake_assets.models.sql.window_functions import windowed

Keys = Callable[[TableId], Sequence[Sequence[str]]]


def compiled(query: exp.Query, schemas: Mapping[TableId, Mapping[str, str]], keys: Keys) -> op.Tree:
    """Return the operators of a query.

    Args:
        query: a qualified query: columns with their tables, outputs with names, stars expanded, types annotated.
        keys: returns sets of columns that each identify a row of a table.

    Raises:
        Uncompilable: a part of the query cannot be maintained; the message says which.
    """
    compiler = Compiler(schemas, keys)
    try:
        result = compiler.query(query, {}, None)
    except Uncompilable as e:
        raise Uncompilable(compiler.with_query_names(str(e))) from e
    return _narrowed(op.Tree(result.node, dict(result.outputs)))


def _narrowed(tree: op.Tree) -> op.Tree:
    """Return the tree, reading only the columns of tables that it uses."""
    used = set(tree.outputs.values()) | {n for node in walk(tree.root) for e in expressions(node) for n in refs(e)}

    def narrow(node: op.Node) -> op.Node:
        if not isinstance(node, op.Scan):
            return with_inputs(node, [narrow(i) for i in node.inputs])
        used_fields = {n: c for n, c in node.fields.items() if n in used}
        first = dict(list(node.fields.items())[:1])
        return replace(node, fields=used_fields or first)

    return op.Tree(narrow(tree.root), tree.outputs)


class Compiler:
    """Compiles the SELECTs of one query; generates unique column names."""

    def __init__(self, schemas: Mapping[TableId, Mapping[str, str]], keys: Keys) -> None:
        self._schemas, self._keys = schemas, keys
        self._number = itertools.count(1)
        self._like: dict[str, str] = {}

    def name(self, like: str) -> str:
        """Return a unique column name: the given name with a number."""
        like = self._like.get(like, like)
        name = f"{like}_{next(self._number)}"
        self._like[name] = like
        return name

    def with_query_names(self, message: str) -> str:
        """Return a message with the query's column names in place of the tree's unique names."""
        return re.sub(r"`?(\w+_\d+)`?", lambda m: self._like.get(m[1], m[0]), message)

    # --- queries ------------------------------------------------------------------------------------------------

    def query(self, query: exp.Expr, ctes: Ctes, outer: Scope | None) -> Compiled:
        """Compile a SELECT, or a set operation."""
        with_ = query.args.get("with_")
        if with_ is not None:
            if with_.args.get("recursive"):
                raise Uncompilable("a recursive CTE")
            ctes = dict(ctes)
            for cte in with_.expressions:
                ctes[cte.alias.lower()] = Closed(cte.this, dict(ctes))
        if query.args.get("limit") or query.args.get("offset"):
            raise Uncompilable("LIMIT: any changed row can change which rows are first")
        match query:
            case exp.Select():
                return Select(self, query, ctes, outer).compiled()
            case exp.Subquery():
                return self.query(query.this, ctes, outer)
            case exp.SetOperation():
                return self._set(query, ctes, outer)
            case _:
                raise Uncompilable(f"{type(query).__name__.upper()} instead of a SELECT")

    def _set(self, query: exp.SetOperation, ctes: Ctes, outer: Scope | None) -> Compiled:
        if query.args.get("by_name") or query.side or query.kind:
            raise Uncompilable("a set operation by name")
        sides = [self.query(side, ctes, outer) for side in (query.left, query.right)]
        names = [(n, self.name(n)) for n, _ in sides[0].outputs]
        if len(sides[1].outputs) != len(names):
            raise Uncompilable("a set operation of queries with different numbers of columns")
        left, right = (
            op.Project(s.node, tuple((new, column(old)) for (_, new), (_, old) in zip(names, s.outputs, strict=True)))
            for s in sides
        )
        distinct = bool(query.args.get("distinct"))
        node: op.Node
        if isinstance(query, exp.Union):
            node = op.UnionAll((left, right))
            node = op.Distinct(node) if distinct else node
        else:
            kind = "INTERSECT" if isinstance(query, exp.Intersect) else "EXCEPT"
            node = op.SetOp(left, right, kind, all=not distinct)
        return Compiled(node, tuple(names))

    # --- sources of FROM ----------------------------------------------------------------------------------------

    def source(self, source: exp.Expr, ctes: Ctes, scope: Scope) -> op.Node:
        """Compile a table, CTE or subquery of FROM or JOIN, and add its columns to `scope`."""
        for part in ("joins", "laterals", "sample", "version", "when"):
            if source.args.get(part):
                raise Uncompilable(f"{part.upper()} on {source.alias_or_name or 'a table'}")
        alias = source.alias_or_name
        if pivots := source.args.get("pivots"):
            if not isinstance(source.parent, exp.From):
                # Spark may apply it to the joined rows.
                raise Uncompilable(f"PIVOT after {source.alias_or_name or 'a joined table'}")
            plain, below = source.copy(), Scope()
            plain.set("pivots", pivots[1:])
            node, columns = pivoted(self.source(plain, ctes, below), below, pivots[0], self.name)
            scope.add(pivots[0].alias or alias, ((n, c.name) for n, c in columns))
            return node
        if isinstance(source, exp.Table) and source.db:
            table = TableId((source.db,), source.name)
            types = self._schemas[table]
            fields = {self.name(c): c for c in types}
            back = {c.lower(): n for n, c in fields.items()}
            unique = tuple(frozenset(back[c.lower()] for c in k) for k in self._keys(table))
            scope.add(alias, ((c, n) for n, c in fields.items()))
            return op.Scan(table, alias, fields, unique, {n: short_type(types[c]) for n, c in fields.items()})
        if isinstance(source, exp.Table):
            closed = ctes.get(source.name.lower())
            if closed is None:
                raise Uncompilable(f"{source.sql(DIALECT)} is not a table")
            below = self.query(closed.query, closed.ctes, None)
        elif isinstance(source, exp.Values):
            below = constant_rows(source, self.name)
        elif isinstance(source, exp.Subquery):
            below = self.query(source.this, ctes, None)
        else:
            raise Uncompilable(f"{source.sql(DIALECT)[:60]} instead of a table")
        renamed = [c.name for c in (source.args["alias"].args.get("columns") or [])] if source.args.get("alias") else []
        outputs = [(renamed[i] if renamed else n, c) for i, (n, c) in enumerate(below.outputs)]
        scope.add(alias, outputs)
        return below.node


class Select:
    """Compiles one SELECT to operators."""

    def __init__(self, compiler: Compiler, select: exp.Select, ctes: Ctes, outer: Scope | None) -> None:
        self.compiler, self.select, self.ctes = compiler, select, ctes
        self.scope = Scope(outer=outer)
        for part in ("pivots", "sample", "windows", "into", "match", "connect", "prewhere", "cluster", "distribute"):
            if select.args.get(part):
                raise Uncompilable("a WINDOW clause" if part == "windows" else part.upper())
        self.subqueries = Subqueries(self)
        self.grouping_id = compiler.name("grouping_id")

    def inner(self, query: exp.Select) -> Select:
        """Return the compilation of a subquery, which may name columns of this SELECT."""
        if query.args.get("with_"):
            raise Uncompilable("a CTE within a subquery of a condition")
        return Select(self.compiler, query, self.ctes, self.scope)

    def resolved(self, expression: exp.Expr) -> exp.Expr:
        """Return an expression with the tree's columns; raise Uncompilable for a star or a subquery in it."""

        def resolve(node: exp.Expr) -> exp.Expr:
            return self.scope.find(node) if isinstance(node, exp.Column) else node

        for star in expression.find_all(exp.Star):
            if not (isinstance(star.parent, exp.Count) and star.arg_key == "this"):
                raise Uncompilable(f"a star in {(star.parent or star).sql(DIALECT)}")
        if expression.find(exp.Query):
            raise Uncompilable("a subquery that is neither a condition of WHERE nor a scalar subquery")
        check_no_time_window(expression)
        return expression.copy().transform(resolve)

    def compiled(self) -> Compiled:
        """Compile the SELECT."""
        select = self.select
        if (outer := over_groups(select)) is not None:
            return Select(self.compiler, outer, self.ctes, self.scope.outer).compiled()
        node = self._from()
        where = select.args.get("where")
        node = self.subqueries.filtered(node, conjuncts(where.this if where else None))
        node, self.select = with_time_window(self, node)
        items = [(s.alias_or_name, s.unalias()) for s in self.select.selects]
        node, rewritten = self.subqueries.values(node, [e for _, e in items])
        items = [(n, rewritten.get(id(e)) or self.resolved(e)) for n, e in items]
        having, qualify = (self._clause(c) for c in ("having", "qualify"))
        node, items, having, qualify = self._grouped(node, items, having, qualify)
        if having is not None:
            node = filtered(node, conjuncts(having))
        node, items, qualify = windowed(node, items, qualify, self.compiler.name)
        node, items = self._generated(node, items)
        if qualify is not None:
            node = filtered(node, conjuncts(qualify))
        outputs = [(n, self.compiler.name(n or "c")) for n, _ in items]
        for _, e in items:
            if missing := refs(e) - set(node.columns):
                raise Uncompilable(f"{', '.join(sorted(missing))} is neither grouped by nor aggregated")
        node = op.Project(node, tuple((new, e) for (_, new), (_, e) in zip(outputs, items, strict=True)))
        if distinct := select.args.get("distinct"):
            if distinct.args.get("on"):
                raise Uncompilable("DISTINCT ON")
            node = op.Distinct(node)
        return Compiled(node, tuple(outputs))

    def _generated(self, node: op.Node, items: list[op.Item]) -> tuple[op.Node, list[op.Item]]:
        """Rewrite a generator in the list of SELECT as a LATERAL VIEW."""
        positions = [i for i, (_, e) in enumerate(items) if any(map(is_generator, e.walk()))]
        if not positions:
            return node, items
        name, call = items[positions[0]]
        if len(positions) > 1 or not is_generator(call) or is_wide(call):
            raise Uncompilable(f"{call.sql(DIALECT)} nested in a selected expression")
        if isinstance(node, op.Window):
            # Which of the two Spark evaluates first depends on the rest of the query.
            raise Uncompilable(f"{call.sql(DIALECT)} together with a window function")
        if missing := refs(call) - set(node.columns):
            raise Uncompilable(f"{', '.join(sorted(missing))} is neither grouped by nor aggregated")
        generated = self.compiler.name(name or "made")
        items[positions[0]] = (name, column(generated))
        return op.Generate(node, call, (generated,), outer=False), items

    def correlated(self) -> tuple[op.Node, list[exp.Expr]]:
        """Compile FROM and WHERE of a subquery; return them, and the conditions that read columns of the outer
        query."""
        node = self._from()
        where = self.select.args.get("where")
        conditions = conjuncts(where.this if where else None)
        nested = [c for c in conditions if c.find(exp.Query)]
        plain = [self.resolved(c) for c in conditions if not c.find(exp.Query)]
        node = filtered(node, [c for c in plain if refs(c) <= set(node.columns)])
        outside = [c for c in plain if not refs(c) <= set(node.columns)]
        return self.subqueries.filtered(node, nested), outside

    def _clause(self, name: str) -> exp.Expr | None:
        clause = self.select.args.get(name)
        return self.resolved(clause.this) if clause else None

    # --- FROM ---------------------------------------------------------------------------------------------------

    def _from(self) -> op.Node:
        source = self.select.args.get("from_")
        node = self._source(source.this) if source else op.Unit(self.compiler.name("unit"))
        for join in self.select.args.get("joins") or []:
            node = self._join(node, join)
        for lateral in self.select.args.get("laterals") or []:
            node = self._lateral(node, lateral)
        return node

    def _source(self, source: exp.Expr) -> op.Node:
        if not is_in_parentheses(source) or source.alias:
            return self.compiler.source(source, self.ctes, self.scope)
        first = source.this.copy()
        first.set("joins", None)
        node = self._source(first)
        for join in source.this.args.get("joins") or []:
            node = self._join(node, join)
        return node

    def _join(self, left: op.Node, join: exp.Join) -> op.Node:
        side, kind = join.side.upper(), join.kind.upper()
        if join.args.get("using") or join.method:
            raise Uncompilable("a join with USING or NATURAL")
        if isinstance(join.this, exp.Lateral):
            return self._lateral_join(left, join)
        if isinstance(join.this, exp.Unnest):
            raise Uncompilable("a join with UNNEST")
        if kind not in ("", "INNER", "CROSS", "OUTER") or (kind == "OUTER" and not side):
            raise Uncompilable(f"a {side} {kind} JOIN")
        right = self._source(join.this)
        on = [self.resolved(c) for c in conjuncts(join.args.get("on"))]
        if outside := {n for c in on for n in refs(c)} - {*left.columns, *right.columns}:
            raise Uncompilable(f"a join over {', '.join(sorted(outside))} of the query around it")
        match side:
            case "":
                return joined(left, right, on)
            case "LEFT":
                return op.SideJoin(left, right, "left", tuple(on))
            case "RIGHT":
                return op.SideJoin(right, left, "left", tuple(on))
            case "FULL":
                return op.FullJoin(left, right, tuple(on))
            case _:
                raise Uncompilable(f"a {side} JOIN")

    def _lateral_join(self, left: op.Node, join: exp.Join) -> op.Node:
        on, side = join.args.get("on"), join.side.upper()
        if side not in ("", "LEFT") or not (on is None or (isinstance(on, exp.Boolean) and on.this)):
            raise Uncompilable("a LATERAL join with a condition: put it into the WHERE of the subquery")
        lateral = join.this
        if not isinstance(lateral.this, exp.Subquery):
            return self._lateral(left, lateral, outer=side == "LEFT")
        node, outputs = self.subqueries.lateral(left, lateral.this.this, is_outer=side == "LEFT")
        names = [c.name for c in lateral.args["alias"].columns] or [n for n, _ in outputs]
        self.scope.add(lateral.alias, zip(names, (c.name for _, c in outputs), strict=True))
        return node

    def _lateral(self, node: op.Node, lateral: exp.Lateral, *, outer: bool = False) -> op.Node:
        alias = lateral.args.get("alias")
        if alias is None or not alias.columns:
            raise Uncompilable("LATERAL without names for its columns")
        call = self.resolved(lateral.this)
        generated = tuple(self.compiler.name(c.name) for c in alias.columns)
        self.scope.add(alias.name, zip((c.name for c in alias.columns), generated, strict=True))
        return op.Generate(node, call, generated, outer or bool(lateral.args.get("outer")))

    # --- GROUP BY -----------------------------------------------------------------------------------------------

    def _grouped(
        self, node: op.Node, items: list[op.Item], having: exp.Expr | None, qualify: exp.Expr | None
    ) -> tuple[op.Node, list[op.Item], exp.Expr | None, exp.Expr | None]:
        group = self.select.args.get("group")
        parts = [*(e for _, e in items), *(c for c in (having, qualify) if c is not None)]
        calls = [c for p in parts for c in aggregates(p)]
        if group is None and not calls and having is None:
            return node, items, having, qualify
        if any(c.find(exp.Window) for c in calls):
            raise Uncompilable("a window function within an aggregate")
        grouping_keys = grouping(group, [e for _, e in items], self.resolved)
        keys = [(self.compiler.name(e.name if isinstance(e, exp.Column) else "key"), e) for e in grouping_keys.keys]
        named: dict[str, op.Item] = {}
        for call in calls:
            named.setdefault(call.sql(DIALECT), (self.compiler.name(call.key), call.copy()))
        by_text = {text: name for text, (name, _) in named.items()}
        key_of = {e.sql(DIALECT): n for n, e in keys}
        node = grouped(node, grouping_keys, keys, tuple(named.values()), self.grouping_id)

        def replaced(expression: exp.Expr) -> exp.Expr:
            def replace_part(part: exp.Expr) -> exp.Expr:
                text = replaceable_text(part)
                if (name := by_text.get(text)) or (name := key_of.get(text)):
                    new = column(name)
                    new.type = part.type
                    return new
                if isinstance(part, exp.GroupingId | exp.Grouping):
                    return grouping_call(part, grouping_keys, keys, self.grouping_id)
                return part

            return expression.copy().transform(replace_part)

        new_items = [(n, replaced(e)) for n, e in items]
        new_clauses = [replaced(c) if c is not None else None for c in (having, qualify)]
        return node, new_items, new_clauses[0], new_clauses[1]

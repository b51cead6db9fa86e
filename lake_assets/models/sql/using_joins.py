"""Rewrite joins with USING and NATURAL as Spark reads them: with ON, explicit joined columns, and stars in its order.

sqlglot writes a joined column as `COALESCE` over all tables that have it, and compares the next table with the first
one. After a RIGHT or FULL JOIN that is another value, and another type if the types of both sides differ.

Source: `commonNaturalJoinProcessing` and `UnresolvedStar` in Spark's analyzer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from lake_assets.lake import TableId
from lake_assets.lake.sql_text import DIALECT


class _Unknown(Exception):
    """Columns that cannot be determined without Spark."""


@dataclass(frozen=True)
class _VisibleColumn:
    """A visible column: its name, its expression, and the table that can qualify it."""

    name: str
    value: exp.Expr
    table: str | None

    def is_called(self, name: str) -> bool:
        return self.name.lower() == name.lower()


@dataclass(frozen=True)
class _Relation:
    """The columns of a FROM clause.

    Attributes:
        visible: the columns in the order of `*`.
        hidden: columns of USING that can only be named with their table.
        joined: names that USING joins.
    """

    visible: tuple[_VisibleColumn, ...]
    hidden: tuple[_VisibleColumn, ...] = ()
    joined: frozenset[str] = frozenset()

    def named(self, name: str) -> list[_VisibleColumn]:
        return [c for c in self.visible if c.is_called(name)]

    def of(self, table: str) -> list[_VisibleColumn]:
        """Return the columns in the order of `table.*`."""
        return [c for c in (*self.hidden, *self.visible) if (c.table or "").lower() == table.lower()]


# Called for each join with the relations on its left and right.
_Note = Callable[[exp.Join, _Relation, _Relation], None]


def using_as_on(query: exp.Query, schemas: Mapping[TableId, Sequence[str]]) -> tuple[exp.Query, str]:
    """Rewrite USING and NATURAL in place.

    Returns:
        The query, and the part that cannot be rewritten; empty if all of it can.
    """
    obstacle = ""
    names = _Names(schemas)
    # Inner queries first: their outputs must not change while outer queries read them.
    for n, select in enumerate(reversed(list(query.find_all(exp.Select)))):
        if any(_is_by_name(j) for j in _joins(select)):
            try:
                _name_sources(select, f"__from{n}_")
                _rewrite(select, names)
            except _Unknown as e:
                obstacle = f"it has a join with USING or NATURAL with {e} (write ON)"
    return query, obstacle


def _is_by_name(join: exp.Join) -> bool:
    return bool(join.args.get("using")) or join.method.upper() == "NATURAL"


def is_in_parentheses(source: exp.Expr) -> bool:
    """Whether a source is a join in parentheses; without an alias, its tables are visible outside."""
    if not isinstance(source, exp.Subquery):
        return False
    within = source.this
    return isinstance(within, exp.Table) or (
        isinstance(within, exp.Subquery) and bool(within.alias or within.args.get("joins"))
    )


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the tables and subqueries of FROM, including those in joins in parentheses."""
    from_ = select.args.get("from_")
    pending = [*([from_.this] if from_ else []), *(j.this for j in select.args.get("joins") or [])]
    while pending:
        source = pending.pop()
        if is_in_parentheses(source):
            pending += [source.this, *(j.this for j in source.this.args.get("joins") or [])]
        else:
            yield source


def _joins(select: exp.Select) -> Iterator[exp.Join]:
    yield from select.args.get("joins") or []
    for source in _sources(select):
        yield from source.args.get("joins") or []


def _name_sources(select: exp.Select, prefix: str) -> None:
    for n, source in enumerate(s for s in _sources(select) if not s.alias_or_name):
        alias = source.args.get("alias") or exp.TableAlias()
        alias.set("this", exp.to_identifier(f"{prefix}{n}"))
        source.set("alias", alias)


class _Names:
    """Looks up the columns of the sources of queries."""

    def __init__(self, schemas: Mapping[TableId, Sequence[str]]) -> None:
        self.schemas = {(t.namespace[0].lower(), t.name.lower()): list(c) for t, c in schemas.items()}

    def outputs(self, query: exp.Expr) -> list[str]:
        """Return the names of a query's output columns; empty for a column without a name."""
        if isinstance(query, exp.Subquery):
            return self.outputs(query.this)
        if isinstance(query, exp.SetOperation) and not query.args.get("by_name"):
            return self.outputs(query.left)
        if not isinstance(query, exp.Select):
            raise _Unknown(query.key.upper())
        names: list[str] = []
        for item in query.selects:
            if item.is_star:
                names += [c.name for c in _starred(item, self.relation(query))]
            elif isinstance(item, exp.Aliases):
                raise _Unknown(item.sql(DIALECT))
            else:
                names.append(item.output_name)
        return names

    def relation(self, select: exp.Select, note: _Note | None = None) -> _Relation:
        from_ = select.args.get("from_")
        if from_ is None:
            return _Relation(())
        relation = self._folded(self._source(from_.this, note), select.args.get("joins"), note)
        for lateral in select.args.get("laterals") or []:
            alias = lateral.args.get("alias")
            if alias is None or not alias.columns:
                raise _Unknown("LATERAL VIEW without names of its columns")
            generated = tuple(
                _VisibleColumn(c.name, exp.column(c.copy(), table=alias.this.copy()), alias.name) for c in alias.columns
            )
            relation = replace(relation, visible=(*relation.visible, *generated))
        return relation

    def _source(self, source: exp.Expr, note: _Note | None) -> _Relation:
        if is_in_parentheses(source):
            if source.alias:
                raise _Unknown("a join in parentheses that has a name")
            return self._folded(self._source(source.this, note), source.this.args.get("joins"), note)
        if source.args.get("pivots") or not isinstance(source, exp.Table | exp.Subquery | exp.Values):
            raise _Unknown(source.sql(DIALECT))
        alias = source.args.get("alias")
        names = [c.name for c in alias.columns] if isinstance(alias, exp.TableAlias) else []
        if not names and isinstance(source, exp.Subquery):
            names = self.outputs(source.this)
        elif not names and isinstance(source, exp.Table):
            names = (
                self.schemas.get((source.db.lower(), source.name.lower()), []) if source.db else self._common(source)
            )
        if not names:
            raise _Unknown(source.sql(DIALECT))
        table = alias.this if isinstance(alias, exp.TableAlias) and alias.this else source.this
        if not isinstance(table, exp.Identifier):
            # A source without a name: its columns can only be named without a table.
            return _Relation(tuple(_VisibleColumn(n, exp.column(exp.to_identifier(n)), None) for n in names))
        return _Relation(
            tuple(_VisibleColumn(n, exp.column(exp.to_identifier(n), table=table.copy()), table.name) for n in names)
        )

    def _common(self, table: exp.Table) -> list[str]:
        """Return the columns of a common table expression."""
        parent_query: exp.Expr | None = table
        while parent_query is not None:
            with_ = parent_query.args.get("with_")
            for cte in with_.expressions if with_ else []:
                if cte.alias.lower() == table.name.lower():
                    return [c.name for c in cte.args["alias"].columns] or self.outputs(cte.this)
            parent_query = parent_query.parent
        return []

    def _folded(self, left: _Relation, joins: Sequence[exp.Join] | None, note: _Note | None) -> _Relation:
        for join in joins or []:
            right = self._source(join.this, note)
            if note:
                note(join, left, right)
            left = self._joined(left, right, join)
        return left

    def _joined(self, left: _Relation, right: _Relation, join: exp.Join) -> _Relation:
        half = join.kind.upper() in ("SEMI", "ANTI")
        hidden = left.hidden if half else (*left.hidden, *right.hidden)
        if not _is_by_name(join):
            visible = left.visible if half else (*left.visible, *right.visible)
            return _Relation(visible, hidden, left.joined | right.joined)
        lefts, rights = _keys(left, right, join)
        others = [c for c in left.visible if c not in lefts]
        others += [] if half else [c for c in right.visible if c not in rights]
        keys, hides = lefts, [] if half else rights
        if join.side.upper() == "RIGHT":
            keys, hides = rights, lefts
        elif join.side.upper() == "FULL":
            keys = [
                _VisibleColumn(a.name, exp.func("coalesce", a.value.copy(), b.value.copy()), None)
                for a, b in zip(lefts, rights, strict=True)
            ]
            hides = [*lefts, *rights]
        names = {k.name.lower() for k in keys}
        return _Relation((*keys, *others), (*hides, *hidden), left.joined | right.joined | names)


def _keys(left: _Relation, right: _Relation, join: exp.Join) -> tuple[list[_VisibleColumn], list[_VisibleColumn]]:
    """Return the columns that a join by name compares, in order."""
    names = [u.name for u in join.args.get("using") or []]
    if not names:
        # Only here, Spark distinguishes names that differ in case.
        both = {c.name for c in right.visible if c.name}
        names = list(dict.fromkeys(c.name for c in left.visible if c.name in both))
    pairs = [(left.named(n), right.named(n)) for n in names]
    if ambiguous := [n for n, (a, b) in zip(names, pairs, strict=True) if len(a) != 1 or len(b) != 1]:
        raise _Unknown(f"{', '.join(ambiguous)}, which a side lacks or has twice")
    return [a[0] for a, _ in pairs], [b[0] for _, b in pairs]


def _starred(star: exp.Expr, relation: _Relation) -> list[_VisibleColumn]:
    """Return the columns of `*` or `table.*`."""
    inner = star.this if isinstance(star, exp.Column) else star
    columns = relation.of(star.table) if isinstance(star, exp.Column) else list(relation.visible)
    except_ = inner.args.get("except_") or []
    if not isinstance(inner, exp.Star) or any(v for k, v in inner.args.items() if k != "except_"):
        raise _Unknown(star.sql(DIALECT))
    if not columns or not all(c.name for c in columns) or any(isinstance(e, exp.Column) and e.table for e in except_):
        raise _Unknown(star.sql(DIALECT))
    return [c for c in columns if not any(c.is_called(e.name) for e in except_)]


def _rewrite(select: exp.Select, names: _Names) -> None:
    """Rewrite one SELECT completely; raise _Unknown without any change if that is not possible."""
    conditions: list[tuple[exp.Join, list[exp.Expr]]] = []
    named: list[tuple[exp.Column, _VisibleColumn]] = []

    def note(join: exp.Join, left: _Relation, right: _Relation) -> None:
        if _is_by_name(join):
            lefts, rights = _keys(left, right, join)
            pairs = zip(lefts, rights, strict=True)
            conditions.append((join, [exp.EQ(this=a.value.copy(), expression=b.value.copy()) for a, b in pairs]))
        elif on := join.args.get("on"):
            # All names: a later join may add another column of a name that is unique here.
            visible = (*left.visible, *right.visible)
            both = _Relation(visible, joined=frozenset(c.name.lower() for c in visible))
            named.extend(_unqualified_joined(on, join, both, names))

    relation = names.relation(select, note)
    stars = [(s, _starred(s, relation)) for s in select.selects if s.is_star]
    for part, value in select.args.items():
        if part not in ("from_", "joins", "with_"):
            for clause in value if isinstance(value, list) else [value]:
                if isinstance(clause, exp.Expr):
                    named.extend(_unqualified_joined(clause, select, relation, names))

    for join, pairs in conditions:
        join.set("using", None)
        join.set("method", None)
        if pairs or join.side or join.kind.upper() in ("SEMI", "ANTI"):
            join.set("on", exp.and_(*pairs) if pairs else exp.true())
    for column, visible_column in named:
        column.replace(_value(column, visible_column))
    for star, columns in stars:
        items = [_value(exp.column(exp.to_identifier(c.name)), c, is_output=True) for c in columns]
        at = next(i for i, item in enumerate(select.expressions) if item is star)
        select.set("expressions", [*select.expressions[:at], *items, *select.expressions[at + 1 :]])


def _unqualified_joined(
    clause: exp.Expr, within: exp.Expr, relation: _Relation, names: _Names
) -> Iterator[tuple[exp.Column, _VisibleColumn]]:
    """Yield the joined columns that a clause of a query, or of one of its joins, names without a table."""
    items = within.selects if isinstance(within, exp.Select) else []
    outputs = {i.alias.lower() for i in items if isinstance(i, exp.Alias)}
    for column in list(clause.find_all(exp.Column)):
        name = column.name.lower()
        if column.table or name not in relation.joined or isinstance(column.this, exp.Star):
            continue
        if isinstance(clause, exp.Order | exp.Having) and name in outputs and not column.find_ancestor(exp.AggFunc):
            continue
        matches = relation.named(name)
        if len(matches) == 1 and _is_seen_from(column, within, names):
            yield column, matches[0]


def _is_seen_from(column: exp.Column, within: exp.Expr, names: _Names) -> bool:
    """Whether a column refers to the query `within`: no query in between has its name, and sources of FROM do not see
    each other."""
    node: exp.Expr = column
    while node is not within:
        parent = node.parent
        if parent is None or isinstance(parent, exp.From | exp.With):
            return False
        if isinstance(parent, exp.Join) and node.arg_key == "this":
            return False
        if parent is not within and isinstance(parent, exp.Select) and names.relation(parent).named(column.name):
            return False
        node = parent
    return True


def _value(column: exp.Column, visible_column: _VisibleColumn, *, is_output: bool = False) -> exp.Expr:
    """Return the expression for a column, under the column's name if that names an output or a field."""
    value = visible_column.value.copy()
    if isinstance(value, exp.Column):
        value.set("this", column.this.copy())
        return value
    if is_output or (isinstance(column.parent, exp.Select) and column.arg_key == "expressions"):
        return exp.alias_(value, column.this.copy())
    if isinstance(column.parent, exp.Struct):
        return exp.PropertyEQ(this=column.this.copy(), expression=value)
    return value

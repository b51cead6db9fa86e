"""The rows of an operator as SQL: all rows, or the rows of some keys.

A key filter is pushed down towards the tables as far as its expressions can be traced: through unchanged columns, group
keys, partition keys, the sides of joins and, by join conditions, to the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from sqlglot import exp

from lake_assets.lake import quote
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.operator_types import is_plain
from lake_assets.models.operators.query_tree import equals, refs, substitute, text

At = Literal["start", "end"]


class Keys(Protocol):
    """Key values by which rows are looked up."""

    def condition(self, expressions: Sequence[exp.Expr], names: Sequence[str]) -> str:
        """Return a SQL condition that every row with these values meets, or an empty text."""
        ...

    def join(self, expressions: Sequence[exp.Expr], names: Sequence[str]) -> str:
        """Return `LEFT SEMI JOIN ...`, which keeps exactly the rows with these values; empty if the condition does."""
        ...

    @property
    def hint(self) -> str:
        """The hint for the SELECT with the join."""
        ...


@dataclass(frozen=True)
class KeyFilter:
    """Selects the rows whose `expressions` equal, null-safely, the values of `keys` in its columns `names`."""

    expressions: tuple[exp.Expr, ...]
    names: tuple[str, ...]
    keys: Keys

    def is_complete(self, of: KeyFilter) -> bool:
        """Whether no expression of another filter is missing in this one."""
        return len(self.names) == len(of.names)


class Rows:
    """Generates the SQL of operators.

    Args:
        views: returns the name of a view over a table as of the start or the end of its window.
    """

    def __init__(self, views: Callable[[op.Scan, At], str]) -> None:
        self._views = views

    def sql(self, node: op.Node, at: At, key_filter: KeyFilter | None = None) -> str:
        """Return a SELECT with the operator's columns, of all rows or of the rows that `key_filter` selects."""
        match node:
            case op.Scan():
                return restricted(scan_sql(node, self._views(node, at)), key_filter)
            case op.Unit():
                return restricted(f"SELECT 1 AS {quote(node.name)}", key_filter)
            case op.Filter():
                return f"SELECT * FROM ({self.sql(node.input, at, key_filter)}) WHERE {text(node.condition)}"
            case op.Project():
                by = dict(node.items)
                below = _mapped(key_filter, lambda e: substitute(e, by))
                return f"SELECT {items_of(node.items)} FROM ({self.sql(node.input, at, below)})"
            case op.Generate():
                below = _mapped(key_filter, within(node.input.columns))
                return _filter_rest(generate_sql(node, self.sql(node.input, at, below)), key_filter, below)
            case op.InnerJoin():
                return self._inner(node, at, key_filter)
            case op.SideJoin():
                return self._side(node, at, key_filter)
            case op.FullJoin():
                return self._full(node, at, key_filter)
            case op.Aggregate():
                keys = dict(node.keys)

                def by_keys(e: exp.Expr) -> exp.Expr | None:
                    return substitute(e, keys) if refs(e) <= keys.keys() and _is_constant_in_group(node, e) else None

                below = _mapped(key_filter, by_keys) if keys else None
                return _filter_rest(aggregate_sql(node, self.sql(node.input, at, below)), key_filter, below)
            case op.Window():
                return self._window(node, at, key_filter)
            case op.Distinct():
                below = _mapped(key_filter, lambda e: e if _is_constant_in_group(node, e) else None)
                return _filter_rest(
                    f"SELECT DISTINCT {names_of(node)} FROM ({self.sql(node.input, at, below)})", key_filter, below
                )
            case op.UnionAll():
                parts = (f"(SELECT {names_of(node)} FROM ({self.sql(i, at, key_filter)}))" for i in node.inputs)
                return f"SELECT * FROM ({' UNION ALL '.join(parts)})"
            case op.SetOp():
                below = _mapped(key_filter, lambda e: e if _is_constant_in_group(node, e) else None)
                left, right = (f"(SELECT {names_of(node)} FROM ({self.sql(i, at, below)}))" for i in node.inputs)
                return _filter_rest(
                    f"SELECT * FROM ({left} {node.kind} {'ALL' if node.all else 'DISTINCT'} {right})", key_filter, below
                )

    def _window(self, node: op.Window, at: At, key_filter: KeyFilter | None) -> str:
        same = {text(p) for p in node.partition}
        names = {p.name for p in node.partition if isinstance(p, exp.Column)}

        def over_partition(e: exp.Expr) -> exp.Expr | None:
            is_kept = text(e) in same or (refs(e) and refs(e) <= names and _is_constant_in_group(node, e))
            return e if is_kept else None

        below = _mapped(key_filter, over_partition)
        windowed = f"SELECT *, {items_of(node.items)} FROM ({self.sql(node.input, at, below)})"
        return _filter_rest(windowed, key_filter, below)

    def _inner(self, node: op.InnerJoin, at: At, key_filter: KeyFilter | None) -> str:
        exact = key_filter is None
        sides: list[str] = []
        for side in node.inputs:
            below = _mapped(key_filter, map_to_side(node.on, side, node))
            sides.append(self.sql(side, at, below))
            exact = exact or (
                below is not None and key_filter is not None and below.is_complete(key_filter) and all(
                    refs(e) <= set(side.columns) for e in key_filter.expressions
                )
            )  # fmt: skip
        return _filter_rest(inner_join_sql(sides, node.inputs, node.on), None if exact else key_filter, None)

    def _side(self, node: op.SideJoin, at: At, key_filter: KeyFilter | None) -> str:
        left = _mapped(key_filter, within(node.left.columns))
        right = _mapped(key_filter, map_to_right(node)) if node.kind != "null_anti" else None
        sides = self.sql(node.left, at, left), self.sql(node.right, at, right)
        return _filter_rest(side_join_sql(node, *sides), key_filter, left)

    def _full(self, node: op.FullJoin, at: At, key_filter: KeyFilter | None) -> str:
        pairs = {text(exp.Coalesce(this=x, expressions=[y])): (x, y) for x, y in _pairs(node)}
        pairs |= {text(exp.Coalesce(this=y, expressions=[x])): (x, y) for x, y in _pairs(node)}
        left, right = (_mapped(key_filter, lambda e, s=s: pairs.get(text(e), (None, None))[s]) for s in (0, 1))
        sides = self.sql(node.left, at, left), self.sql(node.right, at, right)
        return _filter_rest(full_join_sql(node, *sides), key_filter, left)


# --- SQL of one operator over the SQL of those below ----------------------------------------------------------------


def scan_sql(node: op.Scan, view: str, more: str = "") -> str:
    """Return the SQL of a table's columns under their names in the tree."""
    listed = ", ".join(f"{quote(c)} AS {quote(n)}" for n, c in node.fields.items())
    return f"SELECT {listed}{more} FROM {view}"


def inner_join_sql(sides: Sequence[str], inputs: Sequence[op.Node], on: Sequence[exp.Expr]) -> str:
    """Return the SQL of an inner join: inputs are joined one by one, those with an equality first."""
    todo = list(range(1, len(inputs)))
    have, rest = set(inputs[0].columns), list(on)
    sql = f"SELECT * FROM ({sides[0]})"
    while todo:
        position = next((i for i in todo if equals(rest, have, inputs[i].columns)), todo[0])
        todo.remove(position)
        have |= set(inputs[position].columns)
        conditions = [c for c in rest if refs(c) <= have]
        rest = [c for c in rest if not refs(c) <= have]
        sql += f" JOIN ({sides[position]}) ON {_all(conditions)}"
    return sql


def side_join_sql(node: op.SideJoin, left: str, right: str) -> str:
    """Return the SQL of a left, semi or anti join."""
    if node.kind == "null_anti" and len(node.on) == 1:
        # Spark has a special join for a single NOT IN.
        (condition,) = node.on
        x, y = condition.this, condition.expression
        return f"SELECT * FROM ({left}) WHERE {text(x)} NOT IN (SELECT {text(y)} FROM ({right}))"
    on = list(node.on)
    if node.kind == "null_anti":
        on = [exp.Coalesce(this=exp.Paren(this=on[0].copy()), expressions=[exp.true()]), *on[1:]]
    word = {"left": "LEFT JOIN", "semi": "LEFT SEMI JOIN"}.get(node.kind, "LEFT ANTI JOIN")
    return f"SELECT * FROM ({left}) {word} ({right}) ON {_all(on)}"


def full_join_sql(node: op.FullJoin, left: str, right: str) -> str:
    """Return the SQL of a full join."""
    return f"SELECT * FROM ({left}) FULL JOIN ({right}) ON {_all(node.on)}"


def aggregate_sql(node: op.Aggregate, below: str) -> str:
    """Return the SQL of GROUP BY."""
    listed = items_of((*node.keys, *node.calls)) or "1"
    if not node.keys:
        having = " HAVING count(*) > 0" if node.vanishes else ""
        return f"SELECT {listed} FROM ({below}){having}"
    return f"SELECT {listed} FROM ({below}) GROUP BY {', '.join(text(e) for _, e in node.keys)}"


def generate_sql(node: op.Generate, below: str) -> str:
    """Return the SQL of LATERAL VIEW."""
    outer = "OUTER " if node.outer else ""
    names = ", ".join(quote(c) for c in node.generated)
    return f"SELECT * FROM ({below}) LATERAL VIEW {outer}{text(node.call)} generated AS {names}"


def items_of(items: Sequence[op.Item]) -> str:
    """Return the list of a SELECT of some expressions."""
    return ", ".join(f"{text(e)} AS {quote(n)}" for n, e in items)


def names_of(node: op.Node) -> str:
    """Return the list of a SELECT of all columns of an operator."""
    return ", ".join(quote(c) for c in node.columns)


def _all(on: Sequence[exp.Expr]) -> str:
    return " AND ".join(f"({text(c)})" for c in on) or "true"


# --- mapping a key filter -------------------------------------------------------------------------------------------


def _mapped(key_filter: KeyFilter | None, mapping: Callable[[exp.Expr], exp.Expr | None]) -> KeyFilter | None:
    """Return a filter by mapped expressions, without those that are mapped to None; None if none remain."""
    if key_filter is None:
        return None
    mapped = [(mapping(e), n) for e, n in zip(key_filter.expressions, key_filter.names, strict=True)]
    pairs = [(e, n) for e, n in mapped if e is not None]
    if not pairs:
        return None
    return replace(key_filter, expressions=tuple(e for e, _ in pairs), names=tuple(n for _, n in pairs))


def within(columns: Sequence[str]) -> Callable[[exp.Expr], exp.Expr | None]:
    """Return a mapping that keeps expressions over these columns only."""
    have = set(columns)
    return lambda e: e if refs(e) and refs(e) <= have else None


def map_to_side(on: Sequence[exp.Expr], side: op.Node, node: op.Node) -> Callable[[exp.Expr], exp.Expr | None]:
    """Return a mapping to one side of an inner join: expressions over it stay, and expressions that a join condition
    equates with one become it."""
    have = set(side.columns)
    others = set(node.columns) - have
    same = {text(y): x for x, y in equals(on, have, others)}

    def mapped(e: exp.Expr) -> exp.Expr | None:
        return e if refs(e) and refs(e) <= have else same.get(text(e))

    return mapped


def map_to_right(node: op.SideJoin) -> Callable[[exp.Expr], exp.Expr | None]:
    """Return a mapping from expressions over the left side to equal ones over the right side."""
    same = {text(x): y for x, y in _pairs(node)}
    return lambda e: same.get(text(e))


def _is_constant_in_group(node: op.Node, e: exp.Expr) -> bool:
    """Whether an expression over group keys has the same value for all rows of a group.

    0.0 and -0.0 are in one group, but differ as text.
    """
    return isinstance(e, exp.Column) or is_plain(node, e)


def _pairs(node: op.SideJoin | op.FullJoin) -> list[tuple[exp.Expr, exp.Expr]]:
    return equals(node.on, node.left.columns, node.right.columns)


def restricted(sql: str, key_filter: KeyFilter | None) -> str:
    """Return SQL with the rows that a key filter selects."""
    if key_filter is None:
        return sql
    condition = key_filter.keys.condition(key_filter.expressions, key_filter.names)
    where = f" WHERE {condition}" if condition else ""
    join = key_filter.keys.join(key_filter.expressions, key_filter.names)
    inside = f"SELECT * FROM ({sql}){where}"
    return f"SELECT {key_filter.keys.hint} * FROM ({inside}) {join}" if join else inside


def _filter_rest(sql: str, key_filter: KeyFilter | None, done: KeyFilter | None) -> str:
    """Apply the key filter unless all of it was pushed down as `done`."""
    return (
        sql
        if key_filter is None or (done is not None and done.is_complete(key_filter))
        else restricted(sql, key_filter)
    )

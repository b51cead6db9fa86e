"""The rows of an operator as SQL: all of them, or those alone that belong to some keys.

A cut is pushed down to the tables as far as its expressions can be followed: through columns that are passed on, group
keys, partition keys, the sides of joins and, by their conditions, to the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from sqlglot import exp

from lake_assets.lake import quote
from lake_assets.models.operators.operator_types import is_plain
from lake_assets.models.operators.query_tree import (
    Aggregate,
    Distinct,
    Filter,
    FullJoin,
    Generate,
    InnerJoin,
    Item,
    Node,
    Project,
    Scan,
    SetOp,
    SideJoin,
    UnionAll,
    Window,
    equals,
    refs,
    substitute,
    text,
)

At = Literal["start", "end"]


class Keys(Protocol):
    """Values that rows are looked up by."""

    def condition(self, expressions: Sequence[exp.Expr], names: Sequence[str]) -> str:
        """SQL over the rows alone that every row with such values meets; empty where nothing can be said."""
        ...

    def join(self, expressions: Sequence[exp.Expr], names: Sequence[str]) -> str:
        """`LEFT SEMI JOIN ...`, which keeps the rows with such values and no others; empty: the condition says it."""
        ...

    @property
    def hint(self) -> str:
        """For the SELECT that holds the join."""
        ...


@dataclass(frozen=True)
class KeyFilter:
    """Those rows whose `expressions` have, null-safe, the values that `keys` has under `names`."""

    expressions: tuple[exp.Expr, ...]
    names: tuple[str, ...]
    keys: Keys

    def some(self, kept: Callable[[exp.Expr], exp.Expr | None]) -> KeyFilter | None:
        """The part of it that `kept` has expressions for; None: no part."""
        found = [(e, n) for old, n in zip(self.expressions, self.names, strict=True) if (e := kept(old)) is not None]
        return (
            replace(self, expressions=tuple(e for e, _ in found), names=tuple(n for _, n in found)) if found else None
        )

    def is_whole(self, of: KeyFilter) -> bool:
        """Whether nothing of another cut is missing in this one."""
        return len(self.names) == len(of.names)


class Rows:
    """Makes SQL of operators.

    Args:
        views: gives the name of a view over a table as of the start or the end of its window.
    """

    def __init__(self, views: Callable[[Scan, At], str]) -> None:
        self._views = views

    def sql(self, node: Node, at: At, cut: KeyFilter | None = None) -> str:
        """A SELECT with the operator's columns."""
        match node:
            case Scan():
                return restricted(scan_sql(node, self._views(node, at)), cut)
            case Filter():
                return f"SELECT * FROM ({self.sql(node.input, at, cut)}) WHERE {text(node.condition)}"
            case Project():
                by = dict(node.items)
                below = cut.some(lambda e: substitute(e, by)) if cut else None
                return f"SELECT {_items(node.items)} FROM ({self.sql(node.input, at, below)})"
            case Generate():
                below = cut.some(within(node.input.columns)) if cut else None
                return _rest(generated(node, self.sql(node.input, at, below)), cut, below)
            case InnerJoin():
                return self._inner(node, at, cut)
            case SideJoin():
                return self._side(node, at, cut)
            case FullJoin():
                return self._full(node, at, cut)
            case Aggregate():
                names = {n for n, _ in node.keys}
                by = dict(node.keys)
                below = (
                    cut.some(lambda e: substitute(e, by) if refs(e) <= names and _is_told(node, e) else None)
                    if cut and by
                    else None
                )
                return _rest(aggregated(node, self.sql(node.input, at, below)), cut, below)
            case Window():
                same = {text(p) for p in node.partition}
                names = {p.name for p in node.partition if isinstance(p, exp.Column)}
                below = (
                    cut.some(
                        lambda e: e if text(e) in same or (refs(e) and refs(e) <= names and _is_told(node, e)) else None
                    )
                    if cut
                    else None
                )
                return _rest(f"SELECT *, {_items(node.items)} FROM ({self.sql(node.input, at, below)})", cut, below)
            case Distinct():
                below = cut.some(lambda e: e if _is_told(node, e) else None) if cut else None
                return _rest(f"SELECT DISTINCT {_names(node)} FROM ({self.sql(node.input, at, below)})", cut, below)
            case UnionAll():
                parts = (f"(SELECT {_names(node)} FROM ({self.sql(i, at, cut)}))" for i in node.inputs)
                return f"SELECT * FROM ({' UNION ALL '.join(parts)})"
            case SetOp():
                below = cut.some(lambda e: e if _is_told(node, e) else None) if cut else None
                left, right = (f"(SELECT {_names(node)} FROM ({self.sql(i, at, below)}))" for i in node.inputs)
                return _rest(
                    f"SELECT * FROM ({left} {node.kind} {'ALL' if node.all else 'DISTINCT'} {right})", cut, below
                )

    def _inner(self, node: InnerJoin, at: At, cut: KeyFilter | None) -> str:
        exact = cut is None
        sides: list[str] = []
        for side in node.inputs:
            below = cut.some(followed(node.on, side, node)) if cut else None
            sides.append(self.sql(side, at, below))
            exact = exact or (
                below is not None and cut is not None and below.is_whole(cut) and all(
                    refs(e) <= set(side.columns) for e in cut.expressions
                )
            )  # fmt: skip
        return _rest(inner(sides, node.inputs, node.on), None if exact else cut, None)

    def _side(self, node: SideJoin, at: At, cut: KeyFilter | None) -> str:
        left = cut.some(within(node.left.columns)) if cut else None
        right = cut.some(over_there(node)) if cut and node.kind != "null_anti" else None
        sides = self.sql(node.left, at, left), self.sql(node.right, at, right)
        return _rest(beside(node, *sides), cut, left)

    def _full(self, node: FullJoin, at: At, cut: KeyFilter | None) -> str:
        pairs = {text(exp.Coalesce(this=x, expressions=[y])): (x, y) for x, y in _pairs(node)}
        pairs |= {text(exp.Coalesce(this=y, expressions=[x])): (x, y) for x, y in _pairs(node)}
        left, right = (cut.some(lambda e, s=s: pairs.get(text(e), (None, None))[s]) if cut else None for s in (0, 1))
        sides = self.sql(node.left, at, left), self.sql(node.right, at, right)
        return _rest(full(node, *sides), cut, left)


# --- SQL of one operator over the SQL of those below ----------------------------------------------------------------


def scan_sql(node: Scan, view: str, more: str = "") -> str:
    """The columns of a table under their names in the tree."""
    listed = ", ".join(f"{quote(c)} AS {quote(n)}" for n, c in node.fields.items())
    return f"SELECT {listed}{more} FROM {view}"


def inner(sides: Sequence[str], inputs: Sequence[Node], on: Sequence[exp.Expr]) -> str:
    """The inputs joined one by one, each as soon as a condition speaks of it."""
    todo = list(range(1, len(inputs)))
    have, rest = set(inputs[0].columns), list(on)
    sql = f"SELECT * FROM ({sides[0]})"
    while todo:
        at = next((i for i in todo if equals(rest, have, inputs[i].columns)), todo[0])
        todo.remove(at)
        have |= set(inputs[at].columns)
        now = [c for c in rest if refs(c) <= have]
        rest = [c for c in rest if not refs(c) <= have]
        sql += f" JOIN ({sides[at]}) ON {_all(now)}"
    return sql


def beside(node: SideJoin, left: str, right: str) -> str:
    """A left, semi or anti join."""
    if node.kind == "null_anti" and len(node.on) == 1:
        # As it was written: Spark has a join of its own for it.
        (condition,) = node.on
        x, y = condition.this, condition.expression
        return f"SELECT * FROM ({left}) WHERE {text(x)} NOT IN (SELECT {text(y)} FROM ({right}))"
    on = list(node.on)
    if node.kind == "null_anti":
        on = [exp.Coalesce(this=exp.Paren(this=on[0].copy()), expressions=[exp.true()]), *on[1:]]
    word = {"left": "LEFT JOIN", "semi": "LEFT SEMI JOIN"}.get(node.kind, "LEFT ANTI JOIN")
    return f"SELECT * FROM ({left}) {word} ({right}) ON {_all(on)}"


def full(node: FullJoin, left: str, right: str) -> str:
    """A full join."""
    return f"SELECT * FROM ({left}) FULL JOIN ({right}) ON {_all(node.on)}"


def aggregated(node: Aggregate, below: str) -> str:
    """GROUP BY."""
    listed = _items((*node.keys, *node.calls)) or "1"
    if not node.keys:
        having = " HAVING count(*) > 0" if node.vanishes else ""
        return f"SELECT {listed} FROM ({below}){having}"
    return f"SELECT {listed} FROM ({below}) GROUP BY {', '.join(text(e) for _, e in node.keys)}"


def generated(node: Generate, below: str, more: str = "") -> str:
    """LATERAL VIEW."""
    outer = "OUTER " if node.outer else ""
    made = ", ".join(quote(c) for c in node.generated)
    return f"SELECT *{more} FROM ({below}) LATERAL VIEW {outer}{text(node.call)} generated AS {made}"


def _items(items: Sequence[Item]) -> str:
    return ", ".join(f"{text(e)} AS {quote(n)}" for n, e in items)


def _names(node: Node) -> str:
    return ", ".join(quote(c) for c in node.columns)


def _all(on: Sequence[exp.Expr]) -> str:
    return " AND ".join(f"({text(c)})" for c in on) or "true"


# --- following a cut ------------------------------------------------------------------------------------------------


def within(columns: Sequence[str]) -> Callable[[exp.Expr], exp.Expr | None]:
    """Keeps expressions over these columns alone."""
    have = set(columns)
    return lambda e: e if refs(e) and refs(e) <= have else None


def followed(on: Sequence[exp.Expr], side: Node, node: Node) -> Callable[[exp.Expr], exp.Expr | None]:
    """Keeps expressions over one side of an inner join, and those that a condition says to be equal to one."""
    have = set(side.columns)
    others = set(node.columns) - have
    same = {text(y): x for x, y in equals(on, have, others)}

    def kept(e: exp.Expr) -> exp.Expr | None:
        return e if refs(e) and refs(e) <= have else same.get(text(e))

    return kept


def over_there(node: SideJoin) -> Callable[[exp.Expr], exp.Expr | None]:
    """What an expression over the left side is on the right one."""
    same = {text(x): y for x, y in _pairs(node)}
    return lambda e: same.get(text(e))


def _is_told(node: Node, e: exp.Expr) -> bool:
    """Whether an expression over what groups rows is the same for all rows of a group.

    0.0 and -0.0 are in one group, and are no longer equal as text.
    """
    return isinstance(e, exp.Column) or is_plain(node, e)


def _pairs(node: SideJoin | FullJoin) -> list[tuple[exp.Expr, exp.Expr]]:
    return equals(node.on, node.left.columns, node.right.columns)


def restricted(sql: str, cut: KeyFilter | None) -> str:
    """Rows as SQL, without those that a cut leaves out."""
    if cut is None:
        return sql
    condition = cut.keys.condition(cut.expressions, cut.names)
    where = f" WHERE {condition}" if condition else ""
    join = cut.keys.join(cut.expressions, cut.names)
    inside = f"SELECT * FROM ({sql}){where}"
    return f"SELECT {cut.keys.hint} * FROM ({inside}) {join}" if join else inside


def _rest(sql: str, cut: KeyFilter | None, done: KeyFilter | None) -> str:
    """Cut what could not be pushed down whole."""
    return sql if cut is None or (done is not None and done.is_whole(cut)) else restricted(sql, cut)

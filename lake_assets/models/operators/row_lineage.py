"""Which source rows one row of a result is computed from: by the values of its key, and by equal columns of joins.

Columns are followed as far as they are copied. Conditions are not evaluated: a source row that is found by its key may
still be left out by a WHERE.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.maintenance import describe
from lake_assets.models.operators.query_tree import Node, Scan, Tree, conjuncts, definitions, scans, users_text, walk

_EQUAL = (exp.EQ, exp.NullSafeEQ)


@dataclass(frozen=True)
class BoundScan:
    """An occurrence of a table in a query, and how its rows for one row of the result are found.

    Attributes:
        pins: columns of the table with the column of the result whose value they have.
        joins: columns of the table with an earlier occurrence, and the column of that whose values they have.
        conditions: what else rows have to meet, which is not evaluated.
    """

    scan: Scan
    pins: Mapping[str, str]
    joins: tuple[tuple[str, Scan, str], ...]
    conditions: tuple[str, ...]

    @property
    def how(self) -> str:
        """How its rows are found, for people."""
        own = [column if column == output else f"{column} = {output}" for column, output in self.pins.items()]
        other = [f"{c} = {s.alias or s.table.name}.{of}" for c, s, of in self.joins]
        return " and ".join([*own, *other])


@dataclass(frozen=True)
class RowLineage:
    """How the source rows of one row of a result are found.

    Attributes:
        bound: the occurrences of tables whose rows can be told, in an order in which they can be read.
        loose: those whose rows cannot be told.
        notes: which other rows a row depends on, for people.
    """

    bound: tuple[BoundScan, ...]
    loose: tuple[Scan, ...]
    notes: tuple[str, ...]


def row_lineage(tree: Tree, key: Collection[str]) -> RowLineage:
    """Return how the source rows of a row with some values in the columns `key` of the result are found."""
    pins: dict[Scan, dict[str, str]] = {}
    computed: list[str] = []
    for output in key:
        columns = list(_copied(tree.root, tree.outputs[output]))
        if not columns:
            computed.append(output)
        for scan, column in columns:
            pins.setdefault(scan, {}).setdefault(column, output)
    edges = list(_edges(tree.root))
    _pin_by_joins(pins, edges)
    every, conditions = scans(tree.root), _conditions(tree.root)
    order, joins = [s for s in every if s in pins], dict[Scan, list[tuple[str, Scan, str]]]()
    found = 0
    while found < len(order):
        known = order[found]
        found += 1
        for (one, column), (other, of) in (pair for e in edges for pair in (e, e[::-1])):
            if other is known and one not in pins and one is not known:
                if one not in order:
                    order.append(one)
                if order.index(one) > order.index(known):
                    joins.setdefault(one, []).append((column, known, of))
    bound = (BoundScan(s, pins.get(s, {}), tuple(joins.get(s, ())), tuple(conditions.get(s, ()))) for s in order)
    notes = [f"{c} is computed, so source rows with any value of it are listed" for c in computed]
    notes.extend(_notes(tree.root))
    return RowLineage(tuple(bound), tuple(s for s in every if s not in order), tuple(dict.fromkeys(notes)))


_Column = tuple[Scan, str]


def _copied(node: Node, name: str) -> Iterator[_Column]:
    """Yield the columns of tables that a column of an operator copies."""
    if isinstance(node, Scan):
        if name in node.fields:
            yield node, node.fields[name]
        return
    for below, e in definitions(node, name):
        if isinstance(inner := e.unnest(), exp.Column):
            yield from _copied(below, inner.name)


def _edges(root: Node) -> Iterator[tuple[_Column, _Column]]:
    """Yield the columns of tables that joins compare for equality."""
    for node in walk(root):
        if not isinstance(node, op.InnerJoin | op.SideJoin | op.FullJoin):
            continue
        for condition in (c.unnest() for on in node.on for c in conjuncts(on)):
            if not isinstance(condition, _EQUAL) or condition.meta.get("mixed"):
                continue
            sides = [condition.this.unnest(), condition.expression.unnest()]
            if all(isinstance(s, exp.Column) for s in sides):
                one, other = ([c for i in node.inputs for c in _of_input(i, s.name)] for s in sides)
                yield from ((x, y) for x in one for y in other if x[0] is not y[0])


def _of_input(node: Node, name: str) -> Iterator[_Column]:
    if name in node.columns:
        yield from _copied(node, name)


def _pin_by_joins(pins: dict[Scan, dict[str, str]], edges: Collection[tuple[_Column, _Column]]) -> None:
    """Pin columns that are equal to pinned ones."""
    size = -1
    while size != sum(map(len, pins.values())):
        size = sum(map(len, pins.values()))
        for (one, column), (other, of) in (pair for e in edges for pair in (e, e[::-1])):
            if of in pins.get(other, {}):
                pins.setdefault(one, {}).setdefault(column, pins[other][of])


def _conditions(root: Node) -> dict[Scan, list[str]]:
    """Return the conditions of filters by the tables below them whose columns they read."""
    found: dict[Scan, list[str]] = {}
    for node in walk(root):
        if isinstance(node, op.Filter):
            for scan in scans(node.input):
                if any(
                    s is scan for c in node.condition.find_all(exp.Column) for s, _ in _of_input(node.input, c.name)
                ):
                    found.setdefault(scan, []).append(users_text(node, node.condition))
    return found


def _notes(root: Node) -> Iterator[str]:
    for node in walk(root):
        if isinstance(node, op.Window):
            yield f"{describe(node)}: other rows of the same partition count as well, and are not listed"
        if isinstance(node, op.Aggregate) and not node.keys:
            yield "a total of all rows: every row of its tables counts"
        if isinstance(node, op.SideJoin) and node.kind in ("anti", "null_anti"):
            yield f"{describe(node)}: rows that are missing count as well"

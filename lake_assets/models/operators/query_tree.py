"""The operators that a query is compiled to.

Every column of every operator has a name of its own in the whole tree, so that operators nest in SQL without aliases;
only the branches of a union share theirs. Expressions are sqlglot's, over those names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlglot import exp

from lake_assets.lake import TableId
from lake_assets.lake.sql_text import DIALECT

Item = tuple[str, exp.Expr]


@dataclass(frozen=True, eq=False)
class Scan:
    """The rows of a table: one occurrence of it in the query.

    Attributes:
        table: whose rows.
        alias: what the query calls this occurrence.
        fields: by column of the tree, the table's own.
        keys: sets of columns that no two rows share the values of.
        types: by column of the tree, as Spark writes them.
    """

    table: TableId
    alias: str
    fields: Mapping[str, str]
    keys: tuple[frozenset[str], ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return tuple(self.fields)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """None."""
        return ()


@dataclass(frozen=True, eq=False)
class _Single:
    input: Node

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return self.input.columns

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The one below."""
        return (self.input,)


@dataclass(frozen=True, eq=False)
class Filter(_Single):
    """The rows that meet a condition."""

    condition: exp.Expr


@dataclass(frozen=True, eq=False)
class Project(_Single):
    """Expressions over single rows."""

    items: tuple[Item, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return tuple(n for n, _ in self.items)


@dataclass(frozen=True, eq=False)
class Generate(_Single):
    """LATERAL VIEW: each row with each row that a function makes of it."""

    call: exp.Expr
    made: tuple[str, ...]
    outer: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return (*self.input.columns, *self.generated)


@dataclass(frozen=True, eq=False)
class Aggregate(_Single):
    """Rows grouped by keys.

    Attributes:
        keys: what is grouped by; none: one group.
        calls: the aggregates.
        vanishes: whether the one group of no keys has no row over no rows (as in grouping sets).
    """

    keys: tuple[Item, ...]
    calls: tuple[Item, ...]
    vanishes: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return (*(n for n, _ in self.keys), *(n for n, _ in self.calls))


@dataclass(frozen=True, eq=False)
class Window(_Single):
    """Window functions beside the rows; `partition`: what all of them are partitioned by."""

    items: tuple[Item, ...]
    partition: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return (*self.input.columns, *(n for n, _ in self.items))


@dataclass(frozen=True, eq=False)
class Distinct(_Single):
    """Each row once."""


@dataclass(frozen=True, eq=False)
class InnerJoin:
    """Any number of inputs; each condition is over at least two of them."""

    inputs: tuple[Node, ...]
    on: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return tuple(c for i in self.inputs for c in i.columns)


@dataclass(frozen=True, eq=False)
class SideJoin:
    """The rows of the left side, with what the right one has for them, or because it has something or nothing.

    Attributes:
        kind: `left`, `semi` (EXISTS, IN), `anti` (NOT EXISTS), `null_anti` (NOT IN: a null on either side counts).
        on: the conditions.
    """

    left: Node
    right: Node
    kind: Literal["left", "semi", "anti", "null_anti"]
    on: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return (*self.left.columns, *self.right.columns) if self.kind == "left" else self.left.columns

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Left and right."""
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class FullJoin:
    """FULL OUTER JOIN."""

    left: Node
    right: Node
    on: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return (*self.left.columns, *self.right.columns)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Left and right."""
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class UnionAll:
    """All rows of all inputs, which have the same columns."""

    inputs: tuple[Node, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return self.inputs[0].columns


@dataclass(frozen=True, eq=False)
class SetOp:
    """INTERSECT or EXCEPT of two inputs with the same columns."""

    left: Node
    right: Node
    kind: Literal["INTERSECT", "EXCEPT"]
    all: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that come out."""
        return self.left.columns

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Left and right."""
        return (self.left, self.right)


Node = (
    Scan
    | Filter
    | Project
    | Generate
    | Aggregate
    | Window
    | Distinct
    | InnerJoin
    | SideJoin
    | FullJoin
    | UnionAll
    | SetOp
)


@dataclass(frozen=True, eq=False)
class Tree:
    """A compiled query: the topmost operator, and the query's columns by their names in the result."""

    root: Node
    outputs: Mapping[str, str]


# --- expressions --------------------------------------------------------------------------------------------------


def column(name: str) -> exp.Column:
    """A column of the tree."""
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def text(expression: exp.Expr) -> str:
    """As Spark SQL."""
    return expression.sql(DIALECT, comments=False)


def refs(expression: exp.Expr) -> set[str]:
    """The columns that an expression reads."""
    return {c.name for c in expression.find_all(exp.Column)}


def substitute(expression: exp.Expr, by: Mapping[str, exp.Expr]) -> exp.Expr:
    """`expression` with columns replaced."""

    def one(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name in by:
            new = by[node.name].copy()
            return new if isinstance(new, exp.Column | exp.Literal | exp.Func | exp.Paren) else exp.Paren(this=new)
        return node

    return expression.copy().transform(one)


def conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """The parts of a condition that all have to hold."""
    if condition is None:
        return []
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]


def equal(condition: exp.Expr, one: Iterable[str], other: Iterable[str]) -> tuple[exp.Expr, exp.Expr] | None:
    """The two sides of `x = y`, the first over columns `one` alone, the second over columns `other`; else None."""
    if isinstance(condition, exp.Paren):
        return equal(condition.this, one, other)
    if not isinstance(condition, exp.EQ) or condition.meta.get("mixed"):
        return None
    one, other = set(one), set(other)
    for x, y in ((condition.this, condition.expression), (condition.expression, condition.this)):
        if refs(x) and refs(y) and refs(x) <= one and refs(y) <= other:
            return x, y
    return None


def equals(on: Iterable[exp.Expr], one: Iterable[str], other: Iterable[str]) -> list[tuple[exp.Expr, exp.Expr]]:
    """All such pairs of a join's conditions."""
    one, other = set(one), set(other)
    return [pair for c in on if (pair := equal(c, one, other))]


def users_text(node: Node, expression: exp.Expr) -> str:
    """An operator's expression for people: `f.carrier` where the tree has a name that no other column has."""
    fields = {n: (s.alias or s.table.name, c) for s in scans(node) for n, c in s.fields.items()}

    def one(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column):
            return part
        table, name = fields.get(part.name, ("", ""))
        # What an operator computes is called like something, with a number.
        return exp.column(name, table=table) if name else exp.column(part.name.rpartition("_")[0] or part.name)

    return text(expression.copy().transform(one))


# --- the tree as a whole ------------------------------------------------------------------------------------------


def walk(node: Node) -> Iterator[Node]:
    """The operator and all below, from the top."""
    yield node
    for below in node.inputs:
        yield from walk(below)


def scans(node: Node) -> list[Scan]:
    """The occurrences of tables, from left to right."""
    return [n for n in walk(node) if isinstance(n, Scan)]


def expressions(node: Node) -> list[exp.Expr]:
    """The operator's own expressions."""
    match node:
        case Filter():
            return [node.condition]
        case Project():
            return [e for _, e in node.items]
        case Generate():
            return [node.call]
        case Aggregate():
            return [e for _, e in (*node.keys, *node.calls)]
        case Window():
            return [*(e for _, e in node.items), *node.partition]
        case InnerJoin() | SideJoin() | FullJoin():
            return list(node.on)
        case _:
            return []


def narrowed(tree: Tree) -> Tree:
    """The same, reading no more columns of its tables than are used."""
    used = set(tree.outputs.values()) | {n for node in walk(tree.root) for e in expressions(node) for n in refs(e)}

    def one(node: Node) -> Node:
        match node:
            case Scan():
                kept = {n: c for n, c in node.fields.items() if n in used}
                first = dict(list(node.fields.items())[:1])
                return replace(node, fields=kept or first)
            case InnerJoin() | UnionAll():
                return replace(node, inputs=tuple(map(one, node.inputs)))
            case SideJoin() | FullJoin() | SetOp():
                return replace(node, left=one(node.left), right=one(node.right))
            case _:
                return replace(node, input=one(node.input))

    return Tree(one(tree.root), tree.outputs)


def origins(node: Node, name: str) -> dict[tuple[TableId, str], None]:
    """The columns of tables that a column of an operator is made of."""
    match node:
        case Scan():
            return {(node.table, node.fields[name]): None} if name in node.fields else {}
        case Project() | Aggregate() | Window():
            made = dict(node.items) if not isinstance(node, Aggregate) else dict((*node.keys, *node.calls))
            of = refs(made[name]) if name in made else {name}
            return {o: None for r in sorted(of) for o in origins(node.input, r)}
        case Generate() if name in node.generated:
            return {o: None for r in sorted(refs(node.call)) for o in origins(node.input, r)}
        case _:
            return {o: None for i in node.inputs if name in i.columns for o in origins(i, name)}

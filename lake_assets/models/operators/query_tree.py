"""Operators that a query is compiled to.

Column names are unique in the whole tree, so that operators nest in SQL without aliases; only the branches of a union
share names. Expressions are sqlglot's, over these names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sqlglot import exp

from lake_assets.lake import TableId, quote
from lake_assets.lake.sql_text import DIALECT

Item = tuple[str, exp.Expr]


@dataclass(frozen=True, eq=False)
class _Leaf:
    @property
    def inputs(self) -> tuple[Node, ...]:
        """No inputs."""
        return ()


@dataclass(frozen=True, eq=False)
class Scan(_Leaf):
    """One occurrence of a table in the query.

    Attributes:
        alias: the query's name for this occurrence.
        fields: the table's column for each column of the tree.
        keys: sets of columns that each identify a row.
        types: Spark's types by column of the tree.
    """

    table: TableId
    alias: str
    fields: Mapping[str, str]
    keys: tuple[frozenset[str], ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return tuple(self.fields)


@dataclass(frozen=True, eq=False)
class Unit(_Leaf):
    """One row that belongs to no table: the input of a SELECT without FROM, and of each row of VALUES.

    Attributes:
        name: its only column, which nothing reads.
    """

    name: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return (self.name,)


@dataclass(frozen=True, eq=False)
class _Single:
    input: Node

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return self.input.columns

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The only input."""
        return (self.input,)


@dataclass(frozen=True, eq=False)
class _Pair:
    left: Node
    right: Node

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return (*self.left.columns, *self.right.columns)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Left and right input."""
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class _Many:
    inputs: tuple[Node, ...]


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
        """Output columns."""
        return tuple(n for n, _ in self.items)


@dataclass(frozen=True, eq=False)
class Generate(_Single):
    """LATERAL VIEW: each row combined with each row that a generator function returns for it."""

    call: exp.Expr
    generated: tuple[str, ...]
    outer: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return (*self.input.columns, *self.generated)


@dataclass(frozen=True, eq=False)
class Aggregate(_Single):
    """Rows grouped by keys.

    Attributes:
        keys: the grouping keys; without keys there is one group.
        calls: the aggregates.
        vanishes: whether the single group without keys has no row if there are no input rows (as in grouping sets).
    """

    keys: tuple[Item, ...]
    calls: tuple[Item, ...]
    vanishes: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return (*(n for n, _ in self.keys), *(n for n, _ in self.calls))


@dataclass(frozen=True, eq=False)
class Window(_Single):
    """Window functions added to the rows; `partition` has the partition keys common to all of them."""

    items: tuple[Item, ...]
    partition: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return (*self.input.columns, *(n for n, _ in self.items))


@dataclass(frozen=True, eq=False)
class Distinct(_Single):
    """Each row once."""


@dataclass(frozen=True, eq=False)
class InnerJoin(_Many):
    """Inner join of any number of inputs; each condition is over at least two of them."""

    on: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return tuple(c for i in self.inputs for c in i.columns)


@dataclass(frozen=True, eq=False)
class SideJoin(_Pair):
    """Left, semi or anti join.

    Attributes:
        kind: `left`, `semi` (EXISTS, IN), `anti` (NOT EXISTS), `null_anti` (NOT IN: a null on either side counts as a
            match).
        on: the conditions.
    """

    kind: Literal["left", "semi", "anti", "null_anti"]
    on: tuple[exp.Expr, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return super().columns if self.kind == "left" else self.left.columns


@dataclass(frozen=True, eq=False)
class FullJoin(_Pair):
    """FULL OUTER JOIN."""

    on: tuple[exp.Expr, ...]


@dataclass(frozen=True, eq=False)
class UnionAll(_Many):
    """All rows of all inputs, which have the same columns."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return self.inputs[0].columns


@dataclass(frozen=True, eq=False)
class SetOp(_Pair):
    """INTERSECT or EXCEPT of two inputs with the same columns."""

    kind: Literal["INTERSECT", "EXCEPT"]
    all: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Output columns."""
        return self.left.columns


Node = (
    Scan | Unit | Filter | Project | Generate | Aggregate | Window | Distinct
    | InnerJoin | SideJoin | FullJoin | UnionAll | SetOp
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tree:
    """A compiled query: the topmost operator, and its column for each column of the result."""

    root: Node
    outputs: Mapping[str, str]

    @property
    def selected(self) -> str:
        """The list of a SELECT of the result from the rows of the topmost operator."""
        return ", ".join(f"{quote(c)} AS {quote(o)}" for o, c in self.outputs.items())


# --- expressions --------------------------------------------------------------------------------------------------


def column(name: str) -> exp.Column:
    """Return a column of the tree as an expression."""
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def text(expression: exp.Expr) -> str:
    """Return an expression as Spark SQL."""
    return expression.sql(DIALECT, comments=False)


def refs(expression: exp.Expr) -> set[str]:
    """Return the columns that an expression reads."""
    return {c.name for c in expression.find_all(exp.Column)}


def substitute(expression: exp.Expr, by: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return the expression with columns replaced."""

    def replaced(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name in by:
            new = by[node.name].copy()
            return new if isinstance(new, exp.Column | exp.Literal | exp.Func | exp.Paren) else exp.Paren(this=new)
        return node

    return expression.copy().transform(replaced)


def conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """Return the parts of a condition that are combined by AND."""
    if condition is None:
        return []
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]


def equal(
    condition: exp.Expr, left_columns: Iterable[str], right_columns: Iterable[str]
) -> tuple[exp.Expr, exp.Expr] | None:
    """Return the sides of `x = y`, the first over `left_columns` only, the second over `right_columns`; None for other
    conditions."""
    if isinstance(condition, exp.Paren):
        return equal(condition.this, left_columns, right_columns)
    if not isinstance(condition, exp.EQ) or condition.meta.get("mixed"):
        return None
    left_columns, right_columns = set(left_columns), set(right_columns)
    for x, y in ((condition.this, condition.expression), (condition.expression, condition.this)):
        if refs(x) and refs(y) and refs(x) <= left_columns and refs(y) <= right_columns:
            return x, y
    return None


def equals(
    on: Iterable[exp.Expr], left_columns: Iterable[str], right_columns: Iterable[str]
) -> list[tuple[exp.Expr, exp.Expr]]:
    """Return all pairs of `equal` among the conditions of a join."""
    left_columns, right_columns = set(left_columns), set(right_columns)
    return [pair for c in on if (pair := equal(c, left_columns, right_columns))]


def users_text(node: Node, expression: exp.Expr) -> str:
    """Return an operator's expression for people, with `f.carrier` in place of the tree's unique column name."""
    fields = {n: (s.alias or s.table.name, c) for s in scans(node) for n, c in s.fields.items()}

    def with_alias(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column):
            return part
        table, name = fields.get(part.name, ("", ""))
        # Computed columns are named after something, with a number.
        return exp.column(name, table=table) if name else exp.column(part.name.rpartition("_")[0] or part.name)

    return text(expression.copy().transform(with_alias))


# --- the tree as a whole ------------------------------------------------------------------------------------------


def walk(node: Node) -> Iterator[Node]:
    """Yield the operator and all operators below, from the top."""
    yield node
    for below in node.inputs:
        yield from walk(below)


def scans(node: Node) -> list[Scan]:
    """Return the occurrences of tables, from left to right."""
    return [n for n in walk(node) if isinstance(n, Scan)]


def top_operator(node: Node) -> Node:
    """Return the topmost operator other than projections and filters."""
    while isinstance(node, Project | Filter):
        node = node.input
    return node


def expressions(node: Node) -> list[exp.Expr]:
    """Return the operator's own expressions."""
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


def definitions(node: Node, name: str) -> list[tuple[Node, exp.Expr]]:
    """Return what a column of an operator is computed from: expressions over its inputs, each with the input."""
    match node:
        case Scan() | Unit():
            return []
        case Project() | Aggregate() | Window():
            items = dict((*node.keys, *node.calls) if isinstance(node, Aggregate) else node.items)
            return [(node.input, items.get(name) or column(name))]
        case Generate() if name in node.generated:
            return [(node.input, node.call)]
        case _:
            return [(i, column(name)) for i in node.inputs if name in i.columns]


def with_inputs(node: Node, inputs: Sequence[Node]) -> Node:
    """Return an operator over other inputs; the operator itself if they are the same."""
    if all(a is b for a, b in zip(node.inputs, inputs, strict=True)):
        return node
    match node:
        case Scan() | Unit():
            return node
        case InnerJoin() | UnionAll():
            return replace(node, inputs=tuple(inputs))
        case SideJoin() | FullJoin() | SetOp():
            return replace(node, left=inputs[0], right=inputs[1])
        case _:
            return replace(node, input=inputs[0])

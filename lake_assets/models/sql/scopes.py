"""Names within one SELECT, and its compiled form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators.query_tree import Node, column

Ctes = Mapping[str, "Closed"]


class Uncompilable(Exception):
    """A query that can only be computed as a whole; the message says why. Caught within this package."""


@dataclass(frozen=True)
class Scope:
    """Columns by name within one SELECT.

    Attributes:
        columns: columns of the tree by table alias and column name.
        outer: the scope of the outer SELECT, for a subquery.
    """

    columns: dict[tuple[str, str], exp.Column] = field(default_factory=dict)
    outer: Scope | None = None

    def add(self, alias: str, columns: Iterable[tuple[str, str]]) -> None:
        """Add the columns of a table: by their names in the query, the tree's."""
        for name, internal in columns:
            self.columns[(alias.lower(), name.lower())] = column(internal)

    def find(self, node: exp.Column) -> exp.Column:
        """Return the tree's column for a column of the query.

        Raises:
            Uncompilable: no table in this or an outer scope has it.
        """
        scope: Scope | None = self
        while scope is not None:
            if known := scope.columns.get((node.table.lower(), node.name.lower())):
                copy = known.copy()
                copy.type = copy.type or node.type
                return copy
            scope = scope.outer
        raise Uncompilable(f"{node.sql(DIALECT)} is not a column of the tables in FROM")


@dataclass(frozen=True)
class Closed:
    """A CTE with the CTEs before it, which it can use."""

    query: exp.Expr
    ctes: Ctes


@dataclass(frozen=True)
class Compiled:
    """A compiled SELECT: its operator, and name and column of each output, in order."""

    node: Node
    outputs: tuple[tuple[str, str], ...]

"""Names within one SELECT, and what it is compiled to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from lake_assets.lake.sql_text import DIALECT
from lake_assets.models.operators.query_tree import (
    Node,
)

Ctes = Mapping[str, "Closed"]


class Uncompilable(Exception):
    """A part of the query that is computed as a whole only; the message says which. Never leaves this package."""


@dataclass(frozen=True)
class Scope:
    """The columns that names stand for within one SELECT.

    Attributes:
        columns: by table alias and column name.
        outer: of the SELECT around it, where it is a subquery.
        seen: columns of `outer` that were used.
    """

    columns: dict[tuple[str, str], exp.Column] = field(default_factory=dict)
    outer: Scope | None = None
    seen: set[str] = field(default_factory=set)

    def find(self, node: exp.Column) -> exp.Column:
        """The tree's column for a column of the query."""
        at: Scope | None = self
        while at is not None:
            if found := at.columns.get((node.table.lower(), node.name.lower())):
                if at is not self:
                    self.seen.add(found.name)
                found = found.copy()
                found.type = found.type or node.type
                return found
            at = at.outer
        raise Uncompilable(f"{node.sql(DIALECT)} is no column of a table that it selects from")


@dataclass(frozen=True)
class Closed:
    """A CTE with those that it can see: those before it."""

    query: exp.Expr
    ctes: Ctes


@dataclass(frozen=True)
class Compiled:
    """A compiled SELECT: its operator, and the columns of it that the SELECT names, in order."""

    node: Node
    outputs: tuple[tuple[str, str], ...]

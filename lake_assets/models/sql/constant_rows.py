"""Relations that read no table: VALUES, and SELECTs without FROM."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from lake_assets.models.operators.query_tree import Node, Project, UnionAll, Unit
from lake_assets.models.sql.scopes import Compiled, Ctes, Uncompilable

# Each row is a branch of a union, and Spark plans each branch.
_MAX_VALUES = 200


def constant_rows(values: exp.Values, name: Callable[[str], str]) -> Compiled:
    """Compile VALUES.

    Args:
        values: the rows.
        name: returns a unique column name like a given one.

    Raises:
        Uncompilable: there are too many of them.
    """
    rows = [list(row.expressions) if isinstance(row, exp.Tuple) else [row] for row in values.expressions]
    if len(rows) > _MAX_VALUES:
        raise Uncompilable(f"VALUES with more than {_MAX_VALUES} rows: store them in a table")
    names = [name(f"col{i}") for i, _ in enumerate(rows[0], start=1)]
    branches = tuple(Project(Unit(name("unit")), tuple(zip(names, row, strict=True))) for row in rows)
    outputs = tuple((f"col{i}", n) for i, n in enumerate(names, start=1))
    return Compiled(branches[0] if len(branches) == 1 else UnionAll(branches), outputs)


def is_constant(query: exp.Expr, ctes: Ctes) -> bool:
    """Whether a query reads no table, neither by itself nor by the CTEs that it names."""
    return all(
        not table.db and (cte := ctes.get(table.name.lower())) is not None and is_constant(cte.query, cte.ctes)
        for table in query.find_all(exp.Table)
    )


def is_single_row(node: Node) -> bool:
    """Whether an operator returns exactly one row, which never changes."""
    while isinstance(node, Project):
        node = node.input
    return isinstance(node, Unit)

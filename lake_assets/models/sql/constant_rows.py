"""Relations that read no table: VALUES, and SELECTs without FROM."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from lake_assets.lake import thresholds
from lake_assets.models.operators.query_tree import Node, Project, UnionAll, Unit
from lake_assets.models.sql.scopes import Compiled, Ctes, Uncompilable


def constant_rows(values: exp.Values, name: Callable[[str], str]) -> Compiled:
    """Compile VALUES.

    Raises:
        Uncompilable: there are too many of them.
    """
    rows = [list(row.expressions) if isinstance(row, exp.Tuple) else [row] for row in values.expressions]
    if len(rows) > thresholds.CONSTANT_ROWS:
        raise Uncompilable(f"VALUES with more than {thresholds.CONSTANT_ROWS} rows: store them in a table")
    names = [name(f"col{i}") for i, _ in enumerate(rows[0], start=1)]
    branches = tuple(Project(Unit(name("unit")), tuple(zip(names, row, strict=True))) for row in rows)
    outputs = tuple((f"col{i}", n) for i, n in enumerate(names, start=1))
    return Compiled(branches[0] if len(branches) == 1 else UnionAll(branches), outputs)


def table_functions_as_queries(query: exp.Query) -> exp.Query:
    """Replace the functions that a query names as tables, `range(n)` and generators, by subqueries, in place."""
    for table in [t for t in query.find_all(exp.Table) if generated_rows(t) is not None]:
        rows = generated_rows(table)
        assert rows is not None
        # Without a name, Spark calls the rows after the function.
        alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.this.sql_name().lower()))
        table.replace(exp.Subquery(this=rows, alias=exp.TableAlias(this=alias.this.copy())))
    return query


def generated_rows(table: exp.Table) -> exp.Select | None:
    """Return a SELECT of the rows of a function that a query names as a table; None if the function is unknown, or its
    arguments are no constants."""
    call, alias = table.this, table.args.get("alias")
    names = [c.name for c in alias.columns] if alias else []
    if isinstance(call, exp.Identifier) or call.find(exp.Column, exp.Query):
        return None
    defaults = ["col"]
    if isinstance(call, exp.Anonymous) and call.name.lower() == "range":
        sequence = _sequence(call.expressions)
        if sequence is None:
            return None
        call, defaults = exp.Explode(this=sequence), ["id"]
    elif isinstance(call, exp.Posexplode):
        defaults = ["pos", "col"]
    elif not isinstance(call, exp.Explode):
        return None
    if names and len(names) != len(defaults):
        return None
    columns = [exp.to_identifier(n, quoted=True) for n in names or defaults]
    view = exp.Lateral(
        this=call.copy(), view=True, alias=exp.TableAlias(this=exp.to_identifier("rows"), columns=columns)
    )
    return exp.select(*(exp.column(c.copy(), table="rows") for c in columns)).from_(_ONE_ROW.copy()).lateral(view)


_ONE_ROW = exp.Subquery(this=exp.select("1 AS one"), alias=exp.TableAlias(this=exp.to_identifier("unit")))


def _sequence(bounds: list[exp.Expr]) -> exp.Expr | None:
    """Return the numbers of `range`; None unless it has one or two whole numbers, and is not empty."""
    if len(bounds) not in (1, 2) or not all(b.is_int for b in bounds):
        return None
    low, high = (0, int(bounds[0].to_py())) if len(bounds) == 1 else (int(b.to_py()) for b in bounds)
    if low >= high:
        return None
    first, last = (exp.cast(exp.Literal.number(n), "bigint") for n in (low, high - 1))
    return exp.GenerateSeries(start=first, end=last)


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

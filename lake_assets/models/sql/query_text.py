"""Queries over views in place of their tables, as text and as a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from lake_assets.lake import TableId, quote
from lake_assets.lake.sql_text import DIALECT


def replace_tables(query: exp.Query, view_of: Callable[[TableId], str]) -> exp.Query:
    """Return the query over views."""
    query = query.copy()
    for table in _tables(query):
        view = exp.to_table(view_of(TableId((table.db,), table.name)), dialect=DIALECT)
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        # The rest of the table expression stays: PIVOT, names of its columns, joins in parentheses.
        for part in ("this", "db", "catalog"):
            table.set(part, view.args.get(part))
    return query


def as_named(rows: DataFrame, outputs: Sequence[str]) -> DataFrame:
    """Return the rows of a query's text with the names and order of the query's output columns.

    Spark gives other names to columns that have no name in the text.
    """
    if rows.columns == list(outputs) or len(rows.columns) != len(outputs):
        return rows
    by_name = {o.lower(): o for o in outputs}
    # Columns without a name keep their order, whatever columns USING moves to the front.
    unnamed = iter(o for o in outputs if o.lower() not in {c.lower() for c in rows.columns})
    named = rows.toDF(*(by_name.get(c.lower()) or next(unnamed) for c in rows.columns))
    return named.select(*(F.col(quote(o)) for o in outputs))


def _tables(query: exp.Query) -> list[exp.Table]:
    # Hints are parsed separately: positions in them are not positions in the query.
    return [t for t in query.find_all(exp.Table) if t.db and not t.find_ancestor(exp.Hint)]


def without_catalog(query: exp.Query, sql: str, catalog: str) -> str:
    """Return the original text of a query, with the tables of a catalog named without it; lines stay where they are."""
    tables = [t for t in _tables(query) if t.catalog == catalog]
    named = {(t.db, t.name) for t in tables}
    # Columns may be qualified by the full name of their table.
    columns = [c for c in query.find_all(exp.Column) if c.catalog == catalog and (c.db, c.table) in named]
    parts, end_of_last = [], 0
    for node in sorted([*tables, *columns], key=lambda n: n.args["catalog"].meta["start"]):
        start, end = node.args["catalog"].meta["start"], node.args["db"].meta["start"]
        parts += [sql[end_of_last:start], "\n" * sql.count("\n", start, end)]
        end_of_last = end
    return "".join([*parts, sql[end_of_last:]])


def text_over(query: exp.Query, sql: str, view_of: Callable[[TableId], str]) -> str:
    """Return the original text of a query, over views."""
    parts, end_of_last = [], 0
    for table in sorted(_tables(query), key=lambda t: t.args["db"].meta["start"]):
        start, end = table.args["db"].meta["start"], table.this.meta["end"] + 1
        alias = "" if table.alias else f" AS {quote(table.name)}"
        parts += [sql[end_of_last:start], view_of(TableId((table.db,), table.name)), alias]
        end_of_last = end
    return "".join([*parts, sql[end_of_last:]]).rstrip().rstrip(";")

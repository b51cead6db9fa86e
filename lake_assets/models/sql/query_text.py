"""A query over views in place of its tables, as text and as a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from lake_assets.lake import TableId, quote
from lake_assets.lake.sql_text import DIALECT


def replace_tables(query: exp.Query, view_of: Callable[[TableId], str]) -> exp.Query:
    """The query over views."""
    query = query.copy()
    for table in _tables(query):
        view = exp.to_table(view_of(TableId((table.db,), table.name)), dialect=DIALECT)
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        # What else is said of the table stays: PIVOT, names of its columns, joins within parentheses.
        for part in ("this", "db", "catalog"):
            table.set(part, view.args.get(part))
    return query


def as_named(rows: DataFrame, outputs: Sequence[str]) -> DataFrame:
    """The rows of a query's text with the names, and in the order, of the query's output columns.

    Spark calls otherwise what has no name in the text.
    """
    if rows.columns == list(outputs) or len(rows.columns) != len(outputs):
        return rows
    by_name = {o.lower(): o for o in outputs}
    # Those without a name follow one another as in the query, whatever is put in front by USING.
    unnamed = iter(o for o in outputs if o.lower() not in {c.lower() for c in rows.columns})
    named = rows.toDF(*(by_name.get(c.lower()) or next(unnamed) for c in rows.columns))
    return named.select(*(F.col(quote(o)) for o in outputs))


def _tables(query: exp.Query) -> list[exp.Table]:
    # Hints are read by themselves: where a table is in them is no place in the query.
    return [t for t in query.find_all(exp.Table) if t.db and not t.find_ancestor(exp.Hint)]


def text_over(query: exp.Query, sql: str, view_of: Callable[[TableId], str]) -> str:
    """The text of a query as it was written, over views."""
    out, done = [], 0
    for table in sorted(_tables(query), key=lambda t: t.args["db"].meta["start"]):
        start, end = table.args["db"].meta["start"], table.this.meta["end"] + 1
        alias = "" if table.alias else f" AS {quote(table.name)}"
        out += [sql[done:start], view_of(TableId((table.db,), table.name)), alias]
        done = end
    return "".join([*out, sql[done:]]).rstrip().rstrip(";")

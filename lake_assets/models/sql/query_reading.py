"""What a pipeline's graph has to know of a model's SQL. The graph is made at each look: a text is parsed once."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from sqlglot import exp

from lake_assets.lake import TableId
from lake_assets.models.sql.model_plan import outputs_of, parse, sources_of
from lake_assets.models.sql.query_text import without_catalog


class ReadQuery(NamedTuple):
    """The query of a model.

    Attributes:
        sql: its text, without the name of the lake's catalog.
        sources: the tables that it reads.
        columns: the columns of its result, as far as the text names them.
    """

    sql: str
    sources: tuple[TableId, ...]
    columns: tuple[str, ...]


@lru_cache(2_000)
def read_query(name: str, sql: str, catalog: str) -> ReadQuery:
    """Return the query of a model.

    Args:
        catalog: the name of the lake's catalog.

    Raises:
        ModelError: it is not a single SELECT, or what it reads is no table.
    """
    query = parse(name, sql)
    if any(t.catalog == catalog for t in query.find_all(exp.Table)):
        sql = without_catalog(query, sql, catalog)
        query = parse(name, sql)
    return ReadQuery(sql, sources_of(name, query, catalog), tuple(outputs_of(query)))

"""Reject records about a table of another database that has the same schema and name.

A connector may record several databases, or several connectors write into one stream. Tables are told apart by schema
and name, so the rows of tenants with a database each would become one table, and positions in two logs one order.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from pyiceberg.table import Table

from lake_assets.formats import SourceTable
from lake_assets.ingest.raw_tables import stored

# Snapshot property of a raw table: the database of each source table.
PROPERTY = "lake-assets.databases"


class Databases:
    """The databases of a stream's tables: as declared, or the first one of each table."""

    def __init__(self, raw: Table, declared: Collection[str]) -> None:
        self._declared = declared
        self._of: dict[str, str] = stored(raw, PROPERTY)

    def problem(self, table: SourceTable, database: str | None) -> str | None:
        """Return why a record is not about the stream's table; None if it is. `database`: None if it does not say."""
        # Where a database is all that tables are in, it is their schema.
        if database in (None, table.schema, *self._declared):
            return None
        if self._declared:
            return f"the record is about {table} of the database {database}, which `databases` does not list"
        first = self._of.setdefault(str(table), database)
        if first == database:
            return None
        return (
            f"the record is about {table} of the database {database}, and earlier ones are about {table} of {first}: "
            "give each database a stream of its own (with a `namespace` or `prefix`), or, if both are one table, "
            f"declare `databases: [{first}, {database}]` in the stream"
        )

    def properties(self) -> dict[str, str]:
        """Return the snapshot properties that the next landing starts from, since older snapshots expire."""
        return {PROPERTY: json.dumps(self._of, sort_keys=True)} if self._of else {}

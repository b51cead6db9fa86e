"""Set properties of a table by a commit of its metadata, without Spark."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table

from lake_assets.lake.metadata.metadata_commits import Metadata, can_commit, commit


def put(table: Table, properties: Mapping[str, str]) -> None:
    """Set properties; those with an empty value are removed.

    Raises:
        MovedError, CommitFailedException: the table was replaced, or other writers were faster each time.
    """
    removed = {name for name, value in properties.items() if not value}
    if not can_commit(table.catalog):
        with table.transaction() as transaction:
            transaction.set_properties({n: v for n, v in properties.items() if v})
            transaction.remove_properties(*(n for n in removed if n in table.properties))
        return

    def changed(metadata: Metadata) -> Metadata | None:
        before = metadata.get("properties", {})
        after = {n: v for n, v in {**before, **properties}.items() if n not in removed}
        return {**metadata, "properties": after} if after != before else None

    commit(table, changed)

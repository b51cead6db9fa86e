"""Captured changes as a separate table, for SQL clients that cannot reach the session that captured them."""

from __future__ import annotations

from pyspark.sql import DataFrame

from lake_assets.capture import Capture
from lake_assets.errors import ConfigError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.row_counts import row_count
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import replace_table

PREFIX = "lake-assets.changes."


def check_replaceable(lake: LakeBase, table: TableId) -> None:
    """Check that changes may be written as `table`.

    Raises:
        ConfigError: the table exists, and was not written by `write_changes`.
    """
    existing = lake.find(table)
    if existing is not None and f"{PREFIX}table" not in existing.properties:
        raise ConfigError(
            f"{table} exists and was not written by `lake-assets changes`, so it is not replaced: name another table, "
            "or drop it first"
        )


def write_changes(lake: LakeBase, table: TableId, rows: DataFrame, capture: Capture) -> int:
    """Create or replace `table` with the changes of a capture in one commit; return the number of rows.

    The table's properties name the captured table and snapshots. The table is a copy; its users drop it.

    Raises:
        ConfigError: see `check_replaceable`.
    """
    check_replaceable(lake, table)
    window, source = capture.window, lake.table(capture.window.table)
    facts = {"table": window.table, "from-snapshot": window.start_snapshot_id, "to-snapshot": window.end_snapshot_id}
    properties = {f"{PREFIX}{k}": str(v) for k, v in facts.items() if v is not None}
    # Older versions of the table format lack some types.
    properties |= {"format-version": str(source.format_version), "write.distribution-mode": "none"}
    replace_table(Commit(lake, table, lake.find(table)), rows, properties)
    return row_count(lake.table(table)) or 0

"""What `status` says of the history of a table's sources: that it is lost, or that columns have other names."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table

from lake_assets.capture.renamed_columns import ADDED_AGAIN, renamed_since
from lake_assets.ingest.staging.due_records import missing_after_rollback, what_is_missing
from lake_assets.ingest.staging.staging_columns import source_of
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.tables.pending_windows import GONE, rebuild_advice, window_of


def lost_history(table_id: TableId, table: Table, sources: Mapping[str, Table | None]) -> list[str]:
    """Return the sources whose history since the watermark is lost, each with what to do."""
    if source_of(table) is not None:
        return _undone_records(table_id, table, sources)
    texts: list[str] = []
    for name, source in sources.items():
        if source is None:
            advice = rebuild_advice(table_id, TableId.parse(name), option="on_replaced")
            texts.append(
                f"{name}, which was read before, {GONE}. Restore it; or let the run or the program that writes it "
                f"create it again: then {advice}"
            )
            continue
        source_id = TableId.parse(name)
        if lost := window_of(table_id, table, source_id, source).lost:
            # A raw table may be the only copy of its records: its next run says what to do.
            advice = (
                f". {rebuild_advice(table_id, source_id, option=lost.option)}" if table_id.namespace != ("raw",) else ""
            )
            texts.append(f"{lost.why}{advice}")
    return texts


def _undone_records(table_id: TableId, table: Table, raws: Mapping[str, Table | None]) -> list[str]:
    """Return which raw tables have to land records again. Not checked if history is lost: that needs Spark."""
    windows = [(raw, window_of(table_id, table, TableId.parse(n), raw)) for n, raw in raws.items() if raw is not None]
    return [
        what_is_missing(table_id, window.source, missing)
        for raw, window in windows
        if (missing := missing_after_rollback(raw, window))
    ]


def renamed_columns(
    table: str, pipeline: str, marks: Mapping[str, Watermark], sources: Mapping[str, Table | None]
) -> list[str]:
    """Return the columns that sources of a table have renamed or dropped since they were absorbed."""
    texts: list[str] = []
    for name, source in sources.items():
        # The columns of staging tables follow declared renames, and their readers do too.
        if source is None or source_of(source) is not None:
            continue
        if changes := renamed_since(source, marks[name].snapshot):
            text = (
                f"columns of {name} were renamed or dropped since it was absorbed: {', '.join(changes)}. "
                f"`lake-assets check {pipeline}` names the SQL that reads a name that is gone"
            )
            if any(ADDED_AGAIN in change for change in changes):
                text += (
                    f". Earlier rows have no value in a column that was added again. If {table} reads it, its next "
                    f"step stops; `lake-assets rebuild {table}` computes the table with null for these rows"
                )
            texts.append(text)
    return texts

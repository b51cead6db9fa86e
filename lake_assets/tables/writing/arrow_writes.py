"""Write Arrow rows to a table without Spark: PyIceberg commits them, if the table is as it was loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table import Table

from lake_assets.lake import TableId, thresholds
from lake_assets.tables.writing.races import lost

log = logging.getLogger(__name__)


def write_arrow(
    table: TableId,
    before: Table,
    rows: pa.Table | pa.RecordBatchReader,
    properties: Mapping[str, str],
    *,
    overwrite: bool = False,
) -> None:
    """Append rows, or replace all rows by them, in one commit.

    Args:
        table: the table, of a format version that PyIceberg writes.
        before: the table as it was loaded. Other writers' commits since then make this one fail.
        rows: the rows, with the table's columns.
        properties: properties of the commit. They are read after the last row.
        overwrite: whether they replace all rows.

    Raises:
        ConcurrentWriteError: another writer has changed the table; nothing of these rows is in it.
    """
    # What the rows hold, such as positions, follows from `before`: the commit must not be retried on top of another.
    # Only this process's copy of the table's properties is changed.
    before.metadata.properties["commit.retry.num-retries"] = "0"
    before.metadata.properties["write.target-file-size-bytes"] = str(thresholds.BYTES_A_FILE)
    recorded = _RecordedFiles(before.io)
    before.io = recorded
    try:
        transaction = before.transaction()
        write: Any = transaction.overwrite if overwrite else transaction.append
        try:
            write(rows, snapshot_properties=properties)
        except Exception:
            recorded.delete_all()
            raise
        try:
            transaction.commit_transaction()
        except CommitFailedException as e:
            recorded.delete_all()
            raise lost(table, e) from e
    finally:
        before.io = recorded.io


class _RecordedFiles(FileIO):
    """A FileIO that knows what was written through it, since PyIceberg leaves it behind if its commit fails."""

    def __init__(self, io: FileIO) -> None:
        super().__init__(io.properties)
        self.io = io
        self._written: list[str] = []

    def new_input(self, location: str) -> InputFile:
        return self.io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        self._written.append(location)
        return self.io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self.io.delete(location)

    def delete_all(self) -> None:
        """Delete what was written; what cannot be deleted is logged."""
        for location in self._written:
            try:
                self.io.delete(location)
            except FileNotFoundError:
                continue  # it was not written after all
            except OSError as e:
                log.warning("%s belongs to no snapshot, and could not be deleted: %s", location, e)

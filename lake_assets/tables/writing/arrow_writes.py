"""Write Arrow rows to a table without Spark: PyIceberg commits them, if the table is as it was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from lake_assets.lake import TableId, thresholds
from lake_assets.tables.writing.races import lost


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
    write: Any = before.overwrite if overwrite else before.append
    try:
        write(rows, snapshot_properties=properties)
    except CommitFailedException as e:
        raise lost(table, e) from e

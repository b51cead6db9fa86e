"""The first rows of the data files that a commit has added, read with Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation


def written_rows(table: Table, snapshot_id: int | None, most: int) -> list[dict[str, Any]]:
    """Return at most `most` rows of the data files that a snapshot has added; empty if none can be read cheaply.

    Args:
        table: the table.
        snapshot_id: the snapshot; None: the current one.
        most: number of rows.
    """
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else table.current_snapshot()
    if snapshot is None or (snapshot.summary and snapshot.summary.operation == Operation.REPLACE):
        return []
    names = table.schema().column_names
    rows: list[dict[str, Any]] = []
    try:
        for path in _added(table, snapshot.snapshot_id):
            with table.io.new_input(path).open() as opened, pq.ParquetFile(opened) as parquet:
                columns = [n for n in parquet.schema_arrow.names if n in names]
                batch = next(parquet.iter_batches(batch_size=most - len(rows), columns=columns), None)
                rows += batch.to_pylist() if batch is not None else []
            if len(rows) >= most:
                break
    except (OSError, pa.ArrowException):
        return []  # only a preview: what reads the table says what is wrong
    return rows


def _added(table: Table, snapshot_id: int) -> Iterator[str]:
    snapshot = table.snapshot_by_id(snapshot_id)
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.added_snapshot_id != snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io):
            file = entry.data_file
            is_data = file.content == DataFileContent.DATA and file.file_format.value.upper() == "PARQUET"
            if is_data and entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id:
                yield file.file_path

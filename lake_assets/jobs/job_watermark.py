"""The watermark of a job's table, where the job's own commit does not carry it."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.exceptions import CommitFailedException

from lake_assets.errors import ConcurrentWriteError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermarks
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.writing.table_ddl import set_properties
from lake_assets.tables.writing.table_writer import TableWriter

_ATTEMPTS = 5


def move_watermark(lake: LakeBase, table: TableId, base: Watermarks, properties: Mapping[str, str]) -> None:
    """Move the watermark by a commit without files; without Spark, unless PyIceberg cannot write the table's format.

    Args:
        lake: the lake.
        table: the table.
        base: its expected watermarks.
        properties: the snapshot properties with the new ones.

    Raises:
        ConcurrentWriteError: the table has other watermarks, or every attempt lost against another writer.
    """
    lost: Exception | None = None
    for _ in range(_ATTEMPTS):
        loaded = lake.table(table)
        if known_marks(loaded) != dict(base):
            raise ConcurrentWriteError(f"{table}: another writer moved its watermark during this step")
        if loaded.format_version >= 3:
            TableWriter(lake, table, loaded, {}, None, properties=properties).nothing()
            return
        try:
            loaded.append(loaded.schema().as_arrow().empty_table(), snapshot_properties=dict(properties))
            return
        except CommitFailedException as e:
            lost = e
    raise ConcurrentWriteError(f"{table}: another writer was faster {_ATTEMPTS} times in a row: {lost}") from lost


def own(lake: LakeBase, table: TableId, owner: str) -> None:
    """Note in the table who moves its watermark: a watermark that expires is then missed."""
    set_properties(lake, table, {PIPELINE_PROPERTY: owner})

"""The watermark of a job's table, where the job's own commit does not carry it."""

from __future__ import annotations

from collections.abc import Mapping

from lake_assets.errors import ConcurrentWriteError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermarks
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.writing.arrow_writes import write_arrow
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
    for attempt in range(_ATTEMPTS):
        loaded = lake.table(table)
        if known_marks(loaded) != dict(base):
            raise ConcurrentWriteError(f"{table}: another writer moved its watermark during this step")
        try:
            if loaded.format_version >= 3:
                TableWriter(lake, table, loaded, {}, None, properties=properties).nothing()
            else:
                write_arrow(table, loaded, loaded.schema().as_arrow().empty_table(), properties)
        except ConcurrentWriteError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def own(lake: LakeBase, table: TableId, owner: str) -> None:
    """Note in the table who moves its watermark: a watermark that expires is then missed."""
    set_properties(lake, table, {PIPELINE_PROPERTY: owner})

"""Raw tables: what they hold, and what their commits say of it: places given out, source tables, offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from lake_assets.capture import capture
from lake_assets.errors import ConcurrentWriteError, SnapshotExpiredError
from lake_assets.formats import SourceTable
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, find_property

POSITION_PROPERTY = "lake-assets.position"
ROUTES_PROPERTY = "lake-assets.source-tables"
OFFSETS_PROPERTY = "lake-assets.offsets"
ARRIVED_PROPERTY = "lake-assets.arrived"
# The folder whose files are taken in, as a property of the table: who looks at a lake may not know its pipelines.
LANDING_PROPERTY = "lake-assets.landing"
ROWS_A_GROUP = 20_000

RAW_SCHEMA = Schema(
    NestedField(1, "position", LongType(), required=True, doc="order of arrival in this table, without gaps"),
    NestedField(2, "source_table", StringType(), doc="the table that the record is about; null: none; *: several"),
    NestedField(3, "source_file", StringType(), required=True),
    NestedField(4, "source_line", LongType(), required=True, doc="counted from 1"),
    NestedField(5, "arrived_at", TimestamptzType(), required=True),
    NestedField(6, "record", StringType(), required=True, doc="the line as it came"),
    NestedField(7, "problem", StringType(), doc="why it cannot be told which table the record is about"),
    NestedField(8, "schema_key", StringType(), doc="records with the same one are read alike"),
    NestedField(9, "payload", StringType(), doc="the record without its schema, where it came with one"),
    NestedField(10, "transaction", StringType(), doc="which one it belongs to, where lines around it say that"),
)
ARROW: pa.Schema = pa.schema(
    [f.with_type(pa.string()) if pa.types.is_large_string(f.type) else f for f in RAW_SCHEMA.as_arrow()]
)
# PyIceberg writes format version 2; the record itself needs no bounds, the table it is about needs them whole.
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    **VERSIONS,
    "write.metadata.metrics.column.record": "none",
    "write.metadata.metrics.column.payload": "none",
    # Records of one kind are packed so well that one task would read them all, if they were split by bytes alone.
    "write.parquet.row-group-limit": str(ROWS_A_GROUP),
    "read.split.target-size": str(4 << 20),
    "write.metadata.metrics.column.source_table": "full",
    "history.expire.min-snapshots-to-keep": "20",
}


def ensure_raw(lake: LakeBase, table: TableId, pipeline: str) -> Table:
    """The raw table, made if it is not there."""
    if not lake.exists(table):
        lake.ensure_namespace(table.namespace)
        try:
            return lake.catalog.create_table(
                table.parts,
                RAW_SCHEMA,
                lake.location_of(table),
                properties={**_PROPERTIES, PIPELINE_PROPERTY: pipeline},
            )
        except TableAlreadyExistsError:
            return lake.table(table)  # another process was quicker
    raw = lake.table(table)
    if "transaction" not in raw.schema().column_names:
        with raw.update_schema() as update:
            update.add_column("transaction", StringType(), RAW_SCHEMA.find_field("transaction").doc)
    return raw


def record_landing(raw: Table, folder: Path) -> None:
    """Let the raw table say which folder its files come from.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    if raw.properties.get(LANDING_PROPERTY) == str(folder):
        return
    try:
        with raw.transaction() as transaction:
            transaction.set_properties({LANDING_PROPERTY: str(folder)})
    except CommitFailedException as e:
        raise ConcurrentWriteError(f"{'.'.join(raw.name())}: another process landed files at the same time") from e


def routes(lake: LakeBase, table: TableId) -> list[SourceTable]:
    """The source tables that records have come for so far, as the landings' commits say."""
    return routes_of(lake.table(table)) if lake.exists(table) else []


def routes_of(raw: Table) -> list[SourceTable]:
    """The same, of a table that is loaded."""
    found = find_property(raw, ROUTES_PROPERTY)
    return [SourceTable.parse(r) for r in json.loads(found[0])] if found else []


def offsets(lake: LakeBase, table: TableId) -> dict[str, Any]:
    """By name of a Python source: up to where it was taken in."""
    found = find_property(lake.table(table), OFFSETS_PROPERTY) if lake.exists(table) else None
    return json.loads(found[0]) if found else {}


def next_position(lake: LakeBase, table: TableId, raw: Table) -> int:
    """The place that the next record gets.

    Raises:
        SnapshotExpiredError: neither the commits nor the bounds of the data files say it any more.
    """
    found = find_property(raw, POSITION_PROPERTY)
    if found or raw.metadata.current_snapshot_id is None:
        return int(found[0]) if found else 0
    # The snapshots that said so have expired; the bounds of the data files still know.
    with capture(lake, table, None, raw.metadata.current_snapshot_id) as everything:
        highest = everything.ranges["position"].high
    if highest is None:
        raise SnapshotExpiredError(
            f"{table} does not tell which positions are taken: its landings' snapshots have expired and its data files "
            "have no bounds of `position`. Rewrite its data files with metrics of that column (`full`), and run again"
        )
    return highest + 1

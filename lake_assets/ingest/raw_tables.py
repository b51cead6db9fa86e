"""Raw tables: their schema and properties, and what their snapshots store: next position, source tables, offsets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from lake_assets.capture import capture
from lake_assets.errors import SnapshotExpiredError
from lake_assets.formats import SourceTable
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, find_property

POSITION_PROPERTY = "lake-assets.position"
ROUTES_PROPERTY = "lake-assets.source-tables"
OFFSETS_PROPERTY = "lake-assets.offsets"
ARRIVED_PROPERTY = "lake-assets.arrived"
# How many records about no row have landed so far, by what they are.
SKIPPED_PROPERTY = "lake-assets.skipped"
# Table property: the landing folder, for commands that read a lake without its pipelines.
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
# PyIceberg writes format version 2. The record needs no bounds; its source table needs bounds that are not truncated.
_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    **VERSIONS,
    "write.metadata.metrics.column.record": "none",
    "write.metadata.metrics.column.payload": "none",
    # Similar records compress so well that one task would read all of them if splits were sized by bytes alone.
    "write.parquet.row-group-limit": str(ROWS_A_GROUP),
    "read.split.target-size": str(4 << 20),
    "write.metadata.metrics.column.source_table": "full",
    "history.expire.min-snapshots-to-keep": "20",
}


def ensure_raw(lake: LakeBase, table: TableId, pipeline: str) -> Table:
    """Return the raw table, creating it if it is missing."""
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


def routes(lake: LakeBase, table: TableId) -> list[SourceTable]:
    """Return the source tables that have records in a raw table."""
    return routes_of(lake.table(table)) if lake.exists(table) else []


def routes_of(raw: Table) -> list[SourceTable]:
    """Like `routes`, for a loaded table."""
    match = find_property(raw, ROUTES_PROPERTY)
    return [SourceTable.parse(r) for r in json.loads(match[0])] if match else []


def skipped(raw: Table) -> dict[str, int]:
    """Return how many records about no row have landed so far, by what they are (`heartbeats`, ...)."""
    match = find_property(raw, SKIPPED_PROPERTY)
    return json.loads(match[0]) if match else {}


def skipped_properties(raw: Table, more: Mapping[str, int]) -> dict[str, str]:
    """Return the snapshot property of a landing that adds `more` records about no row."""
    total = Counter(skipped(raw)) + Counter(more)
    return {SKIPPED_PROPERTY: json.dumps(total, sort_keys=True)} if total else {}


def skipped_text(counts: Mapping[str, int]) -> str:
    """Return the numbers of skipped records as text: `heartbeats: 3, signals: 1`."""
    return ", ".join(f"{kind}: {n:,}" for kind, n in sorted(counts.items()))


def offsets(lake: LakeBase, table: TableId) -> dict[str, Any]:
    """Return the last landed offset of each Python source, by its name."""
    match = find_property(lake.table(table), OFFSETS_PROPERTY) if lake.exists(table) else None
    return json.loads(match[0]) if match else {}


def next_position(lake: LakeBase, table: TableId, raw: Table) -> int:
    """Return the position of the next record.

    Raises:
        SnapshotExpiredError: neither snapshots nor bounds of data files tell it.
    """
    match = find_property(raw, POSITION_PROPERTY)
    if match or raw.metadata.current_snapshot_id is None:
        return int(match[0]) if match else 0
    # The snapshots with the property have expired: use the bounds of the data files.
    with capture(lake, table, None, raw.metadata.current_snapshot_id) as captured:
        highest = captured.ranges["position"].high
    if highest is None:
        raise SnapshotExpiredError(
            f"the next position in {table} is unknown: the snapshots of its landings have expired, and its data "
            "files have no bounds for `position`. Rewrite the data files with `full` metrics for that column, and "
            "run again"
        )
    return highest + 1

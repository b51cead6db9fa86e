"""Raw tables: their schema, and what the summaries of their commits store: next position, source tables, counts, ..."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from lake_assets.capture import capture
from lake_assets.errors import SnapshotExpiredError
from lake_assets.formats import SourceTable
from lake_assets.formats.event_model import MANY
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.row_counts import is_upkeep, summary_of
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, find_property

POSITION_PROPERTY = "lake-assets.position"
ROUTES_PROPERTY = "lake-assets.source-tables"
OFFSETS_PROPERTY = "lake-assets.offsets"
# In place of a file's name: lines about the schema of a live source, which it needs whenever it starts.
SCHEMA_HISTORY = "schema-history"
ARRIVED_PROPERTY = "lake-assets.arrived"
# How many records about no row have landed so far, by what they are.
SKIPPED_PROPERTY = "lake-assets.skipped"
# Table property: the landing folder, for commands that read a lake without its pipelines.
LANDING_PROPERTY = "lake-assets.landing"
# Table properties: from when on no record was deleted for its age, as an ISO time; and the source tables of those that
# may have been, each with the position after the last of them.
SINCE_PROPERTY, DELETED_PROPERTY = "lake-assets.records-since", "lake-assets.records-deleted"

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
# The columns that hold a record's text, parts of it, or what is wrong with it.
OF_RECORDS = ("record", "payload", "problem")
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
    "write.parquet.row-group-limit": str(thresholds.ROWS_A_GROUP),
    "read.split.target-size": str(thresholds.BYTES_A_SPLIT),
    "write.metadata.metrics.column.source_table": "full",
    "history.expire.min-snapshots-to-keep": str(thresholds.SNAPSHOTS_KEPT),
}


def create_table(lake: LakeBase, table: TableId, schema: Schema, properties: Mapping[str, str]) -> Table:
    """Create a table through PyIceberg; return it, or that of another process that was quicker."""
    try:
        return lake.catalog.create_table(table.parts, schema, lake.location_of(table), properties=dict(properties))
    except TableAlreadyExistsError:
        return lake.table(table)


def ensure_raw(lake: LakeBase, table: TableId, pipeline: str) -> Table:
    """Return the raw table, creating it if it is missing."""
    if not lake.exists(table):
        lake.ensure_namespace(table.namespace)
        return create_table(lake, table, RAW_SCHEMA, {**_PROPERTIES, PIPELINE_PROPERTY: pipeline})
    raw = lake.table(table)
    if "transaction" not in raw.schema().column_names:
        with raw.update_schema() as update:
            update.add_column("transaction", StringType(), RAW_SCHEMA.find_field("transaction").doc)
    return raw


def stored(raw: Table, name: str, snapshot_id: int | None = None) -> Any:
    """Return the JSON value of a property in the newest commit that has it; an empty object if none has.

    Landings repeat what the next one starts from, since older snapshots expire.
    """
    match = find_property(raw, name, snapshot_id)
    return json.loads(match[0]) if match else {}


def routes(lake: LakeBase, table: TableId) -> list[SourceTable]:
    """Return the source tables that have records in a raw table."""
    return routes_of(lake.table(table)) if lake.exists(table) else []


def routes_of(raw: Table) -> list[SourceTable]:
    """Return the source tables that have records in a loaded raw table."""
    return [SourceTable.parse(r) for r in stored(raw, ROUTES_PROPERTY)]


def kept_since(raw: Table) -> datetime | None:
    """Return the time before which records may have been deleted for their age; None: all are there."""
    text = raw.properties.get(SINCE_PROPERTY)
    return datetime.fromisoformat(text) if text else None


def deleted_about(raw: Table) -> dict[str, int]:
    """Return the source tables of which records may have been deleted for their age, `MANY` for any, each with the
    position after the last one."""
    return json.loads(raw.properties.get(DELETED_PROPERTY, "{}"))


def skipped(raw: Table) -> dict[str, int]:
    """Return how many records about no row have landed so far, by what they are (`heartbeats`, ...)."""
    return stored(raw, SKIPPED_PROPERTY)


def skipped_text(counts: Mapping[str, int]) -> str:
    """Return the numbers of skipped records as text: `heartbeats: 3, signals: 1`."""
    return ", ".join(f"{kind}: {n:,}" for kind, n in sorted(counts.items()))


def offsets(lake: LakeBase, table: TableId) -> dict[str, Any]:
    """Return the last landed offset of each Python source, by its name."""
    return stored(lake.table(table), OFFSETS_PROPERTY) if lake.exists(table) else {}


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


def position_after(raw: Table, snapshot_id: int | None) -> int | None:
    """Return the position after the last record as of a snapshot; None: its landing has expired."""
    if snapshot_id is None:
        return 0
    match = find_property(raw, POSITION_PROPERTY, snapshot_id)
    return int(match[0]) if match else None


# --- streams of several source tables ----------------------------------------------------------------------------


def nothing_until(raw: Table, start: int | None, end: int | None, source: SourceTable) -> int | None:
    """Return the last snapshot of a window before the first that may have brought records of a source table.

    The summaries of landings count their records per source table. Reads loaded metadata only.

    Returns:
        `start` if the very next snapshot may have brought some, `end` if none may.
    """
    names = tuple(f"{json.dumps(name)}:" for name in (str(source), MANY))
    for snapshot in _steps(raw, start, end) or ():
        if _may_hold(snapshot, names):
            break
        start = snapshot.snapshot_id
    return start


def arrived(raw: Table, start: int | None, end: int | None, source: SourceTable) -> int | None:
    """Count the records of a window about a source table, alone or with others; None: a commit has no counts."""
    steps = _steps(raw, start, end)
    if steps is None:
        return None
    records = 0
    for snapshot in steps:
        counts = summary_of(snapshot).get(ARRIVED_PROPERTY)
        if counts is None and not _brings_nothing(snapshot):
            return None
        by_source = json.loads(counts) if counts else {}
        records += int(by_source.get(str(source), 0)) + int(by_source.get(MANY, 0))
    return records


def _steps(raw: Table, start: int | None, end: int | None) -> tuple[Snapshot, ...] | None:
    """Return the snapshots of a window, oldest first.

    Returns:
        None if `start` is no ancestor of `end` (the table was rolled back), or snapshots between them have expired.
    """
    log = between(raw.metadata, start, end)
    # The step after an expired snapshot still names it as its parent.
    if (log.ancestor and log.undone) or (log.steps and log.steps[0].parent_snapshot_id != start):
        return None
    return log.steps if start is not None or not log.steps or _is_first(log.steps[0]) else None


def _is_first(snapshot: Snapshot) -> bool:
    """Whether the table was empty before: an expired parent may leave a snapshot without one as well."""
    summary = summary_of(snapshot)
    return summary.get("total-records", "") == summary.get("added-records")


def _brings_nothing(snapshot: Snapshot) -> bool:
    """Whether a commit brings no records. Spark marks no commit that deletes nothing but whole files."""
    is_delete = snapshot.summary is not None and snapshot.summary.operation == Operation.DELETE
    return is_delete or is_upkeep(snapshot)


def _may_hold(snapshot: Snapshot, names: tuple[str, ...]) -> bool:
    """Whether a commit counts records under one of the names (as JSON keys), or has no counts."""
    if _brings_nothing(snapshot):
        return False
    counts = summary_of(snapshot).get(ARRIVED_PROPERTY)
    # Searched as text: for an idle table, each sensor tick checks thousands of commits.
    return counts is None or any(name in counts for name in names)

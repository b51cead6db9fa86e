"""Rejected records: what could not be read, with the reason, in a table beside the raw one.

A raw table keeps every record, so that a rejected one is never lost: `<raw>_rejected` says which of its records gave no
row of a staging table (or could not be routed to one), and why. Whoever rejects writes there first and commits its own
work afterwards, and writes in a way that may be repeated: killed in between, the next run finds the same rows there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import ConcurrentWriteError, RejectedLimitError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.watermark import find_property
from lake_assets.lake.names import literal
from lake_assets.tables.commits import as_race
from lake_assets.tables.spark_frames import temp_view
from lake_assets.tables.specs import Limit

# How many records of a raw table could not be routed, ever: written by each landing, and by what copies them here.
PROPERTY = "lake-assets.rejected"
_SCHEMA = Schema(
    NestedField(1, "position", LongType(), required=True, doc="the record's place in the raw table"),
    NestedField(2, "event_index", IntegerType(), required=True, doc="the event's place in the record, from 0"),
    NestedField(3, "source_table", StringType(), doc="the table that it is about; null: it could not be told"),
    NestedField(4, "reason", StringType(), required=True),
    NestedField(5, "record", StringType(), required=True, doc="as it came"),
    NestedField(6, "source_file", StringType(), required=True),
    NestedField(7, "source_line", LongType(), required=True),
    NestedField(8, "arrived_at", TimestamptzType(), required=True),
    NestedField(9, "rejected_at", TimestamptzType(), required=True),
)
COLUMNS = [f.name for f in _SCHEMA.fields]
_PROPERTIES = {
    "format-version": "2",
    **VERSIONS,
    "write.merge.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}


def rejected_of(raw: TableId) -> TableId:
    """Where the rejected records of a raw table are."""
    return TableId(raw.namespace, f"{raw.name}_rejected")


def ensure_rejected(lake: LakeBase, raw: TableId) -> Table:
    """The table of rejected records, made if it is not there."""
    name = rejected_of(raw)
    if not lake.exists(name):
        try:
            return lake.catalog.create_table(name.parts, _SCHEMA, lake.location_of(name), properties=_PROPERTIES)
        except TableAlreadyExistsError:
            return lake.table(name)  # another process was quicker
    return lake.table(name)


def check_limit(name: str, limit: Limit | None, rejected: int, records: int, why: str) -> None:
    """Raise where more records are rejected than was declared.

    Args:
        name: the table, for the message.
        limit: what was declared; None: any number may be.
        rejected: how many are.
        records: of how many.
        why: the first reason.

    Raises:
        RejectedLimitError: too many.
    """
    if limit is not None and limit.is_exceeded(rejected, records):
        raise RejectedLimitError(
            f"{name}: {rejected:,} of {records:,} records would be rejected, and `max_rejected` is {limit}. Nothing "
            f"was written. The first: {why}. Correct the input or the declaration, or raise the limit"
        )


# --- records that could not be routed ---------------------------------------------------------------------------


def catch_up(lake: LakeBase, raw: TableId) -> None:
    """Copy the raw table's unroutable records that are not there yet. Reads metadata only where there are none.

    Raises:
        ConcurrentWriteError: another process does it at the same time.
    """
    source = lake.table(raw)
    said = unrouted(source)
    if not said:
        return
    table = ensure_rejected(lake, raw)
    uuid = str(source.metadata.table_uuid)
    found = find_property(table, PROPERTY)
    copied = json.loads(found[0]) if found else {}
    if copied == {"uuid": uuid, "records": said}:
        return
    rows = source.scan(row_filter="problem IS NOT NULL").to_arrow().sort_by("position")
    is_same = copied.get("uuid", uuid) == uuid
    if is_same and len(rows):
        # Positions of a raw table that was rolled back may be taken again: file and line tell them apart.
        there = table.scan(
            row_filter=f"source_table IS NULL AND position >= {rows['position'][0]} "
            f"AND position <= {rows['position'][-1]}",
            selected_fields=("position", "source_file", "source_line"),
        ).to_arrow()
        known = {tuple(r.values()) for r in there.to_pylist()}
    else:
        known = set[tuple[Any, ...]]()
    now = datetime.now(UTC)
    new = [
        {
            "position": r["position"], "event_index": 0, "source_table": None, "reason": r["problem"],
            "record": r["record"], "source_file": r["source_file"], "source_line": r["source_line"],
            "arrived_at": r["arrived_at"], "rejected_at": now,
        }
        for r in rows.to_pylist()
        if (r["position"], r["source_file"], r["source_line"]) not in known
    ]  # fmt: skip
    properties = {PROPERTY: json.dumps({"uuid": uuid, "records": said})}
    table.metadata.properties["commit.retry.num-retries"] = "0"
    batch = pa.Table.from_pylist(new, schema=_SCHEMA.as_arrow())
    try:
        if is_same:
            table.append(batch, snapshot_properties=properties)
        else:
            table.overwrite(batch, snapshot_properties=properties)
    except CommitFailedException as e:
        raise ConcurrentWriteError(f"{rejected_of(raw)}: another process rejected records at the same time") from e


def unrouted(raw: Table) -> int:
    """How many records of a raw table could not be routed when they came."""
    found = find_property(raw, PROPERTY)
    return int(found[0]) if found else 0


def unrouted_positions(lake: LakeBase, raw: TableId) -> list[int]:
    """Where the rejected records are that could not be routed."""
    name = rejected_of(raw)
    if not lake.exists(name):
        return []
    rows = lake.table(name).scan(row_filter="source_table IS NULL", selected_fields=("position",)).to_arrow()
    return rows["position"].to_pylist()


def landed(raw: Table, more: int) -> dict[str, str]:
    """The property of a landing's commit that takes in `more` records which cannot be routed."""
    total = unrouted(raw) + more
    return {PROPERTY: str(total)} if total else {}


# --- events that could not be read ------------------------------------------------------------------------------


def reject(lake: LakeBase, raw: TableId, source_table: str, rejects: DataFrame, first: int, last: int) -> None:
    """Put down events of one table that could not be read, in place of what was said of them before.

    Args:
        lake: the lake.
        raw: the raw table that they came from.
        source_table: the table that they are about.
        rejects: `position`, `event_index`, `reason`, `record`, `source_file`, `source_line`, `arrived_at`.
        first: the lowest position.
        last: the highest.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    ensure_rejected(lake, raw)
    name = rejected_of(raw)
    rows = rejects.withColumn("source_table", F.lit(source_table)).withColumn("rejected_at", F.current_timestamp())
    columns = ", ".join(COLUMNS)
    with temp_view(rows.select(*COLUMNS)) as view, as_race(name):
        lake.spark().sql(
            f"MERGE INTO {lake.sql_name(name)} t USING {view} s "
            "ON t.position = s.position AND t.event_index = s.event_index AND t.source_table = s.source_table "
            f"AND t.source_table = {literal(source_table)} AND t.position BETWEEN {int(first)} AND {int(last)} "
            "WHEN MATCHED AND t.reason <> s.reason THEN UPDATE SET t.reason = s.reason, t.rejected_at = s.rejected_at "
            f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({', '.join(f's.{c}' for c in COLUMNS)})"
        )


def forget_others(lake: LakeBase, raw: TableId, source_table: str, positions: Sequence[int]) -> None:
    """Take out all records of a source table but these: all that it has were read again.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    name = rejected_of(raw)
    if not lake.exists(name):
        return
    listed = ", ".join(str(int(p)) for p in positions)
    but = f" AND position NOT IN ({listed})" if listed else ""
    with as_race(name):
        lake.spark().sql(f"DELETE FROM {lake.sql_name(name)} WHERE source_table = {literal(source_table)}{but}")


def forget(lake: LakeBase, raw: TableId, source_table: str | None, positions: Sequence[int]) -> None:
    """Take records out that are no longer rejected.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    name = rejected_of(raw)
    about = "source_table IS NULL" if source_table is None else f"source_table = {literal(source_table)}"
    listed = ", ".join(str(int(p)) for p in positions)
    with as_race(name):
        lake.spark().sql(f"DELETE FROM {lake.sql_name(name)} WHERE {about} AND position IN ({listed})")

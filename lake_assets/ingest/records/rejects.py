"""The table of rejected records: those that could not be read or routed, with the reason, next to the raw table.

A raw table keeps every record, so a rejected one is never lost: `<raw>_rejected` lists the records that gave no row of
a staging table (or could not be routed to one), and why. A step writes rejects first, idempotently, and commits its own
work afterwards: if it is killed in between, the next run writes the same rejects again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, EqualTo
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import RejectedLimitError
from lake_assets.ingest.raw_tables import create_table, stored
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import find_property
from lake_assets.lake.names import literal
from lake_assets.tables import table_lock
from lake_assets.tables.specs import Limit
from lake_assets.tables.writing.arrow_writes import write_arrow
from lake_assets.tables.writing.merge_clauses import insert
from lake_assets.tables.writing.side_tables import delete_in_place, merge_in_place

# Total number of unroutable records of a raw table: set by each landing, and by each copy to this table.
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
# The columns that hold a record's text, or may quote it.
OF_REJECTS = ("record", "reason")
_SUFFIX = "_rejected"
_PROPERTIES = {
    "format-version": "2",
    **VERSIONS,
    "write.merge.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
}


def rejected_of(raw: TableId) -> TableId:
    """Return the name of a raw table's table of rejected records."""
    return TableId(raw.namespace, f"{raw.name}{_SUFFIX}")


def raw_of(rejected: TableId) -> TableId | None:
    """Return the name of the raw table that a table of rejected records is of; None: its name is not that of one."""
    name = rejected.name.removesuffix(_SUFFIX)
    return TableId(rejected.namespace, name) if name and name != rejected.name else None


def is_of_rejects(table: Table) -> bool:
    """Whether a table has the columns of a table of rejected records."""
    return [f.name for f in table.schema().fields] == COLUMNS


def ensure_rejected(lake: LakeBase, raw: TableId) -> Table:
    """Return the table of rejected records, creating it if it is missing."""
    name = rejected_of(raw)
    return lake.table(name) if lake.exists(name) else create_table(lake, name, _SCHEMA, _PROPERTIES)


def check_limit(name: str, limit: Limit | None, rejected: int, records: int, why: str) -> None:
    """Raise RejectedLimitError if more records are rejected than declared; `why`: the reason of the first reject."""
    if limit is not None and limit.is_exceeded(rejected, records):
        raise RejectedLimitError(
            f"{name}: {rejected:,} of {records:,} records would be rejected, and `max_rejected` is {limit}. Nothing "
            f"was written. The first: {why}. Correct the input or the declaration, or raise the limit"
        ).quoting(why)


# --- records that could not be routed ---------------------------------------------------------------------------


def catch_up(lake: LakeBase, raw: TableId) -> None:
    """Copy new unroutable records of the raw table. If there are none, only metadata is read.

    Raises:
        ConcurrentWriteError: another process copies them at the same time.
    """
    source = lake.table(raw)
    if not unrouted(source) or _is_copied(source, ensure_rejected(lake, raw)):
        return
    with table_lock.shared(lake, rejected_of(raw)):
        _copy(lake, raw, source)


def _is_copied(source: Table, table: Table) -> bool:
    """Whether all unroutable records are copied, and a commit says so that does not expire soon."""
    now = {"uuid": str(source.metadata.table_uuid), "records": unrouted(source)}
    found = find_property(table, PROPERTY)
    newest = [s.snapshot_id for s in islice(ancestors(table), thresholds.SNAPSHOTS_KEPT // 2)]
    return found is not None and json.loads(found[0]) == now and found[1].snapshot_id in newest


def _copy(lake: LakeBase, raw: TableId, source: Table) -> None:
    total, table, uuid = unrouted(source), ensure_rejected(lake, raw), str(source.metadata.table_uuid)
    copied = stored(table, PROPERTY)
    rows = source.scan(row_filter="problem IS NOT NULL").to_arrow().sort_by("position")
    is_same, copied_rows = copied.get("uuid", uuid) == uuid, set[tuple[Any, ...]]()
    if is_same and len(rows):
        # After a rollback of the raw table, positions are assigned again: file and line identify a record.
        known = table.scan(
            row_filter=f"source_table IS NULL AND position >= {rows['position'][0]} "
            f"AND position <= {rows['position'][-1]}",
            selected_fields=("position", "source_file", "source_line"),
        ).to_arrow()
        copied_rows = {tuple(r.values()) for r in known.to_pylist()}
    now = datetime.now(UTC)
    new = [
        {
            "position": r["position"], "event_index": 0, "source_table": None, "reason": r["problem"],
            "record": r["record"], "source_file": r["source_file"], "source_line": r["source_line"],
            "arrived_at": r["arrived_at"], "rejected_at": now,
        }
        for r in rows.to_pylist()
        if (r["position"], r["source_file"], r["source_line"]) not in copied_rows
    ]  # fmt: skip
    properties = {PROPERTY: json.dumps({"uuid": uuid, "records": total})}
    batch = pa.Table.from_pylist(new, schema=_SCHEMA.as_arrow())
    write_arrow(rejected_of(raw), table, batch, properties, overwrite=not is_same)


def unrouted(raw: Table) -> int:
    """Return the number of records of a raw table that could not be routed when they arrived."""
    match = find_property(raw, PROPERTY)
    return int(match[0]) if match else 0


def unrouted_positions(lake: LakeBase, raw: TableId) -> list[int]:
    """Return the positions of rejected records that could not be routed."""
    name = rejected_of(raw)
    if not lake.exists(name):
        return []
    rows = lake.table(name).scan(row_filter="source_table IS NULL", selected_fields=("position",)).to_arrow()
    return rows["position"].to_pylist()


def positions(lake: LakeBase, raw: TableId, end: int) -> set[int]:
    """Return the positions before `end` of all rejected records of a raw table."""
    table = lake.find(rejected_of(raw))
    if table is None:
        return set()
    rows = table.scan(row_filter=f"position < {end}", selected_fields=("position",)).to_arrow()
    return set(rows["position"].to_pylist())


def landed(raw: Table, more: int) -> dict[str, str]:
    """Return the snapshot property of a landing that adds `more` unroutable records."""
    total = unrouted(raw) + more
    return {PROPERTY: str(total)} if total else {}


def rejected_records(lake: LakeBase, raw: TableId, source_table: str | None = None) -> int:
    """Return the number of rejected records of a raw table (about a source table), as `lake-assets rejected` counts."""
    table = lake.find(rejected_of(raw))
    if table is None:
        return 0
    about = AlwaysTrue() if source_table is None else EqualTo("source_table", source_table)  # pyright: ignore[reportCallIssue]
    rows = table.scan(row_filter=about, selected_fields=("position",)).to_arrow()
    return len(set(rows["position"].to_pylist()))


# --- events that could not be read ------------------------------------------------------------------------------


def reject(lake: LakeBase, raw: TableId, source_table: str, rejects: DataFrame, first: int, last: int) -> None:
    """Record rejected events of one source table, at positions from `first` to `last`; replace earlier reasons.

    `rejects` has `position`, `event_index`, `reason`, `record`, `source_file`, `source_line` and `arrived_at`.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    ensure_rejected(lake, raw)
    name = rejected_of(raw)
    rows = rejects.withColumn("source_table", F.lit(source_table)).withColumn("rejected_at", F.current_timestamp())
    on = (
        "t.position = s.position AND t.event_index = s.event_index AND t.source_table = s.source_table "
        f"AND t.source_table = {literal(source_table)} AND t.position BETWEEN {int(first)} AND {int(last)}"
    )
    clauses = [
        "WHEN MATCHED AND t.reason <> s.reason THEN UPDATE SET t.reason = s.reason, t.rejected_at = s.rejected_at",
        insert(COLUMNS).sql,
    ]
    with table_lock.shared(lake, name):
        merge_in_place(lake, name, rows.select(*COLUMNS), on, clauses)


def listed_of(lake: LakeBase, raw: TableId, source_table: str) -> DataFrame | None:
    """Return the rejects of a source table; None: no record of the raw table has been rejected yet."""
    name = rejected_of(raw)
    rows = lake.spark().table(lake.sql_name(name)) if lake.exists(name) else None
    return rows.where(F.col("source_table") == source_table) if rows is not None else None


def forget_others(lake: LakeBase, raw: TableId, source_table: str, positions: Sequence[int]) -> None:
    """Remove all rejects of a source table except some positions, after all of its records were read again.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    name = rejected_of(raw)
    if not lake.exists(name):
        return
    listed = ", ".join(str(int(p)) for p in positions)
    but = f" AND position NOT IN ({listed})" if listed else ""
    with table_lock.shared(lake, name):
        delete_in_place(lake, name, f"source_table = {literal(source_table)}{but}")


def forget(lake: LakeBase, raw: TableId, source_table: str | None, positions: Sequence[int]) -> None:
    """Remove records that are no longer rejected.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    name = rejected_of(raw)
    about = "source_table IS NULL" if source_table is None else f"source_table = {literal(source_table)}"
    listed = ", ".join(str(int(p)) for p in positions)
    with table_lock.shared(lake, name):
        delete_in_place(lake, name, f"{about} AND position IN ({listed})")

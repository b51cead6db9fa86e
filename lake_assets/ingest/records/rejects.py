"""The table of rejected records: those that could not be read or routed, with the reason, next to the raw table.

A raw table keeps every record, so a rejected one is never lost: `<raw>_rejected` lists the records that gave no row of
a staging table (or could not be routed to one), and why. A step writes rejects first, idempotently, and commits its own
work afterwards: if it is killed in between, the next run writes the same rejects again.

A reject stays until its record can be read, or until a person closes it: `closed_at` and the columns after it say who
decided that the record does not count, when, and why. The first such decision adds these columns to the table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, IsNull
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
from lake_assets.tables.schema_changes import Change
from lake_assets.tables.specs import Limit
from lake_assets.tables.writing.arrow_writes import write_arrow
from lake_assets.tables.writing.merge_clauses import insert
from lake_assets.tables.writing.side_tables import delete_in_place, merge_in_place, update_in_place
from lake_assets.tables.writing.table_ddl import alter

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
CLOSING = {"closed_at": "timestamp", "closed_by": "string", "closed_because": "string"}
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
    return [f.name for f in table.schema().fields] in (COLUMNS, [*COLUMNS, *CLOSING])


def has_closings(table: Table) -> bool:
    """Whether a record of a table of rejected records has ever been closed."""
    return "closed_at" in {f.name for f in table.schema().fields}


def open_rows(table: Table) -> BooleanExpression:
    """Return the filter of the rejects that are not closed."""
    return IsNull("closed_at") if has_closings(table) else AlwaysTrue()  # pyright: ignore[reportCallIssue]


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


def closed_unrouted(lake: LakeBase, raw: TableId) -> dict[int, str]:
    """Return the closed records that could not be routed, by position."""
    table = lake.find(rejected_of(raw))
    if table is None or not has_closings(table):
        return {}
    where = "source_table IS NULL AND closed_at IS NOT NULL"
    rows = table.scan(row_filter=where, selected_fields=("position", "record")).to_arrow()
    return dict(zip(rows["position"].to_pylist(), rows["record"].to_pylist(), strict=True))


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


def rejected_records(lake: LakeBase, raw: TableId, source_table: str) -> int:
    """Return the number of rejected records about a source table, without closed ones."""
    table = lake.find(rejected_of(raw))
    if table is None:
        return 0
    about = And(open_rows(table), EqualTo("source_table", source_table))  # pyright: ignore[reportCallIssue]
    rows = table.scan(row_filter=about, selected_fields=("position",)).to_arrow()
    return len(set(rows["position"].to_pylist()))


# --- events that could not be read ------------------------------------------------------------------------------


def reject(lake: LakeBase, raw: TableId, source_table: str, rejects: DataFrame, first: int, last: int) -> None:
    """Record rejected events of one source table, at positions from `first` to `last`; replace earlier reasons.

    A closed reject stays closed, unless another record has its position since a rollback of the raw table.

    `rejects` has `position`, `event_index`, `reason`, `record`, `source_file`, `source_line` and `arrived_at`.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    table, name = ensure_rejected(lake, raw), rejected_of(raw)
    rows = rejects.withColumn("source_table", F.lit(source_table)).withColumn("rejected_at", F.current_timestamp())
    on = (
        "t.position = s.position AND t.event_index = s.event_index AND t.source_table = s.source_table "
        f"AND t.source_table = {literal(source_table)} AND t.position BETWEEN {int(first)} AND {int(last)}"
    )
    others = [f"t.{c} = s.{c}" for c in COLUMNS] + [f"t.{c} = NULL" for c in CLOSING if has_closings(table)]
    clauses = [
        f"WHEN MATCHED AND t.record <> s.record THEN UPDATE SET {', '.join(others)}",
        "WHEN MATCHED AND t.reason <> s.reason THEN UPDATE SET t.reason = s.reason, t.rejected_at = s.rejected_at",
        insert(COLUMNS).sql,
    ]
    with table_lock.shared(lake, name):
        merge_in_place(lake, name, rows.select(*COLUMNS), on, clauses)


def listed_of(
    lake: LakeBase, raw: TableId, source_table: str, only: Literal["open", "closed"] | None = None
) -> DataFrame | None:
    """Return the rejects of a source table; None: no record of the raw table has been rejected (or closed) yet."""
    name = rejected_of(raw)
    table = lake.find(name)
    if table is None or (only == "closed" and not has_closings(table)):
        return None
    rows = lake.spark().table(lake.sql_name(name)).where(F.col("source_table") == source_table)
    return rows.where(_is(only)) if only and has_closings(table) else rows


def forget_others(lake: LakeBase, raw: TableId, source_table: str, positions: Sequence[int]) -> None:
    """Remove all rejects of a source table except closed ones and some positions, after all of its records were read
    again.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    listed = ", ".join(str(int(p)) for p in positions)
    but = f" AND position NOT IN ({listed})" if listed else ""
    _delete(lake, raw, f"source_table = {literal(source_table)}{but}")


def forget(lake: LakeBase, raw: TableId, source_table: str | None, positions: Sequence[int]) -> None:
    """Remove records that are no longer rejected; closed ones stay.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    about = "source_table IS NULL" if source_table is None else f"source_table = {literal(source_table)}"
    listed = ", ".join(str(int(p)) for p in positions)
    _delete(lake, raw, f"{about} AND position IN ({listed})")


def _delete(lake: LakeBase, raw: TableId, where: str) -> None:
    name = rejected_of(raw)
    if (table := lake.find(name)) is None:
        return
    are_open = f" AND {_is('open')}" if has_closings(table) else ""
    with table_lock.shared(lake, name):
        delete_in_place(lake, name, f"{where}{are_open}")


def _is(state: Literal["open", "closed"]) -> str:
    """Return SQL of a boolean: whether a reject is open, or closed."""
    return f"closed_at IS {'' if state == 'open' else 'NOT '}NULL"


# --- decisions of people ----------------------------------------------------------------------------------------


def close(lake: LakeBase, raw: TableId, where: str, by: str, because: str) -> int:
    """Close rejects that meet a condition in SQL and are open; return the number of records.

    The caller holds the lock of the table alone, as for `reopen`.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    name = rejected_of(raw)
    if not (found := _records(lake, raw, where, "open")):
        return 0
    if not has_closings(lake.table(name)):
        for column, kind in CLOSING.items():
            alter(lake, name, Change("add", column, kind))
    decision = {
        "closed_at": "current_timestamp()",
        "closed_by": literal(by),
        "closed_because": literal(because),
    }
    update_in_place(lake, name, decision, f"({where}) AND {_is('open')}")
    return found


def reopen(lake: LakeBase, raw: TableId, where: str) -> int:
    """Undo `close` for rejects that meet a condition in SQL; return the number of records.

    Raises:
        ConcurrentWriteError: another writer was quicker.
    """
    name = rejected_of(raw)
    if found := _records(lake, raw, where, "closed"):
        update_in_place(lake, name, dict.fromkeys(CLOSING, "NULL"), f"({where}) AND {_is('closed')}")
    return found


def _records(lake: LakeBase, raw: TableId, where: str, state: Literal["open", "closed"]) -> int:
    """Return the number of records with open, or closed, rejects that meet a condition in SQL."""
    name = rejected_of(raw)
    table = lake.find(name)
    if table is None:
        return 0
    if not has_closings(table) and state == "closed":
        return 0
    rows = lake.spark().table(lake.sql_name(name)).where(where)
    rows = rows.where(_is(state)) if has_closings(table) else rows
    return rows.select("position").distinct().count()

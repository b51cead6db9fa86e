"""Reasons why a table is known to be inexact: stored with it and shown in outcomes, `status` and assets.

A stream does not carry everything. A column added with a default fills rows without an event, a rename is not an event,
and a rejected record does not change its row. Staging stores the reasons that it sees; a final table keeps those that
still matter for its own rows, and tables downstream inherit the reasons of their sources.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from pyiceberg.table import Table
from pyspark.sql import functions as F

from lake_assets.formats.debezium_tombstones import REWRITE
from lake_assets.formats.event_model import DELETE, MISFITS, OP, POSITION, TRUNCATE, UNAVAILABLE, EventColumn
from lake_assets.ingest.records.event_rows import DOES_NOT_FIT
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.lake.metadata.watermark import find_property, read_marks
from lake_assets.lake.names import literal
from lake_assets.tables.outcome import INEXACT
from lake_assets.tables.writing.table_ddl import set_properties

PROPERTY = "lake-assets.not-exact"


@dataclass(frozen=True)
class Reason:
    """Why a table is not exact.

    Attributes:
        kind: `rejected`, `default`, `rename`, `in-place`, `misfits`, `generated`, `saturated`, `time`, `tombstones`,
            `snapshot`, `deletes`, `copies`, `log`, `records` or `events`.
        text: the sentence for people.
        columns: the columns concerned; for a rename, the old one and the new one.
        count: the number of records concerned, if any; of a snapshot, the position of its first record.
        since: `position` of the first record that knows the new column; None: unknown (earlier releases).
    """

    kind: str
    text: str = field(compare=False)  # its wording may change between versions
    columns: tuple[str, ...] = ()
    count: int = 0
    since: int | None = field(default=None, compare=False)


def rejected(count: int) -> Reason:
    """Return the reason for a table with rejected records."""
    subject = "1 record is rejected, and its data" if count == 1 else f"{count} records are rejected, and their data"
    return Reason("rejected", f"{subject} is missing (`lake-assets rejected`)", count=count)


def added_with_default(column: EventColumn, since: int | None = None) -> Reason:
    """Return the reason for a column that the source filled without an event, and how to fill it here."""
    name, value = column.name, column.default
    said = f"{'not null, ' if column.is_required else ''}{f'default {value}' if value else 'a default'}"
    touch = f"update them at the source (`UPDATE ... SET {name} = {name}`), and their events carry it"
    declare = f'declare `columns: "*, coalesce({name}, {value or "..."}) AS {name}"`'
    if column.is_required:
        remedy = f"If it is the same in all of these rows (not of a sequence or function), {declare}; or {touch}"
    else:
        remedy = f"To fill them, {touch}; or {declare}, which also replaces nulls that the source holds"
    return Reason(
        "default",
        f"column {name} was added with a default at the source ({said}): rows that have not changed since hold null "
        f"here. {remedy}",
        (name,),
        since=since,
    )


def renamed(old: str, new: str, rename: Mapping[str, str], since: int | None = None) -> Reason:
    """Return the reason for a possible rename that is not declared; `rename`: those that are."""
    declared = ", ".join(f"{o}: {n}" for o, n in {**rename, old: new}.items())
    dismissed = ", ".join(f"{o}: {n}" for o, n in {**rename, old: old}.items())
    return Reason(
        "rename",
        f"column {new} appeared when {old} disappeared. If that was a rename, declare `rename: {{{declared}}}`; "
        f"until then rows that have not changed since have their value in {old}. If it was not, declare `rename: "
        f"{{{dismissed}}}`",
        (old, new),
        since=since,
    )


def renamed_in_place(old: str, new: str, raw: str) -> Reason:
    """Return the reason for a declared rename of which the records cannot be read again."""
    return Reason(
        "in-place",
        f"{old} was renamed to {new} when {raw} no longer holds all records, or some have both columns: an update from "
        f"before the rename was declared that set {new} to null, or left it out, may be taken for the other",
    )


def taken_as_null(column: str) -> Reason:
    """Return the reason for a column with values that do not fit its type, which are null as declared."""
    return Reason(
        "misfits",
        f"column {column} holds null for values that do not fit its type (`on_misfit: null`; staging's column "
        f"{MISFITS} has them), in rows that have not changed since. Declare a type that holds them: `types`",
        (column,),
    )


def generated(column: str) -> Reason:
    """Return the reason for a column that a snapshot has and the changes after it leave out."""
    return Reason(
        "generated",
        f"column {column} is in the snapshot, but in no change after it: rows that have changed since hold its old "
        "value, and new rows null. A stored generated column is left out of Postgres's stream: compute it in "
        f"`columns`, or in a model. If the column was dropped instead, declare `rename: {{{column}: {column}}}`",
        (column,),
    )


def saturated(column: str) -> Reason:
    """Return the reason for a column with values that stand for ones beyond its type."""
    return Reason(
        "saturated",
        f"column {column} holds intervals that are longer than the stream can say (292,271 years in microseconds): "
        "they arrived as the greatest or the smallest bigint",
        (column,),
    )


def deletes_without_row(count: int) -> Reason:
    """Return the reason for a table without a key where rows to delete were not found."""
    return Reason("deletes", f"{count} deletes or updates found no row with the values that they name", count=count)


def deleted_by_tombstones() -> Reason:
    """Return the reason for a table where tombstones are all that the stream says of some deletes."""
    return Reason(
        "tombstones",
        "tombstones are all that the stream says of some deletes, so the times of these deletes are those at which the "
        f"tombstones were sent or arrived: {REWRITE}",
    )


def stored_in(table: Table) -> tuple[Reason, ...]:
    """Return the reasons stored with a table."""
    stored = json.loads(table.properties.get(PROPERTY, "[]"))
    return tuple(Reason(r["kind"], r["text"], tuple(r["columns"]), r["count"], r.get("since")) for r in stored)


def store(lake: LakeBase, table: TableId, reasons: Sequence[Reason]) -> None:
    """Store the reasons with a table, replacing earlier ones."""
    loaded = lake.table(table)
    if tuple(reasons) != stored_in(loaded) or PROPERTY not in loaded.properties:
        set_properties(lake, table, {PROPERTY: json.dumps([asdict(r) for r in reasons])})


def reasons_of(lake: LakeBase, table: TableId) -> list[str]:
    """Return why a table is not exact: its stored reasons or, if it does not store any, those of its sources.

    Reads metadata only.
    """
    loaded = lake.find(table)
    if loaded is None:
        return []
    if PROPERTY in loaded.properties:
        return [r.text for r in stored_in(loaded)]
    # Tables filled from files have no watermark.
    marks = read_marks(loaded) if find_property(loaded, WATERMARK) else {}
    sources = (TableId.parse(source) for source in marks)
    return [f"{source}: {text}" for source in sources for text in reasons_of(lake, source)]


def details_of(reasons: Iterable[Reason]) -> dict[str, object]:
    """Return the details of an outcome; empty for an exact table."""
    return {INEXACT: texts} if (texts := [r.text for r in reasons]) else {}


def read_again(start: int, rows: int | None = None) -> Reason:
    """Return the reason for a table that a later snapshot read as a whole, from position `start` in the raw table on.

    `rows` is the number of rows that it did not hold; None: rows that it holds may be in the table twice.
    """
    what = "rows that it read are here once more"
    if rows is not None:
        these = "1 row here was" if rows == 1 else f"{rows} rows here were"
        what = f"{these} not in it any more: deleted at the source while no change was recorded"
    return Reason(
        "snapshot",
        f"the connector took another snapshot of the source table, from record {start} on, and {what}. Declare "
        f"`start_position: {start}`: then the table holds the events from that snapshot on",
        count=start,
    )


def set_back(count: int) -> Reason:
    """Return the reason for events whose position in the source's log contradicts their time."""
    these = "1 event has" if count == 1 else f"{count} events have"
    return Reason(
        "log",
        f"{these} an earlier position in the source's log than events before, but a later time. If the log began "
        "again (another server, a restored database, a reset), these changes count as older ones: "
        "declare `order_by: _position` to order the events as they arrive. If the events were only late, `lake-assets "
        "rebuild` the table",
        count=count,
    )


def records_deleted(raw: str, since: datetime) -> Reason:
    """Return the reason for a table that was first filled when older records had been deleted for their age."""
    return Reason(
        "records",
        f"{raw} no longer held the records from before {since:%Y-%m-%d} (`keep_records`) when this table was filled: "
        "rows that have not changed since are missing. Have the connector take another snapshot of the source table",
    )


def events_folded(staging: str, until: datetime) -> Reason:
    """Return the reason for a table that needs every event, computed from staging without the superseded ones."""
    return Reason(
        "events",
        f"{staging} holds no more than the last event of each key from before {until:%Y-%m-%d} (`keep_events`): what "
        "rows were before that time is missing here",
    )


def by_time() -> Reason:
    """Return the reason for events that only a time orders."""
    return Reason(
        "time",
        "only a time orders the events: of two changes of a row at the same moment, the one that arrives last counts. "
        "Let ExtractNewRecordState add the position in the source's log (`add.fields`: source.lsn for Postgres; "
        "source.file and source.pos for MySQL and MariaDB) before the first load, or declare "
        "`order_by: _position` if the events arrive in the order in which they happened",
    )


def at_limit(value: str) -> str:
    """Return SQL of a boolean: a bigint is the greatest or the smallest one."""
    return f"({value} IN (9223372036854775807L, -9223372036854775807L - 1L))"


# --- final tables -----------------------------------------------------------------------------------------------

# Kinds of reasons that a final table sees itself. Those of events are counted over all steps.
_OF_FINAL = ("deletes", "log", "snapshot", "copies", "events")
_COUNTED = {"deletes": deletes_without_row, "log": set_back}
_NONE = Reason("", "")


@dataclass(frozen=True)
class Columns:
    """The columns of a final table.

    Attributes:
        names: their names by the staging column that they copy unchanged.
        key: SQL over staging by the name of a key column, if a row is in the state of the last event of its key;
            empty: it is not.
    """

    names: Mapping[str, str]
    key: Mapping[str, str]


def of_final(
    lake: LakeBase,
    table: TableId,
    staging: TableId,
    columns: Columns,
    seen: Sequence[Reason],
    *,
    is_new: bool,
    shows_times: bool,
) -> tuple[Reason, ...]:
    """Store and return the reasons after a step: those of staging that still matter, and those of its own events.

    Args:
        lake: the lake.
        table, staging, columns: the final table, its staging table and its columns.
        seen: the reasons that the step saw; counts of earlier steps are added.
        is_new: whether the step created or replaced the table.
        shows_times: whether its rows have the times of changes.
    """
    upstream, stored = stored_in(lake.table(staging)), stored_in(lake.table(table))
    matters = [r for r in upstream if r.kind not in _OF_FINAL and (shows_times or r.kind != "tombstones")]
    reasons = [r for r in matters if not r.columns or _shows(lake, table, staging, columns, r)]
    own = {r.kind: r for r in stored if r.kind in _OF_FINAL and not is_new}
    for reason in seen:
        counted = _COUNTED.get(reason.kind)
        own[reason.kind] = counted(reason.count + own.get(reason.kind, _NONE).count) if counted else reason
    reasons += own.values()
    if reasons or stored or upstream:
        store(lake, table, reasons)
    return tuple(reasons)


def _shows(lake: LakeBase, table: TableId, staging: TableId, columns: Columns, reason: Reason) -> bool:
    """Whether some row lacks a value: the last column is null, the earlier columns are not, and no event says so."""
    listed = [columns.names.get(c) for c in reason.columns]
    if None in listed:
        return False
    if reason.kind == "generated":
        return True  # its old values do not show
    if reason.kind == "saturated":
        limits = at_limit(quote(listed[0] or ""))
        return not lake.spark().table(lake.sql_name(table)).where(limits).limit(1).isEmpty()
    *old, new = (F.col(quote(c or "")) for c in listed)
    lacking = new.isNull()
    for column in old:
        lacking = lacking & column.isNotNull()
    rows = lake.spark().table(lake.sql_name(table)).where(lacking)
    if rows.limit(1).isEmpty():
        return False
    if not columns.key:
        return True
    if reason.kind == "misfits":
        begins = literal(reason.columns[0] + DOES_NOT_FIT)
        misfit = lake.spark().table(lake.sql_name(staging)).where(
            f"{MISFITS} IS NOT NULL AND exists({MISFITS}, m -> startswith(m, {begins}))"
        )  # fmt: skip
        keys = misfit.select(*(F.expr(sql).alias(k) for k, sql in columns.key.items()))
        return not rows.join(keys, list(columns.key), "left_semi").limit(1).isEmpty()
    if reason.since is None:
        return True
    # Updates of a row with the new column, and inserts: the null is theirs.
    name = literal(reason.columns[-1])
    events = lake.spark().table(lake.sql_name(staging)).where(
        f"{POSITION} >= {reason.since} AND {OP} NOT IN ('{DELETE}', '{TRUNCATE}') "
        f"AND NOT coalesce(array_contains({UNAVAILABLE}, {name}), false)"
    )  # fmt: skip
    for former in reason.columns[:-1]:
        events = events.where(F.col(quote(former)).isNull())
    told = events.select(*(F.expr(sql).alias(k) for k, sql in columns.key.items()))
    return not rows.join(told, list(columns.key), "left_anti").limit(1).isEmpty()

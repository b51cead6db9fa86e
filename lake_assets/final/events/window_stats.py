"""Counts of the events of a window, which decide how they are applied."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.errors import KeyMissingError, OrderUnknownError, UnsupportedEventError
from lake_assets.final.events.key_changes import IS_MOVED
from lake_assets.final.events.reduction import HAPPENED, ORDER
from lake_assets.final.row_hash import COPY
from lake_assets.final.staging_projection import PARTIAL
from lake_assets.final.target import Target
from lake_assets.formats.event_model import (
    DELETE,
    EVENT_TIME,
    INDEX,
    INSERT,
    OP,
    POSITION,
    READ,
    SEQUENCE,
    TRUNCATE,
    UNAVAILABLE,
)
from lake_assets.lake import quote
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.lake.names import literal

# What `looks` computes.
TRANSACTION, HAPPENED_AT, LOG, ABSORBED_LOG = "__lake_transaction", "__lake_at", "__lake_log", "__lake_absorbed_log"
IS_SET_BACK, IS_MOVING, IS_LATE, IS_OLD = "__lake_set_back", "__lake_moving", "__lake_late", "__lake_old"
IS_KEYLESS = "__lake_keyless"
# The length of the file's number in the position in a binary log, with the letter before it.
_FILE = 11
# By how much the times of two events may contradict the order of the log, in microseconds: clocks are set, and commits
# that happen together are not logged in the order of their times.
_CLOCKS_DIFFER = 60_000_000


@dataclass(frozen=True)
class Stats:
    """Counts of the events of a window.

    Attributes:
        events: the number of all events; the counts below are numbers of events as well.
        high: the greatest (sequence, position).
        latest: the latest time of an event, in microseconds since 1970.
        transaction: the transaction of the last event, if it differs from the transaction of `high`.
        late: events that need the history of their keys: they are not strictly after the events absorbed before, or
            omit some source columns of a computed column.
        old: events older than the horizon.
        unavailable: events that omit values.
        partial_inserts: inserts that omit values.
        inserts, deletes: inserts, deletes.
        others: events other than inserts.
        truncated: position of the last truncate in the order of events; None: no truncate.
        keyless: events without a value in a key column.
        unordered: events without a value in a column of the declared order.
        logs: the logs of the source that the events' positions are in, first and last by name, with the one that the
            table has absorbed; empty: the events name none.
        set_back: events with an earlier position in the log than the events absorbed before, but a later time.
    """

    events: int
    high: tuple[str, int] | None
    latest: int | None
    transaction: str | None
    late: int
    old: int
    unavailable: int
    partial_inserts: int
    inserts: int
    deletes: int
    others: int
    truncated: Row | None
    keyless: int
    unordered: int
    logs: frozenset[str] = frozenset()
    set_back: int = 0


def looks(target: Target, before: Watermark | None) -> dict[str, str]:
    """Return SQL of what an event tells besides its values, by column name."""
    # The declared order of a table does not depend on logs.
    log = (not target.spec.order_by and target.reader.log) or "CAST(NULL AS STRING)"
    high = before.high[0] if before and before.high else ""
    absorbed = log.replace(SEQUENCE, literal(high))
    return {
        TRANSACTION: f"({target.ordering.transaction})",
        HAPPENED_AT: f"unix_micros({HAPPENED})",
        LOG: f"({log})",
        ABSORBED_LOG: f"({absorbed})",
        IS_SET_BACK: _is_set_back(before, high) if log != absorbed else "false",
        IS_MOVING: IS_MOVED,
        IS_LATE: _is_late(target, before),
        IS_OLD: _is_old(target, before),
        IS_KEYLESS: _is_keyless(target),
    }


def stats_of(target: Target, events: DataFrame, before: Watermark | None) -> Stats:
    """Count the events of the window in one query.

    Raises:
        KeyMissingError: some events lack a key value.
        UnsupportedEventError: some events lack a value of the declared order.
        OrderUnknownError: some events have positions in different logs.
    """
    look = looks(target, before)
    last, of_high = (f"max_by({look[TRANSACTION]}, {by})" for by in (f"struct({POSITION}, {INDEX})", ORDER))
    aggregates = (
        "count(*) AS events",
        f"max({ORDER}) AS high",
        f"max({look[HAPPENED_AT]}) AS latest",
        f"if({last} <=> {of_high}, NULL, {last}) AS transaction",
        f"count_if({look[IS_LATE]}) AS late",
        f"count_if({look[IS_OLD]}) AS old",
        f"count_if({UNAVAILABLE} IS NOT NULL) AS unavailable",
        f"count_if({look[IS_MOVING]}) AS partial_inserts",
        f"count_if({OP} = '{INSERT}') AS inserts",
        f"count_if({OP} = '{DELETE}') AS deletes",
        f"count_if({OP} NOT IN ('{INSERT}', '{READ}')) AS others",
        f"max(if({OP} = '{TRUNCATE}', {ORDER}, NULL)) AS truncated",
        f"count_if({look[IS_KEYLESS]}) AS keyless",
        f"count_if({SEQUENCE} IS NULL) AS unordered",
        f"min({look[LOG]}) AS first_log",
        f"max({look[LOG]}) AS last_log",
        f"first({look[ABSORBED_LOG]}) AS absorbed_log",
        f"count_if({look[IS_SET_BACK]}) AS set_back",
    )
    row = events.agg(*map(F.expr, aggregates)).collect()[0].asDict(recursive=False)
    logs = frozenset(filter(None, (row.pop("first_log"), row.pop("last_log"), row.pop("absorbed_log"))))
    high = row.pop("high")
    return checked(target, Stats(**row, high=(high["sequence"], high["position"]) if high else None, logs=logs))


def _is_set_back(before: Watermark | None, high: str) -> str:
    """Return SQL: an event has an earlier position in the log than what was absorbed before, but a later time."""
    if before is None or not high or before.time is None:
        return "false"
    # Within one file of a binary log, a long transaction is written after later ones.
    size = _FILE if high.startswith("b") else len(high)
    is_back = f"left({SEQUENCE}, {size}) < {literal(high[:size])}"
    return f"({is_back} AND unix_micros({EVENT_TIME}) > {before.time + _CLOCKS_DIFFER})"


def checked(target: Target, stats: Stats) -> Stats:
    """Return the counts; refuse a window with events that lack their key, or their position in the declared order."""
    spec = target.spec
    if len(stats.logs) > 1:
        raise OrderUnknownError(
            f"{spec.table}: events of {spec.staging} have positions in "
            f"{' and in '.join(sorted(stats.logs))}, which cannot be compared: the source is another server or "
            "database than before, or its connector is set up in another way. Nothing was written. If the events "
            "arrive in the order in which they happened, declare `order_by: _position`"
        )
    if stats.unordered and not spec.order_by:
        raise UnsupportedEventError(
            f"{spec.table}: {stats.unordered} of {stats.events} events of {spec.staging} have a place in "
            "the order of changes only by `order_by`, which is no longer declared: declare `order_by` again"
        )
    if stats.unordered:
        raise UnsupportedEventError(
            f"{spec.table}: {stats.unordered} of {stats.events} events of {spec.staging} have no value "
            f"in a column of the declared order {', '.join(spec.order_by)}, so their place among the changes is "
            "unknown. Declare columns that every event has, deletes included, or remove `order_by`"
        )
    if stats.keyless:
        raise KeyMissingError(
            f"{spec.table}: {stats.keyless} of {stats.events} events of {spec.staging} have no value in a column of "
            f"the key {', '.join(target.key)}, so the rows that they change are unknown. Declare a key whose "
            "columns every event has. For deletes, let the source log whole rows (REPLICA IDENTITY FULL)"
        )
    return stats


def is_late(target: Target, before: Watermark | None) -> Column:
    """Whether an event is not strictly after the events absorbed before."""
    return F.expr(_is_late(target, before))


def _is_late(target: Target, before: Watermark | None) -> str:
    late = [PARTIAL]
    if before and before.high:
        late.append(target.ordering.is_late(*before.high))
        if COPY in target.key:
            # Later rows with the same sequence may repeat earlier ones.
            late.append(f"({target.same_again}) AND {SEQUENCE} = {literal(before.high[0])}")
    if before and before.transaction:
        late.append(f"coalesce(({target.ordering.transaction}) = {literal(before.transaction)}, false)")
    if before and before.time is not None and target.mode == "scd2":
        # Versions are ordered by time.
        late.append(f"unix_micros({HAPPENED}) < {before.time}")
    return f"({' OR '.join(f'({part})' for part in late)})"


def _is_keyless(target: Target) -> str:
    """Whether an applied event lacks a key value, so that its row is unknown."""
    if target.mode == "append" or not target.key:
        return "false"
    keyless = " OR ".join(f"{quote(k)} IS NULL" for k in target.key)
    ignored = f"'{TRUNCATE}'" + (f", '{DELETE}'" if target.spec.deletes == "ignore" else "")
    return f"(({keyless}) AND {OP} NOT IN ({ignored}))"


def _is_old(target: Target, before: Watermark | None) -> str:
    if before is None or before.time is None or target.spec.horizon is None:
        return "false"
    return f"(unix_micros({EVENT_TIME}) < {before.time - int(target.spec.horizon * 1_000_000)})"

"""The window of a step: its events and what is to be known of them before anything is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.errors import KeyMissingError, UnsupportedEventError
from lake_assets.final.events.key_changes import IS_MOVED
from lake_assets.final.events.reduction import HAPPENED, ORDER, happened
from lake_assets.final.events.staging_projection import PARTIAL
from lake_assets.final.row_hash import COPY
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
from lake_assets.lake.metadata.watermark import Watermark, Watermarks
from lake_assets.lake.names import literal


@dataclass(frozen=True)
class Stats:
    """What is to be known of a window before anything is done.

    Attributes:
        high: the greatest (sequence, position).
        latest: the latest time of an event, in microseconds.
        transaction: that of the last event, where it is another one than that of `high`.
        late: how many events need the history of their keys: they are not entirely after what was absorbed before, or
            leave out some of what a column is computed of.
        old: how many are older than the horizon.
        unavailable: how many leave values out.
        moved: how many of these are inserts.
        inserts, deletes: how many there are.
        others: how many are no inserts.
        truncated: place and time of the last truncate.
        keyless: how many have no value in a column of the key.
        unordered: how many have no value in a column of the declared order.
    """

    events: int
    high: tuple[str, int] | None
    latest: int | None
    transaction: str | None
    late: int
    old: int
    unavailable: int
    moved: int
    inserts: int
    deletes: int
    others: int
    truncated: Row | None
    keyless: int
    unordered: int


@dataclass(frozen=True)
class Batch:
    """The window of a step.

    Attributes:
        before: how far the table has come; None: it has not begun.
        head: the staging table as it is now.
        marks: what the commit records.
        base: what the table records now.
        details: what the outcome is to say.
    """

    events: DataFrame
    stats: Stats
    before: Watermark | None
    head: Watermark
    marks: Watermarks
    base: Watermarks
    details: dict[str, Any] = field(default_factory=dict)


def stats_of(target: Target, events: DataFrame, before: Watermark | None) -> Stats:
    """One look at the window."""
    transaction = f"({target.ordering.transaction})"
    last, of_high = (f"max_by({transaction}, {by})" for by in (f"struct({POSITION}, {INDEX})", ORDER))
    aggregates = (
        "count(*) AS events",
        f"if({last} <=> {of_high}, NULL, {last}) AS transaction",
        f"max({ORDER}) AS high",
        f"max(unix_micros({HAPPENED})) AS latest",
        f"count_if({UNAVAILABLE} IS NOT NULL) AS unavailable",
        f"count_if({IS_MOVED}) AS moved",
        f"count_if({OP} = '{INSERT}') AS inserts",
        f"count_if({OP} = '{DELETE}') AS deletes",
        f"count_if({OP} NOT IN ('{INSERT}', '{READ}')) AS others",
        f"max(if({OP} = '{TRUNCATE}', {ORDER}, NULL)) AS truncated",
        f"count_if({SEQUENCE} IS NULL) AS unordered",
    )
    keyless = F.count_if(_is_keyless(target)).alias("keyless")
    late, old = F.count_if(is_late(target, before)).alias("late"), F.count_if(_is_old(target, before)).alias("old")
    row = events.agg(*map(F.expr, aggregates), late, old, keyless).collect()[0]
    high = (row["high"]["sequence"], row["high"]["position"]) if row["high"] else None
    return Stats(
        row["events"], high, row["latest"], row["transaction"], row["late"], row["old"], row["unavailable"],
        row["moved"], row["inserts"], row["deletes"], row["others"], row["truncated"], row["keyless"],
        row["unordered"],
    )  # fmt: skip


def check_stats(target: Target, stats: Stats) -> None:
    """Refuse a window with events that do not say their key, or their place in the declared order.

    Raises:
        KeyMissingError, UnsupportedEventError: it has some.
    """
    if stats.unordered and not target.spec.order_by:
        raise UnsupportedEventError(
            f"{target.spec.table}: {stats.unordered} of {stats.events} events of {target.spec.staging} were accepted "
            "because `order_by` was declared, and do not say otherwise where they belong in the order of changes: "
            "declare `order_by` again"
        )
    if stats.unordered:
        raise UnsupportedEventError(
            f"{target.spec.table}: {stats.unordered} of {stats.events} events of {target.spec.staging} have no value "
            f"in a column of the declared order {', '.join(target.spec.order_by)}: before and after which others "
            "they happened cannot be told. Declare columns that every event says, deletes too, or leave `order_by` "
            "out"
        )
    if stats.keyless:
        spec = target.spec
        raise KeyMissingError(
            f"{spec.table}: {stats.keyless} of {stats.events} events of {spec.staging} have no value in a column "
            f"of the key {', '.join(target.key)}: which rows they mean cannot be told. Declare a key whose columns "
            "every event says (deletes too: let the source log whole rows, as REPLICA IDENTITY FULL)"
        )


def is_late(target: Target, before: Watermark | None) -> Column:
    """Whether an event is not entirely after what was absorbed before."""
    late = F.col(PARTIAL)
    if before and before.high:
        late = late | target.ordering.is_late(*before.high)
        if COPY in target.key:
            # Of rows that share a sequence, those that follow may be the same ones again.
            late = late | F.expr(f"({target.same_again}) AND {SEQUENCE} = {literal(before.high[0])}")
    if before and before.transaction:
        late = late | F.expr(f"coalesce(({target.ordering.transaction}) = {literal(before.transaction)}, false)")
    if before and before.time is not None and target.mode == "scd2":
        # Versions are told apart by time.
        late = late | (F.unix_micros(happened()) < before.time)
    return late


def _is_keyless(target: Target) -> Column:
    """Whether an event that matters does not say the whole key: which row it is about cannot be told."""
    if target.mode == "append" or not target.key:
        return F.lit(False)
    keyless = " OR ".join(f"{quote(k)} IS NULL" for k in target.key)
    ignored = f"'{TRUNCATE}'" + (f", '{DELETE}'" if target.spec.deletes == "ignore" else "")
    return F.expr(f"({keyless}) AND {OP} NOT IN ({ignored})")


def _is_old(target: Target, before: Watermark | None) -> Column:
    if before is None or before.time is None or target.spec.horizon is None:
        return F.lit(False)
    return F.unix_micros(F.col(EVENT_TIME)) < before.time - int(target.spec.horizon * 1_000_000)

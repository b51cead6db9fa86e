"""The window of a step: its events and what is to be known of them before anything is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, Row

from lake_assets.lake.metadata.watermark import Watermark, Watermarks


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

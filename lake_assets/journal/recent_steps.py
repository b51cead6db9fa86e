"""What recent steps tell of the next ones: how long a table's step takes, and how old the rows of a snapshot are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import quantiles

from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord, arrivals_of
from lake_assets.lake import LakeBase, thresholds


@dataclass(frozen=True)
class RecentSteps:
    """The steps of the last day.

    Attributes:
        seconds: by table, what three of four of its newest steps took at most.
        arrivals: by snapshot, when the oldest change arrived in the lake that its step absorbed, in seconds since
            1970. A snapshot without a record is as old as its commit.
    """

    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    arrivals: Mapping[int, float] = field(default_factory=dict[int, float])


def recent_steps(lake: LakeBase) -> RecentSteps:
    """Return the steps of the last day; what is returned may be a minute old."""
    key, now = str(lake.config.home), time.monotonic()
    if (known := _cache.get(key)) is not None and now - known[0] < thresholds.JOURNAL_SECONDS:
        return known[1]
    records = step_journal.read(lake, datetime.now(UTC) - timedelta(days=1))
    found = RecentSteps(_seconds(records), arrivals_of(records))
    _cache[key] = now, found
    return found


def forget(lake: LakeBase) -> None:
    """Read the steps of a lake anew at the next call of `recent_steps`."""
    _cache.pop(str(lake.config.home), None)


_cache: dict[str, tuple[float, RecentSteps]] = {}


def _seconds(records: Sequence[StepRecord]) -> dict[str, float]:
    by_table: dict[str, list[float]] = {}
    for record in records:
        if record.status == "absorbed":
            by_table.setdefault(record.table, []).append(record.seconds)
    newest = {t: took[-thresholds.STEPS_OF_A_FORECAST :] for t, took in by_table.items()}
    return {t: quantiles(took, n=4, method="inclusive")[2] if len(took) > 1 else took[0] for t, took in newest.items()}

"""What recent steps tell of the next ones: how long a table's step takes, and how old the rows of a snapshot are."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import quantiles
from typing import NamedTuple

from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord, arrivals_of
from lake_assets.lake import LakeBase, thresholds

log = logging.getLogger(__name__)


class RecordCount(NamedTuple):
    """Rows that steps added, and records that they rejected."""

    added: int = 0
    rejected: int = 0


# By the name of the steps' table, followed by the names of its sources.
RecordCounts = Mapping[tuple[str, ...], RecordCount]


@dataclass(frozen=True)
class RecentSteps:
    """The steps of the last day.

    Attributes:
        seconds: by table, what three of four of its newest steps took at most.
        arrivals: by snapshot, when the oldest change arrived in the lake that its step absorbed, in seconds since
            1970. A snapshot without a record is as old as its commit.
        records: what was read of records, by table and its sources.
        waiting: ids of the steps whose records were not in the journal's table.
    """

    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    arrivals: Mapping[int, float] = field(default_factory=dict[int, float])
    records: RecordCounts = field(default_factory=dict[tuple[str, ...], RecordCount])
    waiting: frozenset[str] = frozenset()


def recent_steps(lake: LakeBase) -> RecentSteps:
    """Return the steps of the last day, or none if the journal cannot be read; what is returned may be a minute old."""
    key, now = str(lake.config.home), time.monotonic()
    if (known := _cache.get(key)) is not None and now - known[0] < thresholds.JOURNAL_SECONDS:
        return known[1]
    try:
        found = _read(lake)
    except Exception as e:  # of the catalog, of a file that is gone: what is only forecast stops no run
        log.warning("%s cannot be read: %s", step_journal.TABLE, lake.config.hidden(f"{type(e).__name__}: {e}"))
        found = RecentSteps()
    _cache[key] = now, found
    return found


def _read(lake: LakeBase) -> RecentSteps:
    records = step_journal.read(lake, datetime.now(UTC) - timedelta(days=1))
    read = {r.id for r in records}
    waiting = frozenset(r.id for r in step_journal.waiting(lake) if r.id in read)
    return RecentSteps(_seconds(records), arrivals_of(records), _counts({}, records), waiting)


def record_counts(lake: LakeBase) -> RecordCounts:
    """Return what the steps of the last day have read of records, up to now."""
    known = recent_steps(lake)
    return _counts(known.records, [r for r in step_journal.waiting(lake) if r.id not in known.waiting])


def forget(lake: LakeBase) -> None:
    """Read the steps of a lake anew at the next call of `recent_steps`."""
    _cache.pop(str(lake.config.home), None)


_cache: dict[str, tuple[float, RecentSteps]] = {}


def _counts(known: RecordCounts, records: Sequence[StepRecord]) -> RecordCounts:
    counts = dict(known)
    for r in records:
        of = (r.table, *(s["source"] for s in r.sources))
        before = counts.get(of, RecordCount())
        counts[of] = RecordCount(before.added + r.rows_inserted, before.rejected + r.records_rejected)
    return counts


def _seconds(records: Sequence[StepRecord]) -> dict[str, float]:
    by_table: dict[str, list[float]] = {}
    for record in records:
        if record.status == "absorbed":
            by_table.setdefault(record.table, []).append(record.seconds)
    newest = {t: took[-thresholds.STEPS_OF_A_FORECAST :] for t, took in by_table.items()}
    return {t: quantiles(took, n=4, method="inclusive")[2] if len(took) > 1 else took[0] for t, took in newest.items()}

"""What the journal tells of a table's past weeks, in little: when its changes came, and what its newest steps took.

A day that is over is read once, and its digest is kept in the lake's home: the journal of a lake with many tables has
millions of records, and `status` is asked often.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from lake_assets.journal import step_journal
from lake_assets.journal.step_records import NO_CHANGE, StepRecord
from lake_assets.lake import LakeBase, thresholds
from lake_assets.lake.metadata.row_counts import visible_rows
from lake_assets.runtime.private_files import make_private, write_private

log = logging.getLogger(__name__)
_FOLDER, _FILE, _VERSION = "health", "step_digests.json", 2
_DAY = 86_400.0
# What a digest is made of.
_FIELDS = (
    "id", "pipeline", "table", "status", "started_at", "seconds", "cpu_seconds", "strategy", "lag_seconds",
    "rows_inserted", "rows_updated", "rows_deleted", "bytes_read", "sources", "failed_audits",
    "started_spark",
)  # fmt: skip
# Steps that read what had arrived before.
_AGAIN = ("replay", "rebuild", NO_CHANGE)


class Activity(NamedTuple):
    """Moments at which something happened, in seconds since 1970.

    Attributes:
        moments: their number.
        gaps: the longest times between two of them, the longest first.
    """

    moments: int
    first: float
    last: float
    gaps: tuple[float, ...] = ()


class StepBrief(NamedTuple):
    """A step that absorbed something: when it began, its duration, its size, the audits that did not pass, and whether
    Spark was started meanwhile."""

    started_at: float
    seconds: float
    rows: int
    bytes: int
    failed_audits: tuple[str, ...] = ()
    started_spark: bool = False


@dataclass(frozen=True)
class StepDigest:
    """What the journal tells of one table, or of a source.

    Attributes:
        changes: when steps of the table changed rows.
        reads: when changes of it arrived that other tables' steps have absorbed.
        newest: the newest steps of the table, the oldest first.
    """

    changes: Activity | None = None
    reads: Activity | None = None
    newest: tuple[StepBrief, ...] = ()

    @property
    def arrivals(self) -> Activity | None:
        """When changes of the table arrived, as far as its own steps or those of its readers tell."""
        return self.changes or self.reads  # what lands live has no step

    @property
    def last(self) -> float | None:
        """When the last change arrived; None: unknown."""
        return max((a.last for a in (self.changes, self.reads) if a is not None), default=None)


Digests = Mapping[str, StepDigest]


def step_digests(lake: LakeBase, now: float | None = None) -> Digests:
    """Return what the journal tells of each table and source; steps of other processes may be missing for a minute."""
    now = time.time() if now is None else now
    first_open = _day(now - thresholds.OUTSIDE_STEP_SECONDS)
    days = {**_closed_days(lake, first_open), "open": _open_days(lake, first_open)}
    return merged(days[day] for day in sorted(days))  # "open" comes after all dates


def digested(records: Iterable[StepRecord]) -> Digests:
    """Return the digest of some records."""
    changes, reads = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    newest = defaultdict[str, list[StepBrief]](list)
    for r in records:
        if r.status != "absorbed":
            continue
        failed = tuple(r.failed_audits)
        brief = StepBrief(r.started_at, r.seconds, r.rows_changed, r.bytes_read, failed, r.started_spark)
        newest[r.table].append(brief)
        if r.strategy in _AGAIN:
            continue
        if r.rows_changed:
            changes[r.table].append(r.started_at)
        for source in r.sources:
            if source["start_snapshot"] not in (None, source["end_snapshot"]):
                reads[source["source"]].append(r.arrived_at or r.ended_at)
    return {
        name: StepDigest(
            _activity(changes[name]) if name in changes else None,
            _activity(reads[name]) if name in reads else None,
            tuple(sorted(newest.get(name, ()))[-thresholds.STEPS_REMEMBERED :]),
        )
        for name in {*changes, *reads, *newest}
    }


def _activity(moments: Sequence[float]) -> Activity:
    ordered = sorted(moments)
    gaps = sorted((b - a for a, b in pairwise(ordered)), reverse=True)
    return Activity(len(ordered), ordered[0], ordered[-1], tuple(gaps[: thresholds.GAPS_REMEMBERED]))


def merged(periods: Iterable[Digests]) -> Digests:
    """Return the digest of periods that follow each other."""
    found: dict[str, StepDigest] = {}
    for period in periods:
        for name, digest in period.items():
            before = found.get(name, StepDigest())
            newest = sorted({*before.newest, *digest.newest})[-thresholds.STEPS_REMEMBERED :]
            found[name] = StepDigest(
                _joined(before.changes, digest.changes), _joined(before.reads, digest.reads), tuple(newest)
            )
    return found


def _joined(before: Activity | None, after: Activity | None) -> Activity | None:
    if before is None or after is None:
        return before or after
    gaps = sorted((*before.gaps, *after.gaps, max(0.0, after.first - before.last)), reverse=True)
    last = max(before.last, after.last)
    return Activity(before.moments + after.moments, before.first, last, tuple(gaps[: thresholds.GAPS_REMEMBERED]))


def _open_days(lake: LakeBase, first: date) -> Digests:
    """Return the digest of the days that are not over. What is in the table is read once a minute."""
    key, now = (str(lake.config.home), first), time.monotonic()
    known = _cache.get(key)
    if known is None or now - known.at >= thresholds.JOURNAL_SECONDS:
        records = step_journal.read(lake, _at(first), fields=_FIELDS)
        for old in [k for k in _cache if k[0] == key[0]]:
            del _cache[old]
        known = _cache[key] = _Open(now, digested(records), frozenset(r.id for r in records))
    new = [r for r in step_journal.waiting(lake) if r.id not in known.ids and r.started_at >= _start(first)]
    return merged([known.digests, digested(new)])


@dataclass(frozen=True)
class _Open:
    at: float
    digests: Digests
    ids: frozenset[str] = field(repr=False)


_cache: dict[tuple[str, date], _Open] = {}


def _closed_days(lake: LakeBase, end: date) -> dict[str, Digests]:
    """Return the digests of the days before, by day; those that are not known yet are read and kept."""
    known, oldest = _kept(lake), end - timedelta(days=thresholds.JOURNAL_DAYS)
    known = {day: of for day, of in known.items() if oldest.isoformat() <= day < end.isoformat()}
    wanted = [end - timedelta(days=n + 1) for n in range(thresholds.RHYTHM_DAYS)]
    if missing := [day for day in wanted if day.isoformat() not in known]:
        for days in _parts(lake, sorted(missing)):
            by_day = defaultdict[date, list[StepRecord]](list)
            for r in step_journal.read(lake, _at(days[0]), _at(days[-1] + timedelta(days=1)), fields=_FIELDS):
                by_day[_day(r.started_at)].append(r)
            known |= {day.isoformat(): digested(by_day[day]) for day in days}
        _keep(lake, known)
    return known


def _parts(lake: LakeBase, days: Sequence[date]) -> list[Sequence[date]]:
    """Return the days to read at once: all of them, unless the journal is large."""
    journal = lake.find(step_journal.TABLE)
    rows = visible_rows(journal.current_snapshot()) if journal is not None else 0
    return [days] if rows <= thresholds.JOURNAL_ROWS_AT_ONCE else [[day] for day in days]


def _kept(lake: LakeBase) -> dict[str, Digests]:
    try:
        stored = json.loads(_file(lake).read_text(encoding="utf-8"))
        if stored["version"] != _VERSION:
            return {}
        return {day: {name: _digest(*of) for name, of in names.items()} for day, names in stored["days"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:  # cut by a full disk, or of another version
        log.warning("%s cannot be read, and is made anew from the journal: %s", _file(lake), e)
        return {}


def _keep(lake: LakeBase, days: Mapping[str, Digests]) -> None:
    file = _file(lake)
    content = {day: {name: [d.changes, d.reads, d.newest] for name, d in names.items()} for day, names in days.items()}
    try:
        make_private(file.parent)
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        write_private(partial, json.dumps({"version": _VERSION, "days": content}))
        partial.replace(file)
    except OSError as e:  # a full disk, a home that others own: the days are read again
        log.info("%s is not kept: %s", file, e)


def _digest(changes: Sequence[Any] | None, reads: Sequence[Any] | None, newest: Sequence[Sequence[Any]]) -> StepDigest:
    def activity(of: Sequence[Any] | None) -> Activity | None:
        return None if of is None else Activity(of[0], of[1], of[2], tuple(of[3]))

    return StepDigest(
        activity(changes),
        activity(reads),
        tuple(StepBrief(*of[:4], failed_audits=tuple(of[4]), started_spark=of[5]) for of in newest),
    )


def _file(lake: LakeBase) -> Path:
    return Path(lake.config.home) / _FOLDER / _FILE


def _day(at: float) -> date:
    return datetime.fromtimestamp(at, UTC).date()


def _at(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _start(day: date) -> float:
    return _at(day).timestamp()

"""Made-up playback events of `playback`, day by day, and what its tables must hold after each day.

About one event in twenty arrives up to two weeks late; some are corrected and some deleted afterwards.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from lake_assets.examples import shipped_pipeline
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.rows_in_memory import rows_in_memory

PIPELINE = shipped_pipeline("playback")
EVENTS, TITLES = TableId(("raw",), "playback"), TableId(("raw",), "titles")
COLUMNS = "id BIGINT, account INT, title INT, started_at TIMESTAMP, seconds BIGINT"
GENRES = ("drama", "comedy", "documentary")
FIRST = date(2026, 3, 1)
LATE, LATEST_DAYS = 0.05, 14
ACCOUNTS, COUNT_OF_TITLES, PER_DAY = 40, 12, 200


@dataclass(frozen=True)
class Play:
    """One playback event."""

    id: int
    account: int
    title: int
    started_at: datetime
    seconds: int

    @property
    def day(self) -> date:
        """The day on which it started, in UTC."""
        return self.started_at.date()


@dataclass(frozen=True)
class Day:
    """What arrives on one day.

    Attributes:
        arrived: new events, late ones among them.
        corrected: events of earlier days with another number of seconds.
        deleted: ids of events that were none.
    """

    arrived: tuple[Play, ...]
    corrected: tuple[Play, ...]
    deleted: tuple[int, ...]


def days(plays_per_day: int = PER_DAY) -> Iterator[Day]:
    """Yield what arrives, day by day from `FIRST` on, without end; always the same."""
    choose = random.Random(1)
    known: dict[int, Play] = {}
    number, today = 0, FIRST
    while True:
        arrived: list[Play] = []
        for _ in range(plays_per_day):
            number += 1
            late = choose.randint(1, LATEST_DAYS) if choose.random() < LATE else 0
            at = datetime(today.year, today.month, today.day, tzinfo=UTC) - timedelta(days=late)
            at += timedelta(seconds=choose.randrange(86_400))
            account, title = choose.randrange(ACCOUNTS), choose.randrange(COUNT_OF_TITLES)
            arrived.append(Play(number, account, title, at, choose.randrange(1, 7_200)))
        touched = choose.sample(sorted(known), min(len(known), plays_per_day // 50))
        corrected = tuple(
            Play(p.id, p.account, p.title, p.started_at, choose.randrange(1, 7_200))
            for p in (known[i] for i in touched[: len(touched) // 2])
        )
        deleted = tuple(touched[len(touched) // 2 :])
        known |= {p.id: p for p in (*arrived, *corrected)}
        known = {i: p for i, p in known.items() if i not in deleted}
        yield Day(tuple(arrived), corrected, deleted)
        today += timedelta(days=1)


def after(arrivals: list[Day]) -> dict[int, Play]:
    """Return the events that are there after some days, by id."""
    known: dict[int, Play] = {}
    for day in arrivals:
        known |= {p.id: p for p in (*day.arrived, *day.corrected)}
        known = {i: p for i, p in known.items() if i not in day.deleted}
    return known


def genre_of(title: int) -> str:
    """Return the genre of a title."""
    return GENRES[title % len(GENRES)]


def expected(plays: dict[int, Play]) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return the rows of each table of the pipeline, from the events alone."""
    seconds: Counter[tuple[int, date]] = Counter()
    counts: Counter[tuple[int, date]] = Counter()
    of_day: Counter[date] = Counter()
    genres: dict[str, list[int]] = {}
    for p in plays.values():
        seconds[p.account, p.day] += p.seconds
        counts[p.account, p.day] += 1
        of_day[p.day] += 1
        genres.setdefault(genre_of(p.title), []).append(p.seconds)
    daily = Counter((a, d, s, counts[a, d]) for (a, d), s in seconds.items())
    sums: Counter[int] = Counter()
    cumulative: Counter[tuple[Any, ...]] = Counter()
    for (account, day), s in sorted(seconds.items()):
        sums[account] += s
        cumulative[account, day, sums[account]] += 1
    weeks = {d: sum(of_day[d - timedelta(days=n)] for n in range(7)) for d in list(of_day)}
    return {
        "agg.watching_plays": Counter(
            (p.id, p.account, p.title, genre_of(p.title), p.seconds, p.day) for p in plays.values()
        ),
        "agg.watching_daily": daily,
        "agg.watching_daily_by_sql": daily,
        "agg.watching_daily_by_query": daily,
        "agg.watching_cumulative": cumulative,
        "agg.watching_days": Counter((d, of_day[d], week) for d, week in weeks.items()),
        "agg.watching_genres": Counter((g, sum(s), len(s)) for g, s in genres.items()),
    }  # fmt: skip


def prepare(lake: Lake) -> None:
    """Create the tables of events and titles, unless they exist."""
    spark = lake.spark()
    lake.ensure_namespace(EVENTS.namespace)
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {lake.sql_name(EVENTS)} ({COLUMNS}) USING iceberg "
        "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read', "
        "'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read')"
    )
    if not lake.exists(TITLES):
        titles = rows_in_memory(spark, [(t, genre_of(t)) for t in range(COUNT_OF_TITLES)], "title INT, genre STRING")
        titles.writeTo(lake.sql_name(TITLES)).using("iceberg").create()


def arrive(lake: Lake, day: Day) -> None:
    """Write what arrives on one day into `raw.playback`, as the job of somebody else would."""
    spark, name = lake.spark(), lake.sql_name(EVENTS)

    def frame(plays: tuple[Play, ...]) -> Any:
        return rows_in_memory(spark, [(p.id, p.account, p.title, p.started_at, p.seconds) for p in plays], COLUMNS)

    if day.corrected:
        frame(day.corrected).createOrReplaceTempView("corrected")
        spark.sql(
            f"MERGE INTO {name} t USING corrected s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.seconds = s.seconds"
        )
    if day.deleted:
        spark.sql(f"DELETE FROM {name} WHERE id IN ({', '.join(map(str, day.deleted))})")
    frame(day.arrived).writeTo(name).append()

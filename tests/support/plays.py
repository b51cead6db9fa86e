"""Python models of every write mode, random changes of their inputs, and the rows that they must hold."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Affected, Changes, Lake, Lookup, model
from lake_assets.lake.rows_in_memory import rows_in_memory

COLUMNS = "id INT, account STRING, title STRING, started_at TIMESTAMP, seconds BIGINT"
DAY = {"day": "to_date(started_at)"}


# --- the models ---------------------------------------------------------------------------------------------------


@model("agg.log", write="append")
def log(playback: Changes) -> DataFrame:
    """Every change, as it came."""
    return playback.feed(["id"]).select("id", "_change_type", "seconds")


@model("agg.enriched", write="merge", key="id")
def enriched(playback: Changes, titles: Lookup) -> DataFrame:
    """Rows with what is known of their title."""
    rows = playback.feed(["id"]).where("_change_type <> 'update_before'")
    deleted = (F.col("_change_type") == "delete").alias("_deleted")
    return rows.join(titles.table, "title", "left").select("id", "title", "genre", "seconds", deleted)


@model("agg.daily", write="replace-keys", key=["account", "day"], replace={"account": "account", **DAY})
def daily(playback: Changes) -> DataFrame:
    """Seconds by account and day."""
    day = F.to_date("started_at").alias("day")
    return playback.affected().groupBy("account", day).agg(F.sum("seconds").alias("seconds"), F.count("*").alias("n"))


@model("agg.plays", write="replace-keys", replace="account")
def plays(playback: Changes, changed: Affected) -> DataFrame:
    """Some columns of each row: rows may be alike."""
    return changed.of(playback.table).select("account", "title")


@model("agg.days", write="replace-ranges", key="day", replace=DAY)
def days(playback: Changes, corrections: Changes, changed: Affected) -> DataFrame:
    """Seconds by day, with corrections."""
    day = F.to_date("started_at").alias("day")
    booked = corrections.affected().select(day, "seconds")
    rows = playback.affected().select(day, "seconds").unionAll(booked)
    assert changed.is_everything or changed.keys is not None
    return rows.groupBy("day").agg(F.sum("seconds").alias("seconds"))


@model("agg.running", write="replace-ranges", key="day", replace=DAY, cumulative=True)
def running(playback: Changes) -> DataFrame:
    """Seconds up to each day."""
    by_day = playback.affected().groupBy(F.to_date("started_at").alias("day")).agg(F.sum("seconds").alias("seconds"))
    return by_day.selectExpr("day", "sum(seconds) OVER (ORDER BY day) AS seconds")


@model("agg.weekly", write="replace-ranges", key="day", replace=DAY, back="2d")
def weekly(playback: Changes) -> DataFrame:
    """Seconds of each day and the two before it."""
    by_day = playback.affected().groupBy(F.to_date("started_at").alias("day")).agg(F.sum("seconds").alias("seconds"))
    frame = "(ORDER BY unix_date(day) RANGE BETWEEN 2 PRECEDING AND CURRENT ROW)"
    return by_day.where("day IS NOT NULL").selectExpr("day", f"sum(seconds) OVER {frame} AS seconds")


@model("agg.total", write="overwrite")
def total(playback: Changes) -> DataFrame:
    """One row."""
    return playback.table.agg(F.count("*").alias("n"), F.sum("seconds").alias("seconds"))


MODELS = [log, enriched, daily, plays, days, running, weekly, total]

# --- the oracle: the same tables from rows in Python ------------------------------------------------------------------

Play = tuple[int, str | None, str | None, datetime | None, int]


def _day(at: datetime | None) -> date | None:
    return at.date() if at else None


def expected(
    plays: list[Play], corrections: list[tuple[datetime | None, int]], genres: dict[str, str]
) -> dict[str, Counter[Any]]:
    """Return the rows of each table as a multiset."""
    by_day: dict[Any, int] = {}
    for _, _, _, at, seconds in plays:
        by_day[_day(at)] = by_day.get(_day(at), 0) + seconds
    corrected = dict(by_day)
    for at, seconds in corrections:
        corrected[_day(at)] = corrected.get(_day(at), 0) + seconds
    accounts: dict[Any, list[int]] = {}
    for _, account, _, at, seconds in plays:
        accounts.setdefault((account, _day(at)), []).append(seconds)
    ordered = sorted(by_day, key=lambda d: (d is not None, d or date.min))
    sofar = {d: sum(by_day[x] for x in ordered[: i + 1]) for i, d in enumerate(ordered)}
    last_days = {
        d: sum(by_day.get(d - timedelta(days=n), 0) for n in range(3)) for d in by_day if d is not None
    }  # fmt: skip
    return {
        "agg.enriched": Counter((i, t, genres.get(t) if t else None, s) for i, _, t, _, s in plays),
        "agg.daily": Counter((a, d, sum(s), len(s)) for (a, d), s in accounts.items()),
        "agg.plays": Counter((a, t) for _, a, t, _, _ in plays),
        "agg.days": Counter(corrected.items()),
        "agg.running": Counter(sofar.items()),
        "agg.weekly": Counter(last_days.items()),
        "agg.total": Counter([(len(plays), sum(s for *_, s in plays) if plays else None)]),
    }


# --- a history ---------------------------------------------------------------------------------------------------


class History:
    """Random changes of the inputs, and the rows that they leave."""

    def __init__(self, lake: Lake, seed: int, mode: str) -> None:
        self.lake, self.spark, self.random = lake, lake.spark(), random.Random(seed)
        self.plays: dict[int, Play] = {}
        self.corrections: list[tuple[datetime | None, int]] = []
        self.genres = {"a": "drama", "b": "comedy"}
        lake.ensure_namespace(("src",))
        modes = ", ".join(f"'write.{w}.mode'='{mode}'" for w in ("delete", "update", "merge"))
        for name, columns in (
            ("playback", COLUMNS),
            ("corrections", "started_at TIMESTAMP, seconds BIGINT"),
            ("titles", "title STRING, genre STRING"),
        ):
            self.spark.sql(
                f"CREATE TABLE {lake.sql_name(f'src.{name}')} ({columns}) USING iceberg TBLPROPERTIES ({modes})"
            )
        self._insert("titles", list(self.genres.items()), "title STRING, genre STRING")
        self._insert("corrections", [(None, 0)], "started_at TIMESTAMP, seconds BIGINT")
        self.corrections.append((None, 0))

    def step(self) -> None:
        """Change the inputs at random."""
        for _ in range(self.random.randint(1, 3)):
            self.random.choice(
                [self.arrive, self.arrive, self._update, self._delete, self.compact, self._correct]
            )()  # fmt: skip

    def empty(self) -> None:
        """Delete everything."""
        self.spark.sql(f"DELETE FROM {self.lake.sql_name('src.playback')}")
        self.plays.clear()

    def arrive(self) -> None:
        """Insert some rows, late ones among them."""
        rows = [self._play(self.random.randint(1, 40)) for _ in range(self.random.randint(1, 5))]
        rows = [r for r in {r[0]: r for r in rows}.values() if r[0] not in self.plays]
        self.plays |= {r[0]: r for r in rows}
        self._insert("playback", rows, COLUMNS)

    def _update(self) -> None:
        for old in self.random.sample(sorted(self.plays), min(2, len(self.plays))):
            self._remove(old)
            row = self._play(old)
            self.plays[old] = row
            self._insert(
                "playback", [row], "id INT, account STRING, title STRING, started_at TIMESTAMP, seconds BIGINT"
            )

    def _delete(self) -> None:
        for old in self.random.sample(sorted(self.plays), min(2, len(self.plays))):
            self._remove(old)

    def _remove(self, key: int) -> None:
        del self.plays[key]
        self.spark.sql(f"DELETE FROM {self.lake.sql_name('src.playback')} WHERE id = {key}")

    def compact(self) -> None:
        """Rewrite all files without changing a row."""
        self.spark.sql(
            f"CALL `{self.lake.config.name}`.system.rewrite_data_files(table => 'src.playback', "
            "options => map('rewrite-all', 'true'))"
        )

    def _correct(self) -> None:
        row = (self._at(), self.random.randint(-5, 5))
        self.corrections.append(row)
        self._insert("corrections", [row], "started_at TIMESTAMP, seconds BIGINT")

    def _play(self, key: int) -> Play:
        pick = self.random.choice
        return key, pick(["x", "y", "z", None]), pick(["a", "b", "c", None]), self._at(), self.random.randint(0, 9)

    def _at(self) -> datetime | None:
        return self.random.choice(
            [None, *(datetime(2026, 3, d, h, 30, tzinfo=UTC) for d in (1, 8, 9, 27, 28, 29, 30) for h in (0, 2, 23))]
        )

    def _insert(self, table: str, rows: list[Any], schema: str) -> None:
        if rows:
            rows_in_memory(self.spark, rows, schema).writeTo(self.lake.sql_name(f"src.{table}")).append()

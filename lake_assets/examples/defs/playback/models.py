"""Three ways to make a batch job incremental, and one that stays as it is."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Affected, Changes, Lookup, model


def totals(rows: DataFrame, *by: str) -> DataFrame:
    """Seconds and plays by columns or expressions: what the batch job computes."""
    return rows.groupBy(*map(F.expr, by)).agg(F.sum("seconds").alias("seconds"), F.count("*").alias("plays"))


@model("agg.watching_plays", write="merge", key="id", inputs={"playback": "raw.playback", "titles": "raw.titles"})
def plays(playback: Changes, titles: Lookup) -> DataFrame:
    """Each play with its title's genre: changed rows are computed and merged; deleted ones go."""
    rows = playback.feed(["id"]).where("_change_type <> 'update_before'")
    named = rows.join(F.broadcast(titles.table), "title", "left")
    return named.selectExpr(
        "id", "account", "title", "genre", "seconds", "to_date(started_at) AS day",
        "_change_type = 'delete' AS _deleted",
    )  # fmt: skip


@model(
    "agg.watching_daily",
    write="replace-keys",
    key=["account", "day"],
    replace={"account": "account", "day": "to_date(started_at)"},
    inputs={"playback": "raw.playback"},
)
def daily(playback: Changes) -> DataFrame:
    """Seconds by account and day: only accounts and days with changed rows are read and replaced."""
    return totals(playback.affected(), "account", "to_date(started_at) AS day")


@model(
    "agg.watching_cumulative",
    write="replace-keys",
    key=["account", "day"],
    replace="account",
    inputs={"daily": "agg.watching_daily"},
)
def cumulative(daily: Changes) -> DataFrame:
    """Seconds of each account up to each day: a late row moves all later days of its account."""
    return daily.affected().selectExpr(
        "account", "day", "sum(seconds) OVER (PARTITION BY account ORDER BY day) AS seconds"
    )


@model(
    "agg.watching_days",
    write="replace-ranges",
    key="day",
    replace={"day": "to_date(started_at)"},
    back="6d",
    inputs={"playback": "raw.playback"},
)
def days(playback: Changes, changed: Affected) -> DataFrame:
    """Plays of each day, and of the week that ends with it: the range of changed days is computed again."""
    by_day = totals(changed.of(playback.table, day="to_date(started_at)"), "to_date(started_at) AS day")
    week = "OVER (ORDER BY unix_date(day) RANGE BETWEEN 6 PRECEDING AND CURRENT ROW)"
    return by_day.selectExpr("day", "plays", f"sum(plays) {week} AS plays_of_week")


@model("agg.watching_genres", write="overwrite", inputs={"plays": "agg.watching_plays"})
def genres(plays: Changes) -> DataFrame:
    """An ordinary job: everything is computed whenever something changed."""
    return totals(plays.table, "genre")

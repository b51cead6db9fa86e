"""Watching time by account and day from late playback events: the three patterns of own code beside SQL models.

    make bench-playback
    make bench-playback ARGS="--rows 20000000 --batches 4"
    make bench-playback ARGS="--totals --rows 20000000 --accounts 1000000"

A table of playback events over 14 days; each batch appends 60,000 rows, 5 % of them up to 14 days late. Measured per
form, each with a table of its own: seconds of a step, beside the same query written by Spark over everything
(`CREATE OR REPLACE TABLE ... AS`). Every table is compared with its query by `verify` after the last batch.

- rows: each event with its title's genre, merged (Python), against the maintained query of the same join;
- keys: seconds by account and day, by Python, by SQL over changes, and as a maintained query;
- keys: seconds of an account up to each day, from the table by account and day;
- ranges: seconds by day and of the week that ends with it.

With --totals, two SQL models alone: seconds by account and day, and from these the seconds of each account up to each
day. Their steps together are compared with both queries written by Spark over everything.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from figures import Required, show
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Changes, Lake, LakeConfig, Lookup, Pipeline, model
from lake_assets.lake import SparkConfig
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.table_graph import ComputedSpec
from lake_assets.pipeline.verification import verify

DAY = "to_date(started_at)"
BY_DAY = f"SELECT account, {DAY} AS day, sum(seconds) AS seconds, count(*) AS plays FROM %s GROUP BY account, {DAY}"
RUNNING = "SELECT account, day, sum(seconds) OVER (PARTITION BY account ORDER BY day) AS seconds FROM agg.daily_python"
# Own code is to be no slower than the maintained query of the same result, by more than the noise of a step.
REQUIRED: dict[str, Required] = {
    "keys: Python against the maintained query": ("at most", 1.1),
    "keys: SQL over changes against the maintained query": ("at most", 1.1),
    "running sum: Python against the maintained query": ("at most", 1.1),
    "rows: Python against the maintained query": ("at most", 1.1),
}
INPUT = {"playback": "src.playback"}


@model(
    "agg.daily_python",
    write="replace-keys",
    key=["account", "day"],
    replace={"account": "account", "day": DAY},
    inputs=INPUT,
)
def daily(playback: Changes) -> DataFrame:
    """Seconds by account and day."""
    by = (F.col("account"), F.expr(DAY).alias("day"))
    return playback.affected().groupBy(*by).agg(F.sum("seconds").alias("seconds"), F.count("*").alias("plays"))


@model(
    "agg.running_python",
    write="replace-keys",
    key=["account", "day"],
    replace="account",
    inputs={"daily": "agg.daily_python"},
)
def running(daily: Changes) -> DataFrame:
    """Seconds of each account up to each day."""
    return daily.affected().selectExpr(
        "account", "day", "sum(seconds) OVER (PARTITION BY account ORDER BY day) AS seconds"
    )


@model("agg.plays_python", write="merge", key="id", inputs={**INPUT, "titles": "src.titles"})
def plays(playback: Changes, titles: Lookup) -> DataFrame:
    """Each event with its title's genre."""
    return playback.rows.join(F.broadcast(titles.table), "title").select("id", "account", "title", "genre", "seconds")


@model("agg.days_python", write="replace-ranges", key="day", replace={"day": DAY}, back="6d", inputs=INPUT)
def days(playback: Changes) -> DataFrame:
    """Seconds of each day and of the week that ends with it."""
    by_day = playback.affected().groupBy(F.expr(DAY).alias("day")).agg(F.sum("seconds").alias("seconds"))
    week = "OVER (ORDER BY unix_date(day) RANGE BETWEEN 6 PRECEDING AND CURRENT ROW)"
    return by_day.selectExpr("day", "seconds", f"sum(seconds) {week} AS week")


CONFIG = {
    "name": "bench",
    "models": [
        {
            "name": "agg.daily_sql",
            "write": "replace-keys",
            "key": ["account", "day"],
            "replace": {"account": "account", "day": DAY},
            "sql": BY_DAY % "{{ affected('src.playback') }}",
        },
        {"name": "agg.daily_query", "sql": BY_DAY % "src.playback"},
        {"name": "agg.running_query", "sql": RUNNING},
        {
            "name": "agg.plays_query",
            "sql": "SELECT p.id, p.account, p.title, t.genre, p.seconds FROM src.playback p "
            "JOIN src.titles t ON p.title = t.title",
        },
    ],
}
FULL = {
    "agg.daily_query": BY_DAY % "src.playback",
    "agg.running_query": RUNNING,
    "agg.plays_query": str(CONFIG["models"][3]["sql"]),  # type: ignore[index]
}


TOTALS = {
    "agg.daily": BY_DAY % "src.playback",
    "agg.cumulative": RUNNING.replace("agg.daily_python", "agg.daily"),
}


def fill(lake: Lake, rows: int, accounts: int) -> None:
    """Write the events of 14 days, by day, and the titles."""
    spark = lake.spark()
    lake.ensure_namespace(("src",))
    spark.sql(
        "CREATE TABLE src.playback (id BIGINT, account INT, title INT, started_at TIMESTAMP, seconds INT) "
        "USING iceberg TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
    )
    events(lake, 0, rows, accounts, first_day=0, of_days=14).sortWithinPartitions("started_at").writeTo(
        "src.playback"
    ).append()
    spark.range(1000).selectExpr("CAST(id AS INT) AS title", "concat('genre ', id % 20) AS genre").writeTo(
        "src.titles"
    ).using("iceberg").create()


def events(
    lake: Lake, start: int, rows: int, accounts: int, *, first_day: int, of_days: int = 1, late: float = 0.0
) -> DataFrame:
    """Return events with consecutive ids over some days; a share of them up to 14 days before."""
    seconds = f"CAST((rand({start}) * {of_days} + {first_day}) * 86400 AS BIGINT)"
    behind = f"IF(rand({start + 1}) < {late}, CAST(rand({start + 2}) * 14 * 86400 AS BIGINT), 0)"
    return (
        lake.spark()
        .range(start, start + rows)
        .selectExpr(
            "id",
            f"CAST(rand({start + 3}) * {accounts} AS INT) AS account",
            f"CAST(rand({start + 4}) * 1000 AS INT) AS title",
            f"timestamp_seconds(unix_seconds(TIMESTAMP '2026-03-01') + {seconds} - {behind}) AS started_at",
            f"CAST(rand({start + 5}) * 7200 AS INT) AS seconds",
        )
    )


def pipeline_of(args: argparse.Namespace) -> tuple[Pipeline, dict[str, str]]:
    """Return the pipeline, and the queries to compare with, by table."""
    if not args.totals:
        return Pipeline(PipelineConfig.model_validate(CONFIG), models=[daily, running, plays, days]), FULL
    by_day = {"by": "day", "every": "day", "start": "2026-02-01"}
    more = {"partitions": by_day} if args.by_day else {}
    models = [{"name": name, "sql": sql, **more} for name, sql in TOTALS.items()]
    return Pipeline(PipelineConfig.model_validate({"name": "bench", "models": models})), TOTALS


def measure(lake: Lake, args: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, str], dict[str, float]]:
    """Return the seconds of each table's steps without the first two, their strategies, and the seconds in full."""
    pipeline, queries = pipeline_of(args)
    fill(lake, args.rows, args.accounts)
    seconds: dict[str, list[float]] = defaultdict(list)
    strategies: dict[str, str] = {}
    for n in range(args.batches + 2):
        for outcome in pipeline.run(lake):
            if outcome.exception:
                raise outcome.exception
            if n > 1:
                seconds[outcome.table].append(outcome.seconds)
                strategies[outcome.table] = outcome.strategy
        if n < args.batches + 1:
            new = events(lake, args.rows + n * args.new, args.new, args.accounts, first_day=14 + n, late=0.05)
            new.writeTo("src.playback").append()
    for spec in (s for s in pipeline.specs(lake) if isinstance(s, ComputedSpec)):
        if not (found := verify(lake, spec)).equal:
            raise SystemExit(f"{spec.table} differs: {found.differences[:3]}")
    full: dict[str, float] = {}
    partitioned = "PARTITIONED BY (day)" if args.by_day else ""
    for table, sql in queries.items():
        began = time.monotonic()
        lake.spark().sql(f"CREATE OR REPLACE TABLE agg.full USING iceberg {partitioned} AS {sql}")
        full[table] = time.monotonic() - began
    return seconds, strategies, full


def figures_of(of: dict[str, float], full: dict[str, float], args: argparse.Namespace) -> tuple[
    dict[str, float | str], dict[str, Required]
]:  # fmt: skip
    """Return the figures from the seconds of steps and in full, and what is required of them."""
    if args.totals:
        name = "times faster than in full"
        least = 5 if args.rows < 100_000_000 else 14 if args.by_day else 10
        return {name: sum(full.values()) / sum(of.values())}, {name: ("at least", least)}
    query = of["agg.daily_query"]
    return {
        "keys: Python against the maintained query": of["agg.daily_python"] / query,
        "keys: SQL over changes against the maintained query": of["agg.daily_sql"] / query,
        "running sum: Python against the maintained query": of["agg.running_python"] / of["agg.running_query"],
        "rows: Python against the maintained query": of["agg.plays_python"] / of["agg.plays_query"],
        "ranges: seconds a step": of["agg.days_python"],
    }, REQUIRED


def main() -> int:
    """Print the table; return 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000, help="events at the start")
    parser.add_argument("--new", type=int, default=60_000, help="events per batch")
    parser.add_argument("--accounts", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=5, help="measured batches, after two others")
    parser.add_argument("--totals", action="store_true", help="two SQL models alone, daily and cumulative")
    parser.add_argument("--by-day", action="store_true", help="with --totals: both tables are partitioned by day")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        spark = SparkConfig(master="local[2]", driver_memory="8g")
        seconds, strategies, full = measure(Lake(LakeConfig(home=Path(home), spark=spark)), args)
    of = {table: statistics.median(s) for table, s in seconds.items()}
    print(f"{args.rows:,} rows at the start, {args.new:,} new ones per batch, {args.accounts:,} accounts\n")
    print("| table | strategy | seconds a step, median | in full, by Spark |\n|---|---|---|---|")
    for table, s in of.items():
        print(f"| {table} | {strategies[table]} | {s:.2f} | {f'{full[table]:.2f}' if table in full else ''} |")
    print()
    return int(show(*figures_of(of, full, args)))


if __name__ == "__main__":
    sys.exit(main())

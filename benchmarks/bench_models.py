"""Cost of maintaining SQL models: absorbing a change against recomputing everything.

    make bench-models
    make bench-models ARGS="--rows 200000 --table-rows 100000"

Three parts:

1. Changes of 0.001 % up to half of the rows: incremental and full for one model per strategy, and the strategy that the
   estimate picked with the same history. Strategies are forced by `full_above`.
2. `population`: users ⋈ cities, counted by city, after changes of 0.03 % of the rows: spread over all files, and
   clustered in the newest rows (one file of sixteen). Against the same SELECT written by Spark
   (`CREATE OR REPLACE TABLE ... AS`), and against only reading the columns once, since changes in all files require
   reading all files.
3. A step with nothing to absorb: seconds, Spark jobs, catalog requests.

After each measurement, the whole table is compared with its query by `verify`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Required, show

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.lake import SparkConfig, quote
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.config.pipeline_config import SqlModel
from lake_assets.pipeline.verification import verify
from lake_assets.tables.outcome import Outcome

ROWS = 50_000_000
POPULATION = (
    "SELECT c.city, count(*) AS population, sum(u.balance) AS balance "
    "FROM final.users u JOIN final.user_city c ON u.id = c.user_id GROUP BY c.city"
)
# One model per strategy, for which this strategy is the cheapest.
MODELS = {
    "retract": POPULATION,
    "keys": "SELECT u.id, u.name, max(c.city) AS last_city, count(DISTINCT c.city) AS cities "
    "FROM final.users u JOIN final.user_city c ON u.id = c.user_id GROUP BY u.id, u.name",
}
SHARES = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5)
# Location of changed rows: the share of the table (its newest rows) over which they are spread.
PLACES = {"spread over all files": 1.0, "close together": 1 / 16}
REQUIRED: dict[str, Required] = {
    f"population, changes {place}: times faster than full": ("at least", 20.0) for place in PLACES
}
NO_JOBS: dict[str, Required] = {"nothing to absorb: Spark jobs": ("at most", 0.0)}
CITIES = 1000
FILES = 16
NOISE = 1.1  # a choice that is slower by less than this factor does not count as wrong


def make(lake: Lake, rows: int) -> None:
    """Create the tables of users and their cities; rows are spread over all files."""
    spark = lake.spark()
    lake.ensure_namespace(("final",))
    properties = ", ".join(
        f"'{k}' = '{v}'"
        for k, v in {
            "format-version": "3", "write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read",
            "write.merge.mode": "merge-on-read", "write.distribution-mode": "none",
            "write.merge.distribution-mode": "none",
        }.items()
    )  # fmt: skip
    for table, columns in {
        "users": "id, concat('name ', id % 99991) AS name, CAST(id % 100000 AS DECIMAL(12,2)) AS balance",
        "user_city": f"id AS user_id, concat('city ', xxhash64(id) % {CITIES // 2}) AS city",
    }.items():
        spark.sql(f"DROP TABLE IF EXISTS final.{table}")
        spark.sql(
            f"CREATE TABLE final.{table} USING iceberg TBLPROPERTIES ({properties}) AS "
            f"SELECT {columns} FROM range(0, {rows}, 1, {FILES})"
        )


def change(lake: Lake, count: int, rows: int, turn: int, share: float = 1.0) -> int:
    """Change about `count` rows among the newest `share` of the table; return the exact number.

    Three fifths move to another city, a fifth gets another balance, a tenth is inserted (a user and a city: two rows).
    """
    spark = lake.spark()
    moves, balances, come = count * 3 // 5, count // 5, count // 10
    for table, key, column, value, part in (
        ("user_city", "user_id", "city", f"concat('city ', xxhash64(t.user_id, {turn}) % {CITIES // 2})", moves),
        ("users", "id", "balance", "t.balance + 1.25", balances),
    ):
        if part:
            step = int(rows * share) // part
            first = rows - step * part
            spark.sql(
                f"MERGE INTO final.{table} t "
                f"USING (SELECT {first} + id * {step} + {turn * 7919 % step} AS k FROM range({part})) s "
                f"ON t.{key} = s.k WHEN MATCHED THEN UPDATE SET {column} = {value}"
            )
    first = rows + turn * come
    spark.sql(
        f"INSERT INTO final.users SELECT {first} + id, 'new', CAST(1 AS DECIMAL(12,2)) FROM range(0, {come}, 1, 1)"
    )
    spark.sql(f"INSERT INTO final.user_city SELECT {first} + id, 'city 1' FROM range(0, {come}, 1, 1)")
    return moves + balances + 2 * come


@dataclass(frozen=True)
class Timed:
    """Seconds and outcome of a model's step."""

    seconds: float
    outcome: Outcome


class Bench:
    """Models over the two tables."""

    def __init__(self, lake: Lake, models: dict[str, dict[str, Any]]) -> None:
        self.lake = lake
        declared = [{"name": name, **settings} for name, settings in models.items()]
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": "bench", "models": declared}))

    def run(self, name: str) -> Timed:
        """Run one step, and time it."""
        began = time.perf_counter()
        (outcome,) = self.pipeline.run(self.lake, [name])
        seconds = time.perf_counter() - began
        if outcome.exception:
            raise outcome.exception
        return Timed(seconds, outcome)

    def check(self, name: str) -> None:
        """Check that the whole table equals its query."""
        (spec,) = [s for s in self.pipeline.specs(self.lake) if str(s.table) == name]
        assert isinstance(spec, ModelSpec)
        verification = verify(self.lake, spec)
        assert verification.equal, f"{name} differs from its query: {verification.differences[:3]}"


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def population(lake: Lake, rows: int, count: int, turns: int) -> dict[str, float | str]:
    """Return seconds and ratios of the population model."""
    bench = Bench(lake, {"agg.population": {"sql": POPULATION}})
    figures: dict[str, float | str] = {
        "population: rows of each table": f"{rows:,}",
        "population: changes a step": f"{count:,}",
    }
    for place, share in PLACES.items():
        # Separate tables, so that files of earlier changes do not affect the figures.
        make(lake, rows)
        lake.spark().sql("DROP TABLE IF EXISTS agg.population")
        first = bench.run("agg.population").seconds
        say(f"population: first run over 2 x {rows:,} rows: {first:.1f} s")
        figures["population: seconds, first run"] = first
        incremental: list[float] = []
        full: list[float] = []
        strategies: set[str] = set()
        for turn in range(turns + 1):
            changed = change(lake, count, rows, turn + 1, share)
            step = bench.run("agg.population")
            began = time.perf_counter()
            lake.spark().sql(f"CREATE OR REPLACE TABLE agg.recomputed USING iceberg AS {POPULATION}")
            seconds = time.perf_counter() - began
            bench.check("agg.population")
            maintained, recomputed = lake.spark().table("agg.population"), lake.spark().table("agg.recomputed")
            assert maintained.exceptAll(recomputed).isEmpty()
            assert recomputed.exceptAll(maintained).isEmpty()
            say(f"population: {changed:,} changes {place}: {step.outcome.strategy} {step.seconds:.2f} s, "
                f"full {seconds:.2f} s")  # fmt: skip
            say(f"  {step.outcome.why}")
            if turn:  # the first one warms up
                incremental.append(step.seconds)
                full.append(seconds)
                strategies.add(step.outcome.strategy)
        fast, slow = statistics.median(incremental), statistics.median(full)
        figures |= {
            f"population, changes {place}: strategy": ", ".join(sorted(strategies)),
            f"population, changes {place}: seconds, incremental": fast,
            f"population, changes {place}: seconds, full": slow,
            f"population, changes {place}: times faster than full": slow / fast,
        }
    figures["population: seconds, reading the columns of both tables once"] = read_once(lake)
    return figures


def read_once(lake: Lake) -> float:
    """Return the seconds of reading the columns of `POPULATION` once and dropping them: the better of two runs."""
    seconds: list[float] = []
    for _ in range(2):
        began = time.perf_counter()
        for columns, table in (("id, balance", "users"), ("user_id, city", "user_city")):
            lake.spark().sql(f"SELECT {columns} FROM final.{table}").write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def by_share(lake: Lake, rows: int, shares: Sequence[float]) -> list[list[str]]:
    """Return the lines of the table: one per strategy and share."""
    make(lake, rows)
    variants: dict[str, dict[str, Any]] = {"": {}}
    if "full_above" in SqlModel.model_fields:
        variants |= {"_incremental": {"full_above": 1}, "_full": {"full_above": 0}}
    models = {
        f"agg.{s}{suffix}": {"sql": sql, **settings}
        for s, sql in MODELS.items()
        for suffix, settings in variants.items()
    }
    bench = Bench(lake, models)
    for name in models:
        bench.run(name)
    lines: list[list[str]] = []
    # The first change warms up, and gives the estimate a history.
    for turn, share in enumerate((shares[0], *shares), 1):
        changed = change(lake, max(10, int(2 * rows * share)), rows, turn)
        for strategy, sql in MODELS.items():
            picked = bench.run(f"agg.{strategy}")
            steps = {suffix: bench.run(f"agg.{strategy}{suffix}") for suffix in variants if suffix}
            for suffix in variants:
                bench.check(f"agg.{strategy}{suffix}")
            if not steps:  # the strategy cannot be forced: full is what Spark writes, incremental what was picked
                began = time.perf_counter()
                lake.spark().sql(f"CREATE OR REPLACE TABLE agg.recomputed USING iceberg AS {sql}")
                full, incremental = time.perf_counter() - began, picked.seconds
                strategy_used = picked.outcome.strategy
            else:
                full, incremental = steps["_full"].seconds, steps["_incremental"].seconds
                strategy_used = steps["_incremental"].outcome.strategy
            chose_full = picked.outcome.strategy == "full"
            factor = (full if chose_full else incremental) / min(full, incremental)
            say(f"{strategy}, {changed:,} changes: {incremental:.2f} s by {strategy_used}, {full:.2f} s in full")
            say(f"  picked {picked.outcome.strategy}, {picked.seconds:.2f} s: {picked.outcome.why}")
            if turn > 1:
                verdict = "yes" if factor <= NOISE else f"no: {factor:.1f} times slower"
                lines.append(
                    [
                        strategy_used, f"{share:g}", f"{changed:,}", f"{incremental:.2f}", f"{full:.2f}",
                        f"{full / incremental:.1f}", picked.outcome.strategy, verdict,
                    ]
                )  # fmt: skip
    return sorted(lines, key=lambda line: line[0] if line[0] != "full" else "~")


def nothing(lake: Lake, turns: int = 5) -> dict[str, float | str]:
    """Measure a step without changes in its sources, over the tables and the model of `population`."""
    bench = Bench(lake, {"agg.population": {"sql": POPULATION}})
    bench.run("agg.population")
    tracker = lake.spark().sparkContext.statusTracker()
    jobs = len(tracker.getJobIdsForGroup(None))
    requests: list[str] = []
    load, exists = lake.catalog.load_table, lake.catalog.table_exists

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(name: Any, *rest: Any) -> Any:
            requests.append(".".join(name))
            return call(name, *rest)

        return wrapped

    lake.catalog.load_table, lake.catalog.table_exists = counted(load), counted(exists)  # type: ignore[method-assign]
    try:
        steps = [bench.run("agg.population") for _ in range(turns)]
    finally:
        lake.catalog.load_table, lake.catalog.table_exists = load, exists  # type: ignore[method-assign]
    assert {s.outcome.status for s in steps} == {"nothing"}
    return {
        "nothing to absorb: seconds": min(s.seconds for s in steps),
        "nothing to absorb: Spark jobs": float(len(tracker.getJobIdsForGroup(None)) - jobs),
        "nothing to absorb: looks into the catalog, for an input": requests.count("final.users") / turns,
    }


def report(figures: dict[str, float | str], lines: list[list[str]], *, full_size: bool) -> int:
    """Print the figures; return 1 if one misses its requirement."""
    missed = show(figures, NO_JOBS | (REQUIRED if full_size else {}))
    if lines:
        print("\n| strategy | share of rows | changes | incremental, s | full, s | speedup | picked | the faster one |")
        print("|---|---|---|---|---|---|---|---|")
        for line in lines:
            print(f"| {' | '.join(line)} |")
    return missed


def main() -> int:
    """Run the benchmarks; exit code 1 if a required figure is missed; an error if a table is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of each table of population; 0: skip this part")
    parser.add_argument("--changes", type=int, default=15_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--table-rows",
        type=int,
        default=5_000_000,
        help="rows of each table of part 1 (shares of changes); 0: skip this part",
    )
    parser.add_argument("--shares", type=float, nargs="*", default=SHARES)
    parser.add_argument("--memory", default="8g", help="memory of Spark's driver")
    args = parser.parse_args()
    figures: dict[str, float | str] = {}
    lines: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="bench-models-") as temp:
        # Smaller tables first, so that the JVM has compiled its code before the larger ones, as in a long process.
        for part, rows in (("shares", args.table_rows), ("population", args.rows)):
            if not rows:
                continue
            home = Path(temp) / part
            home.mkdir()
            lake = Lake(LakeConfig(home=home, spark=SparkConfig(driver_memory=args.memory)))
            lake.spark().sql(f"USE {quote(lake.config.name)}")
            if part == "population":
                figures |= population(lake, rows, args.changes, args.turns)
                figures |= nothing(lake)
            else:
                lines = by_share(lake, rows, args.shares)
        lake.spark().stop()
    return report(figures, lines, full_size=args.rows >= ROWS)


if __name__ == "__main__":
    sys.exit(main())

"""Cost of small steps: a micro-batch of ten changes a table, by kind of table, and over many tables of one stream.

    make bench-small_steps

Micro-batches alternate between two ways: as steps are by default, and with small windows and changes left to Spark (no
rows held by this process, MERGE in SQL). Seconds are those of warm steps, one after the other in one process; CPU
seconds are of this process and its JVM, with what the JVM compiles meanwhile. The first load has 300 changes a table.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from figures import Required, cpu_seconds, show

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.examples.event_generator import Source, Workload
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.lake import SparkConfig, thresholds
from lake_assets.pipeline import PipelineConfig

CHANGES, FIRST = 10, 300
BY_SPARK = {"LOCAL_FILES": 0, "POSITION_VALUES": 0}
MODELS = {
    "retract": "SELECT active, count(*) AS n FROM final.t0 GROUP BY active",
    "keys": "SELECT born, max(amount) AS most FROM final.t0 GROUP BY born",
}
Costs = dict[str, list[tuple[float, float]]]


class Stream:
    """Many tables of one stream, and the pipeline that keeps them up to date."""

    def __init__(self, lake: Lake, name: str, tables: int, **config: Any) -> None:
        self.lake, self.folder = lake, lake.config.home / "landing" / name
        self.folder.mkdir(parents=True)
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": name, **config}))
        self.files = itertools.count()
        self.tables: list[str] = []
        self.sources = [_transactions(("public", f"t{n}"), n) for n in range(tables)]

    def land(self, changes: int) -> None:
        """Land about so many changes of each table, in whole transactions, as one file."""
        lines: list[str] = []
        for n, source in enumerate(self.sources, 1):
            while len(lines) < n * changes:
                lines += next(source)
        (self.folder / f"{next(self.files):04}.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def run(self) -> dict[str, tuple[float, float]]:
        """Run every step once; return the seconds and CPU seconds of each."""
        costs: dict[str, tuple[float, float]] = {}
        self.tables = self.tables or [o.table for o in self.pipeline.run(self.lake)]
        for table in self.tables:
            began, cpu = time.perf_counter(), cpu_seconds()
            (outcome,) = self.pipeline.run(self.lake, [table])
            assert outcome.status in ("absorbed", "nothing"), outcome
            costs[table] = (time.perf_counter() - began, cpu_seconds() - cpu)
        return costs


def _transactions(table: tuple[str, str], seed: int) -> Iterator[list[str]]:
    """Yield the events of a table by transaction, without end."""
    workload = Workload(seed=seed, events=1_000_000, keys=2_000, table=table)
    for transaction in Source(workload):
        yield list(ENCODERS["debezium"](transaction, workload))


def both_ways(stream: Stream, rounds: int) -> tuple[Costs, Costs]:
    """Return the costs of micro-batches by table: as steps are by default, and by Spark."""
    here: Costs = defaultdict(list)
    spark: Costs = defaultdict(list)
    for n in range(2 * rounds):
        stream.land(CHANGES)
        with contextlib.ExitStack() as scope:
            for name, value in BY_SPARK.items() if n % 2 else ():
                scope.enter_context(mock.patch.object(thresholds, name, value))
            for table, cost in stream.run().items():
                (spark if n % 2 else here)[table].append(cost)
    return here, spark


def of_kinds(lake: Lake, rounds: int) -> dict[str, float | str]:
    """Return figures of each kind of step."""
    tables = [{"table": "public.t0"}, {"table": "public.t1", "name": "versions", "mode": "scd2"}]
    models = [{"name": f"agg.{n}", "sql": sql, "full_above": 1} for n, sql in MODELS.items()]
    models.append({"name": "agg.overwritten", "sql": MODELS["keys"]})
    streams = [{"name": "kinds", "tables": tables}]
    stream = Stream(lake, "kinds", 2, streams=streams, models=models)
    stream.land(FIRST)
    stream.run()
    here, spark = both_ways(stream, rounds)
    figures: dict[str, float | str] = {}
    for table in here:
        (seconds, cpu), (by_spark, spark_cpu) = _medians(here[table]), _medians(spark[table])
        figures[f"{table}: seconds, and by Spark"] = f"{seconds:.2f}, {by_spark:.2f}"
        figures[f"{table}: CPU seconds, and by Spark"] = f"{cpu:.2f}, {spark_cpu:.2f}"
        figures[f"{table}: times the CPU seconds by Spark"] = cpu / spark_cpu
    return figures


def of_streams(lake: Lake, sizes: list[int], rounds: int) -> dict[str, float | str]:
    """Return figures of micro-batches over streams with so many tables."""
    figures: dict[str, float | str] = {}
    base: dict[str, float] = {}
    for tables in sizes:
        name = f"of{tables}"
        stream = Stream(lake, name, tables, streams=[{"name": name, "tables": ["public.*"], "namespace": name}])
        stream.land(FIRST)
        began = time.perf_counter()
        stream.run()
        first = time.perf_counter() - began
        here, spark = both_ways(stream, rounds)
        whole, by_spark = (
            [sum(seconds) for seconds in zip(*([s for s, _ in costs] for costs in way.values()), strict=True)]
            for way in (here, spark)
        )
        seconds = statistics.median(whole)
        figures[f"{tables} tables: seconds of a micro-batch, and by Spark"] = (
            f"{seconds:.2f}, {statistics.median(by_spark):.2f}"
        )
        figures[f"{tables} tables: seconds of the first load"] = first
        base = base or {"micro-batch": seconds, "first load": first}
        if tables != sizes[0]:
            figures[f"{tables} tables: times a micro-batch over {sizes[0]}"] = seconds / base["micro-batch"]
            figures[f"{tables} tables: times the first load of {sizes[0]}"] = first / base["first load"]
    return figures


def _medians(costs: list[tuple[float, float]]) -> tuple[float, float]:
    seconds, cpu = zip(*costs, strict=True)
    return statistics.median(seconds), statistics.median(cpu)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["kinds", "streams"])
    parser.add_argument("--rounds", type=int, default=6, help="micro-batches of each way")
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 5, 20], help="tables of the streams")
    args = parser.parse_args()
    figures: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory() as home:
        lake = Lake(LakeConfig(home=Path(home), spark=SparkConfig(driver_memory="3g")))
        if args.only in (None, "kinds"):
            figures |= of_kinds(lake, args.rounds)
        if args.only in (None, "streams"):
            figures |= of_streams(lake, args.tables, args.rounds)
        lake.spark().stop()
    required: Mapping[str, Required] = {"final.t0: times the CPU seconds by Spark": ("at most", 0.7)}
    return show(figures, required)


if __name__ == "__main__":
    sys.exit(main())

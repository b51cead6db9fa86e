"""Thirty of 365 days, redone through three tables: against everything, and against 30 single partitions.

    make bench-backfill
    make bench-backfill ARGS="--rows 50000000"

A table of sales over a year; a model with the value of each, by day; below it the sums by day and shop, and by day.
Rows of the chosen days are damaged in the first model before each way is measured, and the models below absorb the
damage:

- a backfill of the thirty days, with everything downstream, published at once;
- a backfill of the whole year (`--all`);
- a backfill of all 365 days as a range, in chunks of about five million rows;
- thirty times: one partition of the first model recomputed, then a run of the models below.

Peak memory is that of the JVM's old generation. Afterwards every table is compared with its query by `verify`. A second
thread absorbs micro-batches during a backfill: their median time is compared with that of micro-batches beside a plain
scan of the same table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import Required, show
from pyspark.sql import functions as F

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfill_record import Records
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.row_selection import Selection
from lake_assets.lake import SparkConfig, TableId
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.redo import redo_partitions
from lake_assets.pipeline.table_graph import ComputedSpec
from lake_assets.pipeline.verification import verify

DAYS = {"by": "day", "every": "day", "start": "2024-01-01"}
CONFIG = {
    "name": "bench",
    "models": [
        {
            "name": "agg.valued",
            "sql": "SELECT id, shop, day, amount, amount * price AS value FROM src.sales",
            "partitions": DAYS,
        },
        {
            "name": "agg.by_shop",
            "sql": "SELECT day, shop, count(*) AS n, sum(value) AS value FROM agg.valued GROUP BY day, shop",
            "partitions": DAYS,
        },
        {"name": "agg.by_day", "sql": "SELECT day, sum(n) AS n, sum(value) AS value FROM agg.by_shop GROUP BY day"},
        {"name": "agg.beside", "sql": "SELECT shop, count(*) AS n FROM src.visits GROUP BY shop"},
    ],
}
FIRST, LAST = "2024-06-01", "2024-06-30"
REQUIRED: dict[str, Required] = {
    "30 days against everything": ("at most", 0.34),
    "30 days against 30 single partitions": ("at most", 0.34),
}


def fill(lake: Lake, rows: int) -> None:
    """Write the sales of a year, by day."""
    spark = lake.spark()
    lake.ensure_namespace(("src",))
    spark.sql(
        "CREATE TABLE src.sales (id BIGINT, shop INT, day DATE, amount INT, price DECIMAL(9,2)) USING iceberg "
        "PARTITIONED BY (day) TBLPROPERTIES ('format-version' = '3')"
    )
    spark.sql("CREATE TABLE src.visits (shop INT) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    spark.range(rows).selectExpr(
        "id",
        "CAST(hash(id) % 1000 AS INT) AS shop",
        f"date_add(DATE'2024-01-01', CAST(id * 365 / {rows} AS INT)) AS day",
        "CAST(abs(hash(id, 1)) % 10 AS INT) AS amount",
        "CAST(abs(hash(id, 2)) % 10000 / 100 AS DECIMAL(9,2)) AS price",
    ).sortWithinPartitions("day").writeTo("src.sales").append()


def damage(lake: Lake, pipeline: Pipeline) -> None:
    """Change a tenth of the rows of thirty days of the first model, and let the models below absorb it."""
    lake.spark().sql(
        f"UPDATE agg.valued SET value = value + 1 WHERE day BETWEEN DATE'{FIRST}' AND DATE'{LAST}' AND id % 10 = 0"
    )
    run(lake, pipeline)


def run(lake: Lake, pipeline: Pipeline, *tables: str) -> float:
    """Run the pipeline; return the seconds."""
    began = time.monotonic()
    for outcome in pipeline.run(lake, tables or None):
        if outcome.exception:
            raise outcome.exception
    return time.monotonic() - began


def backfill(lake: Lake, pipeline: Pipeline, selection: Selection) -> float:
    """Run a backfill of the first model and everything downstream; return the seconds."""
    began = time.monotonic()
    planned = plan(lake, pipeline, TableId.parse("agg.valued"), selection, past=Records(lake).all())
    print(f"planned: {planned.seconds:.0f} s, {planned.tables[0].rows_read:,} rows read in {planned.tables[0].table}")
    made = Backfill.begin(lake, pipeline, planned)
    made.build()
    made.publish()
    return time.monotonic() - began


def peak_memory(lake: Lake, reset: bool = False) -> int:
    """Return the most bytes that the old generation of the JVM has held, garbage included, since the last reset."""
    jvm: Any = lake.spark()._jvm
    if reset:
        jvm.java.lang.System.gc()
    peak = 0
    for pool in jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans():
        if pool.getName() == "G1 Old Gen":
            peak = int(pool.getPeakUsage().getUsed())
            if reset:
                pool.resetPeakUsage()
    return peak


def single_partitions(lake: Lake, pipeline: Pipeline) -> float:
    """Recompute thirty partitions one by one, each with a run of the models below; return the seconds."""
    began = time.monotonic()
    spec = next(s for s in pipeline.specs(lake) if str(s.table) == "agg.valued")
    assert isinstance(spec, ComputedSpec)
    for day in range(1, 31):
        redo_partitions(lake, spec, [f"2024-06-{day:02}"])
        run(lake, pipeline)
    return time.monotonic() - began


def batches(lake: Lake, pipeline: Pipeline, work: Callable[[Lake], object]) -> list[float]:
    """Return the seconds of micro-batches into another table that run while `work` does."""
    other = lake.beside(lake.config, {})
    thread = threading.Thread(target=work, args=(other,))
    thread.start()
    seconds: list[float] = []
    while thread.is_alive() or len(seconds) < 3:
        lake.spark().range(10).select(F.col("id").cast("int").alias("shop")).writeTo("src.visits").append()
        seconds.append(run(lake, pipeline, "agg.beside"))
    thread.join()
    return seconds


def main() -> int:
    """Print the table; return 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="sales of the year")
    args = parser.parse_args()
    thirty, year = Selection(low=FIRST, high=LAST), Selection(low="2024-01-01", high="2024-12-30")
    with tempfile.TemporaryDirectory() as home:
        spark = SparkConfig(master="local[2]", driver_memory="6g")
        lake = Lake(LakeConfig(home=Path(home), spark=spark))
        pipeline = Pipeline(PipelineConfig.model_validate(CONFIG))
        fill(lake, args.rows)
        run(lake, pipeline)
        seconds: dict[str, float] = {}
        memory: dict[str, int] = {}
        for name, way in (
            ("warm-up", lambda: backfill(lake, pipeline, thirty)),
            ("30 days", lambda: backfill(lake, pipeline, thirty)),
            ("everything", lambda: backfill(lake, pipeline, Selection())),
            ("365 days", lambda: backfill(lake, pipeline, year)),
            ("30 single partitions", lambda: single_partitions(lake, pipeline)),
        ):
            damage(lake, pipeline)
            peak_memory(lake, reset=True)
            seconds[name] = way()
            memory[name] = peak_memory(lake)
            print(f"{name}: {seconds[name]:.1f} s, at most {memory[name] / 2**20:,.0f} MiB", flush=True)
        damage(lake, pipeline)
        during = batches(lake, pipeline, lambda other: backfill(other, pipeline, thirty))
        beside = batches(lake, pipeline, lambda other: other.spark().table("agg.valued").orderBy("value").count())
        for spec in (s for s in pipeline.specs(lake) if isinstance(s, ComputedSpec)):
            if not (found := verify(lake, spec)).equal:
                raise SystemExit(f"{spec.table} differs: {found.differences[:3]}")
    print(f"\n{args.rows:,} rows, 365 days\n")
    figures: dict[str, float | str] = {
        "30 days, seconds": seconds["30 days"],
        "everything, seconds": seconds["everything"],
        "365 days in chunks, seconds": seconds["365 days"],
        "30 single partitions, seconds": seconds["30 single partitions"],
        "30 days against everything": seconds["30 days"] / seconds["everything"],
        "30 days against 30 single partitions": seconds["30 days"] / seconds["30 single partitions"],
        "peak memory of 365 days against thirty": memory["365 days"] / memory["30 days"],
        "a micro-batch beside a backfill, seconds (median)": statistics.median(during),
        "a micro-batch beside a scan, seconds (median)": statistics.median(beside),
    }
    return int(show(figures, REQUIRED))


if __name__ == "__main__":
    sys.exit(main())

"""Commits to small tables on a local disk: the product's class of local files against Hadoop's.

    make bench-local-files

Two lakes in one JVM take turns, so that neither meets a warmer machine. The programs that were started are those of the
whole machine (`/proc/stat`): let nothing else run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig

HADOOP, PRODUCT = "Hadoop's class", "the product's class"
TABLE = "lake.bench.rows"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100, help="rows of each table")
    parser.add_argument("--merges", type=int, default=60, help="MERGE commands of each class, after warming up")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-local-files-") as temp:
        first = Lake(LakeConfig(home=Path(temp) / "product"))
        lakes = {PRODUCT: first, HADOOP: with_hadoop_files(first, Path(temp) / "hadoop")}
        for lake in lakes.values():
            lake.ensure_namespace(("bench",))
            lake.spark().sql(f"CREATE TABLE {TABLE} USING iceberg AS SELECT id, 'old' AS name FROM range({args.rows})")
        merges: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in lakes}
        for n in range(-(args.merges // 3), args.merges):
            for kind, lake in lakes.items():
                measured = merge(lake, n)
                if n >= 0:
                    merges[kind].append(measured)
        first.spark().stop()
    print(f"| a MERGE of 5 rows into {args.rows:,} | {' | '.join(merges)} |\n|---" + "|---" * len(merges) + "|")
    for i, (what, form) in enumerate((("median, ms", ".0f"), ("CPU, ms", ".0f"), ("programs and threads", ".1f"))):
        average: Callable[[list[float]], float] = statistics.median if i == 0 else statistics.mean
        figures = [format(average([m[i] for m in measured]), form) for measured in merges.values()]
        print(f"| {what} | " + " | ".join(figures) + " |")


def with_hadoop_files(lake: Lake, home: Path) -> Lake:
    """Return another lake on the JVM of `lake`, which writes files as Hadoop does by default."""
    key = f"spark.sql.catalog.{lake.config.name}.hadoop.fs.file.impl"
    conf = {key: "org.apache.hadoop.fs.LocalFileSystem", f"{key}.disable.cache": "true"}
    return lake.beside(LakeConfig(home=home, spark=SparkConfig(conf=conf)), {})


def merge(lake: Lake, n: int) -> tuple[float, float, float]:
    """MERGE five rows; return milliseconds, milliseconds of CPU, and programs and threads started."""
    before = (time.perf_counter(), *machine())
    lake.spark().sql(
        f"MERGE INTO {TABLE} t USING (SELECT id, 'new {n}' AS name FROM range(5)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.name = s.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)"
    )
    after = (time.perf_counter(), *machine())
    seconds, cpu, started = (b - a for a, b in zip(before, after, strict=True))
    return seconds * 1000, cpu * 1000, started


def machine() -> tuple[float, float]:
    """Return the seconds of CPU that the machine has used, and the programs and threads that it has started."""
    lines = Path("/proc/stat").read_text().splitlines()
    ticks = sum(int(n) for n in lines[0].split()[1:4]) / os.sysconf("SC_CLK_TCK")
    return ticks, float(next(line for line in lines if line.startswith("processes")).split()[1])


if __name__ == "__main__":
    main()

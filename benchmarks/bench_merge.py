"""What it costs to keep a final table: against a plain MERGE of the same changes into the same table.

    make bench-merge

The table's rows lie scattered over all of its files. Each figure is the median of some runs after one that warms up;
the table is rolled back after each. In the first run of each, the table is compared with what the plain MERGE leaves.
Both get the changes as one row a key, in memory; what the product does beside (capture, reduction, watermark) is in the
figures of a whole step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig, TableId
from lake_assets.lake.names import literal
from lake_assets.merge.pruning import prune

TABLE = TableId(("bench",), "final")
COLUMNS = ["id", "code", "a", "b", "name", "amount", "ts"]
KEYS: dict[str, list[str]] = {"a number": ["id"], "a text": ["code"], "two numbers": ["a", "b"]}
LAYOUTS = {
    "scattered": ("", "xxhash64(id)"),
    "clustered": ("", "id"),
    "bucketed": ("PARTITIONED BY (bucket(16, id))", "xxhash64(id)"),
}
REQUIRED = {
    "scattered, 1,000 keys of a number: times faster than a plain MERGE": ("at least", 5.0),
}


def row(of: str) -> str:
    """SQL of a row's columns, from its number."""
    return (
        f"{of} AS id, concat('k-', lpad(CAST({of} AS STRING), 12, '0')) AS code, {of} DIV 1000 AS a, {of} % 1000 AS b, "
        f"concat('name ', {of} % 9973) AS name, CAST({of} % 100000 AS DECIMAL(12,2)) AS amount, "
        f"timestamp_seconds(1700000000 + {of} % 10000000) AS ts"
    )


def make(lake: Lake, layout: str, rows: int) -> int:
    """The table, merge-on-read; its snapshot."""
    partitioned, order = LAYOUTS[layout]
    lake.ensure_namespace(TABLE.namespace)
    spark, name = lake.spark(), lake.sql_name(TABLE)
    spark.sql(f"DROP TABLE IF EXISTS {name} PURGE")
    said = {
        "format-version": "3", "write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read", "write.distribution-mode": "none",
        "write.merge.distribution-mode": "none", "write.parquet.compression-codec": "zstd",
    }  # fmt: skip
    properties = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in said.items())
    by = "REPARTITION_BY_RANGE(16, o)" if layout == "clustered" else "REPARTITION(16, o)"
    spark.sql(
        f"CREATE TABLE {name} USING iceberg {partitioned} TBLPROPERTIES ({properties}) AS SELECT {', '.join(COLUMNS)} "
        f"FROM (SELECT /*+ {by} */ *, {order} AS o FROM (SELECT {row('id')} FROM range({rows}))) SORT BY o"
    )
    snapshot = lake.table(TABLE).metadata.current_snapshot_id
    assert snapshot is not None
    return snapshot


def changes(lake: Lake, count: int, rows: int) -> DataFrame:
    """One row a key, all over the table: a fifth inserts, a fifth deletes, the rest updates."""
    step = rows // count
    number = f"(CASE WHEN i % 5 = 0 THEN {rows} + i ELSE i * {step} + (i * 7919) % {step} END)"
    found = lake.spark().sql(
        f"SELECT {row('n')}, i % 5 = 1 AS gone, i FROM (SELECT id AS i, {number} AS n FROM range({count}))"
    )
    return found.withColumn("name", F.concat(F.lit("new "), "i")).drop("i").localCheckpoint()


def merge(lake: Lake, source: DataFrame, key: Sequence[str], condition: str, values: dict[str, Any]) -> None:
    """MERGE the changes."""
    source.createOrReplaceTempView("changes")
    on = " AND ".join([*(f"t.{k} = s.{k}" for k in key), *([condition] if condition else [])])
    sets = ", ".join(f"t.{c} = s.{c}" for c in COLUMNS)
    sql = (
        f"MERGE INTO {lake.sql_name(TABLE)} t USING changes s ON {on} WHEN MATCHED AND s.gone THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {sets} WHEN NOT MATCHED AND NOT s.gone THEN INSERT ({', '.join(COLUMNS)}) "
        f"VALUES ({', '.join('s.' + c for c in COLUMNS)})"
    )
    lake.spark().sql(sql, args=values) if values else lake.spark().sql(sql)


def plain(lake: Lake, source: DataFrame, key: Sequence[str]) -> str:
    """As one would write it."""
    merge(lake, source, key, "", {})
    return ""


def pruned(lake: Lake, source: DataFrame, key: Sequence[str]) -> str:
    """As the product does it; says how."""
    found = prune(source, key, lake.table(TABLE))
    merge(lake, source, key, found.condition, found.values)
    return found.why


def timed(lake: Lake, base: int, repeat: int, step: Callable[[], str]) -> tuple[float, str, Any]:
    """Median seconds, what the step said, and what it left."""
    seconds: list[float] = []
    said, left = "", None
    for turn in range(repeat + 1):
        began = time.perf_counter()
        said = step()
        if turn:
            seconds.append(time.perf_counter() - began)
        else:
            left = state(lake)
        lake.spark().sql(f"CALL `{lake.config.name}`.system.rollback_to_snapshot({literal(str(TABLE))}, {base})")
    return statistics.median(seconds), said, left


def state(lake: Lake) -> tuple[Any, ...]:
    """All of the table, in short."""
    return tuple(
        lake.spark()
        .sql(f"SELECT count(*), sum(CAST(xxhash64(*) AS DECIMAL(38))) FROM {lake.sql_name(TABLE)}")
        .collect()[0]
    )


def report(found: dict[str, Any]) -> int:
    """Print the figures; 1 where one misses what is required."""
    missed = False
    print("| what | measured | required |\n|---|---|---|")
    for name, value in found.items():
        how, limit = REQUIRED.get(name, ("", 0.0))
        holds = not how or value >= limit
        missed |= not holds
        shown = value if isinstance(value, str) else f"{value:.2f}"
        print(f"| {name} | {shown}{'' if holds else ' **missed**'} | {f'{how} {limit:,g}' if how else ''} |")
    return missed


def main() -> int:
    """Run the benchmarks; exit code 1 where a required figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--changes", type=int, nargs="*", default=[10, 1_000, 50_000, 1_000_000])
    parser.add_argument("--layout", choices=list(LAYOUTS), action="append")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-merge-") as temp:
        lake = Lake(LakeConfig(home=Path(temp), spark=SparkConfig(driver_memory="8g")))
        for layout in args.layout or list(LAYOUTS):
            base = make(lake, layout, args.rows)
            for count in args.changes:
                source = changes(lake, count, args.rows)
                for name, key in KEYS.items():
                    if layout != "scattered" and (name != "a number" or count == 10):
                        continue
                    what = f"{layout}, {count:,} keys of {name}"
                    slow, _, left = timed(lake, base, 1, lambda k=key, s=source: plain(lake, s, k))
                    fast, why, same = timed(lake, base, args.repeat, lambda k=key, s=source: pruned(lake, s, k))
                    assert left == same, f"{what}: {left} by a plain MERGE, {same} by the pruned one"
                    print(f"{what}: {slow:.2f} s plain, {fast:.2f} s: {why}", file=sys.stderr, flush=True)
                    found[f"{what}: seconds, plain MERGE"] = slow
                    found[f"{what}: seconds"] = fast
                    found[f"{what}: times faster than a plain MERGE"] = slow / fast
                    found[f"{what}: how"] = why
        lake.spark().stop()
    return report(found)


if __name__ == "__main__":
    sys.exit(main())

"""Cost of maintaining a final table, against a plain MERGE of the same changes into the same table.

"In Spark" is the product's MERGE with pruned keys; few rows are found and committed by position instead.

    make bench-merge

The table's rows are scattered over all of its files. Each figure is the median of several runs after a warm-up; the
table is rolled back after each run. In the first run, the table is compared with the result of the plain MERGE. Both
get the changes in memory, as one row per key; the other work of a step (capture, reduction, watermark) is part of the
figures of a whole cycle (`make bench-cycle`).

Bytes read are counted for the JVM by Linux, including shuffles through files. Bytes written are the new data files of
the commit, relative to one file with only the changed rows; deletion vectors are reported separately.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Required, cpu_seconds, show
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig, TableId, thresholds
from lake_assets.lake.names import literal
from lake_assets.tables.merge_pruning import prune
from lake_assets.tables.writing.merge_clauses import Delete, Match, Update, insert, source_values
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import columns_of
from lake_assets.tables.writing.table_writer import TableWriter

TABLE = TableId(("bench",), "final")
COLUMNS = ["id", "code", "a", "b", "name", "amount", "ts"]
KEYS: dict[str, list[str]] = {"a number": ["id"], "a text": ["code"], "two numbers": ["a", "b"]}
# Partitioning, order of the rows, number of files (fewer in small tables), and how a MERGE writes.
LAYOUTS = {
    "scattered": ("", "xxhash64(id)", 16, "merge-on-read"),
    "clustered": ("", "id", 16, "merge-on-read"),
    "bucketed": ("PARTITIONED BY (bucket(16, id))", "xxhash64(id)", 16, "merge-on-read"),
    "many files": ("", "xxhash64(id)", 200, "merge-on-read"),
    "copy-on-write": ("", "xxhash64(id)", 16, "copy-on-write"),
}
ROWS_A_FILE = 1_000
DEFAULT = ["scattered", "clustered", "bucketed"]
# Up to this many changes are one partition, and so one file, in the product.
FEW = thresholds.SMALL_INPUT_ROWS
REQUIRED: dict[str, Required] = {
    "scattered, 1,000 keys of a number: bytes written, times the changed rows": ("at most", 2.0),
    "scattered, 50,000 keys of a number: bytes written, times the changed rows": ("at most", 2.0),
    "scattered, 1,000,000 keys of a number: bytes written, times the changed rows": ("at most", 2.0),
    "scattered, 1,000 keys of a number: times faster than a plain MERGE": ("at least", 5.0),
}


def row(of: str) -> str:
    """Return SQL of a row's columns, computed from its number."""
    return (
        f"{of} AS id, concat('k-', lpad(CAST({of} AS STRING), 12, '0')) AS code, {of} DIV 1000 AS a, {of} % 1000 AS b, "
        f"concat('name ', {of} % 9973) AS name, CAST({of} % 100000 AS DECIMAL(12,2)) AS amount, "
        f"timestamp_seconds(1700000000 + {of} % 10000000) AS ts"
    )


def make(lake: Lake, layout: str, rows: int) -> int:
    """Create the table; return its snapshot."""
    partitioned, order, files, mode = LAYOUTS[layout]
    lake.ensure_namespace(TABLE.namespace)
    spark, name = lake.spark(), lake.sql_name(TABLE)
    spark.sql(f"DROP TABLE IF EXISTS {name} PURGE")
    properties = {
        "format-version": "3", "write.delete.mode": mode, "write.update.mode": mode,
        "write.merge.mode": mode, "write.distribution-mode": "none",
        "write.merge.distribution-mode": "none", "write.parquet.compression-codec": "zstd",
    }  # fmt: skip
    property_list = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
    files = max(1, min(files, rows // ROWS_A_FILE))
    hint = f"REPARTITION{'_BY_RANGE' if layout == 'clustered' else ''}({files}, o)"
    spark.sql(
        f"CREATE TABLE {name} USING iceberg {partitioned} TBLPROPERTIES ({property_list}) "
        f"AS SELECT {', '.join(COLUMNS)} FROM "
        f"(SELECT /*+ {hint} */ *, {order} AS o FROM (SELECT {row('id')} FROM range({rows}))) SORT BY o"
    )
    snapshot = lake.table(TABLE).metadata.current_snapshot_id
    assert snapshot is not None
    return snapshot


def changes(lake: Lake, count: int, rows: int) -> DataFrame:
    """Return one row per key, spread over the table: a fifth inserts, a fifth deletes, the rest updates."""
    step = rows // count
    number = f"(CASE WHEN i % 5 = 0 THEN {rows} + i ELSE i * {step} + (i * 7919) % {step} END)"
    changed = lake.spark().sql(
        f"SELECT {row('n')}, i % 5 = 1 AS gone, i FROM (SELECT id AS i, {number} AS n FROM range({count}))"
    )
    changed = changed.withColumn("name", F.concat(F.lit("new "), "i")).drop("i")
    return (changed.coalesce(1) if count <= FEW else changed).localCheckpoint()


def bytes_of_rows(lake: Lake, source: DataFrame) -> int:
    """Return the bytes of the rows that a MERGE of the changes has to write, in one file."""
    alone = lake.sql_name("bench.alone")
    rows = source.where("NOT gone").drop("gone").coalesce(1)
    rows.writeTo(alone).tableProperty("write.parquet.compression-codec", "zstd").createOrReplace()
    return lake.spark().table(f"{alone}.files").agg(F.sum("file_size_in_bytes")).collect()[0][0]


def bytes_written(lake: Lake) -> tuple[int, int]:
    """Return the bytes of data files and of deletion vectors that the newest commit added."""
    snapshot = lake.table(TABLE).metadata.current_snapshot_id
    entries = lake.spark().table(f"{lake.sql_name(TABLE)}.entries").where(f"status = 1 AND snapshot_id = {snapshot}")
    size = "coalesce(data_file.content_size_in_bytes, data_file.file_size_in_bytes)"
    sizes = {r[0]: r[1] for r in entries.groupBy("data_file.content").agg(F.expr(f"sum({size})")).collect()}
    return sizes.get(0, 0), sizes.get(1, 0)


def bytes_read() -> int:
    """Return the bytes that this process and the JVM have read so far; 0 if the system does not count them."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if os.getpid() in (parent, int(process.name)):
                counted = (process / "io").read_text().splitlines()[0]
                total += int(counted.removeprefix("rchar: "))
    return total


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
    """MERGE without pruning."""
    merge(lake, source, key, "", {})
    return ""


def written(lake: Lake, source: DataFrame, key: Sequence[str]) -> str:
    """Write the changes as the product does; return how the rows were found."""
    writer = TableWriter(Commit(lake, TABLE, lake.table(TABLE)), columns_of(lake, TABLE))
    clauses = [Delete("s.`gone`"), Update(values=source_values(COLUMNS)), insert(COLUMNS, when="NOT s.`gone`")]
    count = source.count()
    match = Match(key, nulls_match=False)
    return writer.merge(source, match, clauses, lambda: prune(source, key, lake.table(TABLE)), at_most=count)


def in_spark(lake: Lake, source: DataFrame, key: Sequence[str]) -> str:
    """Write the changes with the product's MERGE."""
    most, thresholds.POSITION_VALUES = thresholds.POSITION_VALUES, 0
    try:
        return written(lake, source, key)
    finally:
        thresholds.POSITION_VALUES = most


@dataclass(frozen=True)
class Timed:
    """Median seconds, of time and of CPU, description and resulting table of a step; bytes read, and written as data
    and vectors."""

    seconds: float
    cpu: float
    description: str
    contents: Any
    read: int
    data: int
    deletes: int


def timed(lake: Lake, base: int, repeat: int, step: Callable[[], str]) -> Timed:
    """Run a step several times over the same table."""
    seconds: list[float] = []
    cpu: list[float] = []
    description, contents, data, deletes, read = "", None, 0, 0, 0
    for turn in range(repeat + 1):
        before, used, began = bytes_read(), cpu_seconds(), time.perf_counter()
        description = step()
        if turn:
            seconds.append(time.perf_counter() - began)
            cpu.append(cpu_seconds() - used)
            read = bytes_read() - before
        else:
            contents = state(lake)
            data, deletes = bytes_written(lake)
        lake.spark().sql(f"CALL `{lake.config.name}`.system.rollback_to_snapshot({literal(str(TABLE))}, {base})")
    return Timed(statistics.median(seconds), statistics.median(cpu), description, contents, read, data, deletes)


def state(lake: Lake) -> tuple[Any, ...]:
    """Return a row count and a hash of the table."""
    return tuple(
        lake.spark()
        .sql(f"SELECT count(*), sum(CAST(xxhash64(*) AS DECIMAL(38))) FROM {lake.sql_name(TABLE)}")
        .collect()[0]
    )


def main() -> int:
    """Run the benchmarks; exit code 1 if a required figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--changes", type=int, nargs="*", default=[10, 1_000, 50_000, 1_000_000])
    parser.add_argument("--layout", choices=list(LAYOUTS), action="append")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-merge-") as temp:
        lake = Lake(LakeConfig(home=Path(temp), spark=SparkConfig(driver_memory="8g")))
        for layout in args.layout or DEFAULT:
            base = make(lake, layout, args.rows)
            for count in args.changes:
                source = changes(lake, count, args.rows)
                rows = bytes_of_rows(lake, source)
                for name, key in KEYS.items():
                    if layout != "scattered" and name != "a number":
                        continue
                    what = f"{layout}, {count:,} keys of {name}"
                    plain_merge = timed(lake, base, 1, lambda k=key, s=source: plain(lake, s, k))
                    spark_merge = timed(lake, base, args.repeat, lambda k=key, s=source: in_spark(lake, s, k))
                    ours = timed(lake, base, args.repeat, lambda k=key, s=source: written(lake, s, k))
                    assert plain_merge.contents == spark_merge.contents == ours.contents, (
                        f"{what}: {plain_merge.contents}, {spark_merge.contents} in Spark, {ours.contents}"
                    )
                    text = (
                        f"{plain_merge.seconds:.2f} s plain, {spark_merge.seconds:.2f} s in Spark, "
                        f"{ours.seconds:.2f} s (of CPU: {plain_merge.cpu:.2f}, {spark_merge.cpu:.2f}, {ours.cpu:.2f}): "
                        f"{ours.description}"
                    )
                    print(f"{what}: {text}", file=sys.stderr, flush=True)
                    figures[f"{what}: seconds, plain MERGE"] = plain_merge.seconds
                    figures[f"{what}: seconds, in Spark"] = spark_merge.seconds
                    figures[f"{what}: times faster than in Spark"] = spark_merge.seconds / ours.seconds
                    figures[f"{what}: seconds"] = ours.seconds
                    figures[f"{what}: CPU seconds, plain MERGE"] = plain_merge.cpu
                    figures[f"{what}: CPU seconds, in Spark"] = spark_merge.cpu
                    figures[f"{what}: CPU seconds"] = ours.cpu
                    figures[f"{what}: times faster than a plain MERGE"] = plain_merge.seconds / ours.seconds
                    figures[f"{what}: how"] = ours.description
                    figures[f"{what}: MB read, plain MERGE"] = plain_merge.read / 1e6
                    figures[f"{what}: MB read"] = ours.read / 1e6
                    figures[f"{what}: bytes written, times the changed rows"] = ours.data / rows
                    figures[f"{what}: kB of deletion vectors"] = ours.deletes / 1e3
        lake.spark().stop()
    return show(figures, REQUIRED)


if __name__ == "__main__":
    sys.exit(main())

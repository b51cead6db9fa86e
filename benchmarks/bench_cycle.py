"""Cost of a micro-batch over many tables: seconds until all final tables have absorbed a few changes each.

    make bench-cycle

Most tables have a million rows, some have fifty million, scattered over their files. In each cycle, 1 to 1,000 change
events (updates, inserts, deletes) are appended to each staging table, which is not timed. Then all final tables absorb
them, one after the other, in one warm Spark session. `--cycles 100` shows how the time grows; with `--compact N`, every
second table of each size is compacted after every N cycles (timed separately), the others never.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from figures import Required, show

from lake_assets import Lake, LakeConfig
from lake_assets.final.final_spec import FinalSpec
from lake_assets.formats.event_model import ARRIVED_AT, EVENT_TIME, INDEX, OP, POSITION, SEQUENCE, UNAVAILABLE
from lake_assets.lake import SparkConfig, TableId
from lake_assets.lake.metadata.watermark import Watermark, to_properties
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.writing.publication import committing
from lake_assets.tables.writing.table_ddl import create

ROW = {"id": "bigint", "n": "int", "name": "string", "amount": "decimal(12,2)", "ts": "timestamp"}
TECHNICAL = {
    OP: "string", SEQUENCE: "string", POSITION: "bigint", INDEX: "int", EVENT_TIME: "timestamp",
    ARRIVED_AT: "timestamp", UNAVAILABLE: "array<string>",
}  # fmt: skip
SECONDS_A_CYCLE: Required = ("at most", 60.0)
# Number of cycles per column in the table of growth.
SPAN = 10


def row(of: str, what: str) -> str:
    """Return SQL of a row's columns, computed from its number."""
    return (
        f"{of} AS id, CAST({of} % 1000 AS INT) AS n, concat('{what} ', {of} % 9973) AS name, "
        f"CAST({of} % 100000 AS DECIMAL(12,2)) AS amount, timestamp_seconds(1700000000 + {of} % 10000000) AS ts"
    )


class Table:
    """A staging table and the final table that follows it."""

    def __init__(self, lake: Lake, number: int, rows: int) -> None:
        self.lake, self.rows, self.position, self.added = lake, rows, 0, 0
        name = f"t{number:02}"
        self.spec = FinalSpec(TableId(("final",), name), TableId(("staging",), name), "bench")
        self.staging, self.final = lake.sql_name(self.spec.staging), lake.sql_name(self.spec.table)
        spark = lake.spark()
        create(lake, self.spec.staging, ROW | TECHNICAL, pipeline="bench", key=("id",),
               partitioned_by=f"days({ARRIVED_AT})")  # fmt: skip
        # Create the table as a first load would have, without a staging table of as many events.
        self.change(1, random.Random(0))
        create(lake, self.spec.table, ROW, pipeline="bench", key=("id",))
        head = lake.table(self.spec.staging).metadata
        mark = Watermark(str(head.table_uuid), head.current_snapshot_id, (f"{self.position:020}", self.position), 0)
        files = max(1, rows // 1_500_000)
        with committing(spark, self.spec.table, to_properties({str(self.spec.staging): mark})):
            source_rows = f"SELECT /*+ REPARTITION({files}, h) */ *, xxhash64(id) AS h FROM range({rows})"
            spark.sql(f"INSERT INTO {self.final} SELECT {row('id', 'old')} FROM ({source_rows})")

    def change(self, count: int, choose: random.Random) -> None:
        """Append `count` events: 60 % updates, 20 % inserts, 20 % deletes."""
        step = max(1, self.rows // count)
        start = choose.randrange(step)
        new = self.rows + self.added
        number = f"CASE WHEN id % 5 = 0 THEN {new} + id ELSE (id * {step} + {start}) % {self.rows} END"
        op = "CASE id % 5 WHEN 0 THEN 'insert' WHEN 1 THEN 'delete' ELSE 'update' END"
        at = f"{self.position} + 1 + id"
        events = (
            f"SELECT {op} AS {OP}, lpad(CAST({at} AS STRING), 20, '0') AS {SEQUENCE}, {at} AS {POSITION}, "
            f"0 AS {INDEX}, timestamp_seconds(1750000000 + {at}) AS {EVENT_TIME}, "
            f"timestamp_seconds(1750000000 + {at}) AS {ARRIVED_AT}, "
            f"CAST(NULL AS ARRAY<STRING>) AS {UNAVAILABLE}, {number} AS k FROM range({count})"
        )
        rows = self.lake.spark().sql(f"SELECT {row('k', 'new')}, {', '.join(TECHNICAL)} FROM ({events})")
        rows.coalesce(1).writeTo(self.staging).append()
        self.position, self.added = self.position + count, self.added + count

    def absorb(self) -> None:
        """Absorb the pending changes; this is timed."""
        outcome = absorb(self.lake, self.spec)
        assert outcome.status == "absorbed", outcome

    def compact(self) -> None:
        """Rewrite small files, and files with many deletes."""
        for table in (self.spec.table, self.spec.staging):
            self.lake.spark().sql(
                f"CALL `{self.lake.config.name}`.system.rewrite_data_files(table => '{table}', options => "
                "map('delete-file-threshold', '3', 'min-input-files', '4', 'remove-dangling-deletes', 'true'))"
            )


def main() -> int:
    """Run the benchmark; exit code 1 if a required figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, nargs=2, default=[62, 1_000_000], metavar=("TABLES", "ROWS"))
    parser.add_argument("--big", type=int, nargs=2, default=[3, 50_000_000], metavar=("TABLES", "ROWS"))
    parser.add_argument("--cycles", type=int, default=4)
    parser.add_argument(
        "--compact", type=int, default=0, help="compact every second table after this many cycles; 0: never"
    )
    args = parser.parse_args()
    choose, seconds, compacting = random.Random(1), [], 0.0
    sizes = [args.small[1]] * args.small[0] + [args.big[1]] * args.big[0]
    compacted = [bool(args.compact and i % 2) for i in range(len(sizes))]
    with tempfile.TemporaryDirectory(prefix="bench-cycle-") as temp:
        lake = Lake(LakeConfig(home=Path(temp), spark=SparkConfig(driver_memory="8g")))
        began = time.perf_counter()
        tables = [Table(lake, i, rows) for i, rows in enumerate(sizes)]
        print(f"{len(tables)} tables made in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        for cycle in range(args.cycles + 1):
            arriving = [(table, int(10 ** choose.uniform(0, 3)), random.Random(choose.random())) for table in tables]
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(lambda each: each[0].change(*each[1:]), arriving))
            step_seconds = [timed(table.absorb) for table in tables]
            print(f"cycle {cycle}: {sum(step_seconds):.1f} s", file=sys.stderr, flush=True)
            if cycle:  # the first one warms up
                seconds.append(step_seconds)
            if args.compact and cycle % args.compact == 0:
                compacting += sum(
                    timed(table.compact) for table, is_compacted in zip(tables, compacted, strict=True) if is_compacted
                )
        lake.spark().stop()
    cycles = [sum(step_seconds) for step_seconds in seconds]
    figures = {
        f"{len(sizes)} tables, 1 to 1,000 changes each: seconds a cycle": statistics.median(cycles),
        "the slowest cycle": max(cycles),
        f"the last cycle against the first, of {args.cycles}": cycles[-1] / cycles[0],
    }
    if args.compact:
        figures[f"{sum(compacted)} tables compacted after every {args.compact} cycles: seconds in all"] = compacting
    missed = show(figures, {next(iter(figures)): SECONDS_A_CYCLE})
    if args.cycles >= 2 * SPAN:
        print("\n" + growth(seconds, sizes, compacted))
    return missed


def timed(step: Callable[[], None]) -> float:
    """Return the seconds of a step."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def growth(seconds: list[list[float]], sizes: list[int], compacted: list[bool]) -> str:
    """Return the mean seconds per table over each ten cycles, by size and compaction."""
    spans = [seconds[at : at + SPAN] for at in range(0, len(seconds) - SPAN + 1, SPAN)]
    lines = [f"| seconds per table | {' | '.join(f'{i * SPAN + 1}-{(i + 1) * SPAN}' for i in range(len(spans)))} |"]
    lines.append("|---" * (len(spans) + 1) + "|")
    for kind in sorted(set(zip(sizes, compacted, strict=True))):
        members = [i for i, each in enumerate(zip(sizes, compacted, strict=True)) if each == kind]
        means = [statistics.mean(took[i] for took in span for i in members) for span in spans]
        what = f"{len(members)} of {kind[0]:,} rows, {'compacted' if kind[1] else 'never compacted'}"
        lines.append(f"| {what} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    lines.append(f"| all of a cycle | {' | '.join(f'{statistics.mean(map(sum, span)):.1f}' for span in spans)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""Memory of the JVM under a MERGE that is repeated for a long time: deletion vectors, delete files, and with upkeep.

    make bench-memory ARGS="--batches 100"

Three tables of the same rows with many columns, in 4 buckets, get the same changes in turns: one of format version 3
that is never looked after (apache/iceberg issue 17241), one of version 2, and one of version 3 with upkeep. Each batch
merges keys from anywhere in the table. In every tenth of the batches the heap is collected all the time, and what is
left is counted: what a MERGE needs; and once more after it: what stays.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from figures import Required, show

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig, TableId
from lake_assets.tables.upkeep_policy import DEFAULT_POLICY
from lake_assets.upkeep.attend import attend

COLUMNS = 30
POLICY = replace(DEFAULT_POLICY, commits=20, snapshots=40)
LAYOUT = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "write.merge.distribution-mode": "hash",
    "write.spark.fanout.enabled": "true",
}
REQUIRED: Mapping[str, Required] = {
    "MB that stay, at the end against after a tenth": ("at most", 1.3),
    "MB in a MERGE, at the end against after a tenth: with upkeep": ("at most", 1.3),
}


@dataclass
class Arm:
    """A table, and what was measured: the seconds of its batches, the MB that a MERGE needs, and those that stay."""

    table: str
    version: int
    has_upkeep: bool = False
    seconds: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    live: list[float] = field(default_factory=list)


class Jvm:
    """What the JVM of a Spark session says about its memory."""

    def __init__(self, lake: Lake) -> None:
        # There is no public way to the JVM of a session.
        self.gateway: Any = lake.spark().sparkContext._gateway  # pyright: ignore[reportPrivateUsage]
        self.java: Any = self.gateway.jvm
        self.factory = self.java.java.lang.management.ManagementFactory

    def live(self) -> float:
        """Collect the heap; return what is left, in MB."""
        self.java.java.lang.System.gc()
        return self.factory.getMemoryMXBean().getHeapMemoryUsage().getUsed() / 2**20

    def most_during(self, call: Callable[[], None]) -> float:
        """Collect the heap again and again during a call; return the most that was left, in MB."""
        most, is_over = [0.0], threading.Event()

        def collect() -> None:
            while not is_over.is_set():
                most.append(self.live())

        with ThreadPoolExecutor(1) as pool:
            sampled = pool.submit(collect)
            try:
                call()
            finally:
                is_over.set()
        sampled.result()
        return max(most)

    def histogram(self) -> Counter[str]:
        """Return the bytes of live objects by class; empty if Java comes without `jcmd`."""
        jcmd = Path(self.java.java.lang.System.getProperty("java.home")) / "bin" / "jcmd"
        if not jcmd.exists():
            return Counter()
        pid = str(self.java.java.lang.ProcessHandle.current().pid())
        text = subprocess.run([jcmd, pid, "GC.class_histogram"], check=True, capture_output=True, text=True).stdout
        found = Counter[str]()
        for fields in map(str.split, text.splitlines()):
            if len(fields) >= 4 and fields[0].rstrip(":").isdigit():
                found[fields[3]] += int(fields[2])
        return found


def create(lake: Lake, arm: Arm, rows: int) -> None:
    """Create the table of an arm."""
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in {**LAYOUT, "format-version": arm.version}.items())
    lake.spark().sql(
        f"CREATE TABLE {lake.sql_name(arm.table)} USING iceberg PARTITIONED BY (bucket(4, id)) "
        f"TBLPROPERTIES ({properties}) AS {values(f'SELECT id FROM range({rows})', 0)}"
    )


def values(keys: str, batch: int) -> str:
    """Return a query that gives each key its other columns."""
    kinds = ("concat('value {n} of ', id, ' ', {batch}) AS c{n}", "hash(id, {n}, {batch}) AS c{n}")
    wide = ", ".join(kinds[n % 2].format(n=n, batch=batch) for n in range(COLUMNS))
    return f"SELECT id, {wide} FROM ({keys})"


def merge(lake: Lake, arm: Arm, batch: int, rows: int, keys: int) -> None:
    """Merge changes of so many keys from anywhere in the table: one in twenty of the rows is deleted."""
    some = f"SELECT DISTINCT pmod(hash(id, {batch}), {rows}) AS id FROM range({keys})"
    lake.spark().sql(
        f"MERGE INTO {lake.sql_name(arm.table)} t USING ({values(some, batch)}) s ON t.id = s.id "
        f"WHEN MATCHED AND pmod(hash(s.id, 'gone', {batch}), 20) = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def measured(lake: Lake, batches: int, rows: int, keys: int) -> dict[str, float | str]:
    """Return the figures."""
    arms = {
        "v3": Arm("final.v3", 3),
        "v2": Arm("final.v2", 2),
        "with upkeep": Arm("final.kept", 3, has_upkeep=True),
    }
    lake.ensure_namespace(("final",))
    jvm = Jvm(lake)
    for arm in arms.values():
        create(lake, arm, rows)
    histograms: list[Counter[str]] = []
    every = max(2, batches // 10)
    for batch in range(1, batches + 1):
        for name, arm in arms.items():
            began = time.perf_counter()
            if batch % every:
                merge(lake, arm, batch, rows, keys)
                arm.seconds.append(time.perf_counter() - began)
            else:
                arm.most.append(jvm.most_during(partial(merge, lake, arm, batch, rows, keys)))
                arm.live.append(jvm.live())
            if arm.has_upkeep:
                done = attend(lake, {TableId.parse(arm.table): POLICY}, is_forced=True)
                assert not [a.text for a in done if a.done and a.done.error]
            if batch % every == 0:
                said = f"{arm.seconds[-1]:.2f} s, {arm.most[-1]:.0f} MB in a MERGE, {arm.live[-1]:.0f} MB stay"
                print(f"{batch} {name}: {said}", file=sys.stderr, flush=True)
        if batch % every == 0 and batch // every in (1, 10):
            histograms.append(jvm.histogram())
    figures: dict[str, float | str] = {}
    for name, arm in arms.items():
        first, last = (statistics.median(s) for s in (arm.seconds[: every - 1], arm.seconds[1 - every :]))
        figures[f"seconds of a MERGE, first and last tenth: {name}"] = f"{first:.2f}, {last:.2f}"
        figures[f"MB in a MERGE, by tenth: {name}"] = ", ".join(f"{m:.0f}" for m in arm.most)
        figures[f"MB in a MERGE, at the end against after a tenth: {name}"] = arm.most[-1] / arm.most[0]
    live = arms["v3"].live
    figures["MB that stay, at the end against after a tenth"] = live[-1] / live[0]
    grown = (histograms[-1] - histograms[0]).most_common(8)
    figures["classes that have grown, MB"] = ", ".join(f"{c} {b / 2**20:.1f}" for c, b in grown)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="of each table; 20 or more")
    parser.add_argument("--rows", type=int, default=50_000, help="of each table at the start")
    parser.add_argument("--keys", type=int, default=2_000, help="that each batch changes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        lake = Lake(LakeConfig(home=Path(home), spark=SparkConfig(driver_memory="3g")))
        figures = measured(lake, args.batches, args.rows, args.keys)
        lake.spark().stop()
    return show(figures, REQUIRED)


if __name__ == "__main__":
    sys.exit(main())

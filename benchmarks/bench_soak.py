"""Micro-batches with upkeep beside them for a long time: seconds, memory and files, and what is left over.

    make bench-soak ARGS="--minutes 60"

Thirteen tables: a raw table of Debezium events and its ledger, five staging tables, five final tables (SCD1), and a
model that groups one of them. Every few seconds a file with a few changes of every source table lands, some of them
late or repeated, and the pipeline runs, in one process with one warm Spark. Meanwhile upkeep does whatever is due. A
second lake gets batches without upkeep: for a minute after every four of the first one, since the machine may be slower
at one time than at another. At the end every final table is compared with the generator's rows, and the model with its
query.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from figures import Required, show

from lake_assets import Lake, LakeConfig
from lake_assets.capture import icdc
from lake_assets.lake import SparkConfig, TableId
from lake_assets.tables import leftovers
from tests.support.soak import Soak

KINDS = {".parquet": "data", ".puffin": "deletes", ".avro": "manifests", ".json": "metadata", ".crc": "checksums"}
WITH, WITHOUT = 240.0, 60.0
REQUIRED: dict[str, Required] = {
    "95 % within: with upkeep against without": ("at most", 1.3),
    "median of the last tenth against the first": ("at most", 1.3),
    "leftovers at the end": ("at most", 0),
}


@dataclass
class Measured:
    """Measurements after a batch.

    Attributes:
        seconds: of the batch.
        actions: of upkeep, up to it.
        python_mb, jvm_mb: resident memory.
        files: of the lake, by kind.
    """

    seconds: float
    actions: int
    python_mb: float
    jvm_mb: float
    files: Counter[str] = field(default_factory=Counter)


def measured(soak: Soak, seconds: float) -> Measured:
    """Return the measurements after a batch of so many seconds."""
    home = soak.lake.config.home
    names = (n for root, _, names in os.walk(home) if "landing" not in root for n in names)
    files = Counter(KINDS.get(Path(n).suffix or n, "others") for n in names)
    return Measured(seconds, len(soak.attended), *memory(), files)


def memory() -> tuple[float, float]:
    """Return the resident memory (MB) of this process, and of the JVM that it started."""
    me, jvm = psutil.Process(), 0
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a helper of the JVM that has ended meanwhile
            jvm += child.memory_info().rss
    return me.memory_info().rss / 2**20, jvm / 2**20


def batches(soak: Soak, seconds: float, every: float) -> list[Measured]:
    """Absorb micro-batches for some time; one begins every so many seconds, or when the last one is over."""
    began, done = time.monotonic(), list[Measured]()
    while time.monotonic() - began < seconds:
        due = time.monotonic() + every
        soak.land()
        done.append(measured(soak, soak.run()))
        time.sleep(max(0.0, due - time.monotonic()))
    return done


def remaining(soak: Soak) -> int:
    """Count branches, ICDC tables and notes of steps, none of which a step leaves."""
    lake = soak.lake
    names = [t for layer in ("raw", "staging", "final", "agg") for t in lake.tables(layer)]
    branches = sum(name.startswith("lake_assets_") for t in names for name in lake.table(t).metadata.refs)
    notes = len(list((lake.config.home / "at-work").glob("*")))
    return branches + notes + len(list(lake.tables(icdc.NAMESPACE)))


def unnamed(lake: Lake, table: TableId) -> int:
    """Count the files in a table's folder that no snapshot names; metadata files are kept for a week."""
    loaded = lake.table(table)
    folder = Path(local(loaded.location()))
    files = {str(f) for f in folder.rglob("*") if f.is_file() and f.suffix not in (".crc", ".json")}
    return len(files - {local(f) for f in leftovers.named_files(loaded)})


def local(location: str) -> str:
    """Return the path of a location, which Java and Python write with one or three slashes."""
    return "/" + location.removeprefix("file:").lstrip("/")


def growth(done: list[Measured]) -> str:
    """Return a Markdown table with a line for each tenth of the time."""
    lines = [
        "| batches | seconds, median | 95 % | slowest | actions | Python, MB | JVM, MB | data | deletes | manifests "
        "| metadata | checksums |",
        "|---" * 12 + "|",
    ]
    size = max(1, len(done) // 10)
    for start in range(0, len(done), size):
        span = done[start : start + size]
        seconds, last = [m.seconds for m in span], span[-1]
        files = " | ".join(f"{last.files[k]:,}" for k in KINDS.values())
        lines.append(
            f"| {start + 1} to {start + len(span)} | {statistics.median(seconds):.2f} | {slow(span):.2f} "
            f"| {max(seconds):.2f} | {last.actions - span[0].actions} | {last.python_mb:.0f} "
            f"| {last.jvm_mb:.0f} | {files} |"
        )
    return "\n".join(lines)


def slow(done: list[Measured]) -> float:
    """Return the seconds within which 95 of 100 batches were absorbed."""
    return sorted(m.seconds for m in done)[int(len(done) * 0.95)]


def main() -> int:
    """Run the benchmark; exit code 1 if a required figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="with upkeep; a quarter of it without is added")
    parser.add_argument("--every", type=float, default=3, help="seconds from one micro-batch to the next")
    parser.add_argument("--home", type=Path, help="folder of the lakes, which are kept; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-soak-") as temp:
        home, spark = args.home or Path(temp), SparkConfig(driver_memory="4g")
        lake = Lake(LakeConfig(home=home / "kept", spark=spark))
        kept = Soak(lake)
        left = Soak(Lake(LakeConfig(home=home / "left", spark=spark), session=lake.spark().newSession), upkeep=False)
        for soak in (kept, left):
            soak.land(1_000)
            soak.run()
            batches(soak, 20, 0)  # until Spark is warm
        with_upkeep: list[Measured] = []
        without: list[Measured] = []
        until = time.monotonic() + args.minutes * 60 * (1 + WITHOUT / WITH)
        while time.monotonic() < until:
            with kept.upkeep():
                with_upkeep += batches(kept, min(WITH, args.minutes * 60), args.every)
                kept.assert_idle()
            without += batches(left, WITHOUT, args.every)
            print(growth(with_upkeep), file=sys.stderr, flush=True)
        kept.check()
        left.check()
        part = max(1, len(with_upkeep) // 10)
        first, last = (statistics.median(m.seconds for m in s) for s in (with_upkeep[:part], with_upkeep[-part:]))
        figures: dict[str, float | str] = {
            "micro-batches with upkeep, without": f"{len(with_upkeep)}, {len(without)}",
            "seconds of a batch, median: with, without": ", ".join(
                f"{statistics.median(m.seconds for m in done):.2f}" for done in (with_upkeep, without)
            ),
            "seconds within which 95 % were absorbed: with, without": f"{slow(with_upkeep):.2f}, {slow(without):.2f}",
            "95 % within: with upkeep against without": slow(with_upkeep) / slow(without),
            "median of the last tenth against the first": last / first,
            "actions of upkeep": len([a for a in kept.attended if a.done]),
            "files a batch without upkeep": files_a_batch(without),
            "leftovers at the end": remaining(kept),
            "files that nothing names at the end": sum(unnamed(lake, t) for t in kept.health()),
        }
        lake.spark().stop()
    missed = show(figures, REQUIRED)
    print("\n" + growth(with_upkeep) + "\n\nWithout upkeep:\n\n" + growth(without))
    return missed


def files_a_batch(done: list[Measured]) -> float:
    """Return the mean number of files by which the lake grows per batch."""
    return (done[-1].files.total() - done[0].files.total()) / max(1, len(done) - 1)


if __name__ == "__main__":
    sys.exit(main())

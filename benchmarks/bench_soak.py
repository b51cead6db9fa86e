"""Effects of many micro-batches of one pipeline: seconds, memory, files and leftovers per batch.

    make bench-soak ARGS="--batches 1000 --upkeep 100"

Ten tables: a raw table of Debezium events, four staging tables, four final tables (SCD1) and a model that groups one
of them. Each batch lands one file with a few changes of every source table, some of them late or repeated,
and runs the pipeline once, in one process with one warm Spark. After every `--upkeep` batches Spark's own procedures
compact the tables and expire their snapshots, as an operator would by schedule; that is timed separately. At the end
every final table is compared with the generator's rows, and the model with its query.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from figures import Required, show
from pyiceberg.table import Table

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.capture import icdc
from lake_assets.examples.event_generator import Source, Transaction, Workload, delivered
from lake_assets.examples.stream_writers import encoder
from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake import SparkConfig, TableId
from lake_assets.pipeline import ModelSpec
from lake_assets.pipeline.config.pipeline_config import PipelineConfig
from lake_assets.pipeline.verification import verify
from lake_assets.tables import leftovers
from tests.support.generated_rows import replay

SOURCES = ("a", "b", "c", "d")
# About this many changes of each source table per batch.
CHANGES = 5
CONFIG: dict[str, Any] = {
    "name": "soak",
    "streams": [
        {
            "name": "events",
            "format": "debezium",
            "landing": "landing/events",
            "tables": [{"table": f"public.{s}"} for s in SOURCES],
        }
    ],
    "models": [
        {
            "name": "agg.totals",
            "sql": "SELECT name, count(*) AS n, sum(amount) AS amount, sum(quantity) AS quantity FROM final.a "
            "GROUP BY name",
        }
    ],
}
# Columns compared with the generator's rows.
COMPARED = ("id", "name", "quantity", "amount", "born", "active", "note")
KINDS = {".parquet": "data", ".puffin": "deletes", ".avro": "manifests", ".json": "metadata", ".crc": "checksums"}
SPAN = 50
LAST_AGAINST_FIRST: Required = ("at most", 1.5)


@dataclass
class Measured:
    """Measurements after a batch."""

    seconds: float
    upkeep: float = 0.0
    python_mb: float = 0.0
    jvm_mb: float = 0.0
    files: Counter[str] = field(default_factory=Counter)
    leftovers: int = 0


class Soak:
    """The pipeline, and its endless sources."""

    def __init__(self, home: Path, batches: int) -> None:
        self.lake = Lake(LakeConfig(home=home, spark=SparkConfig(driver_memory="4g")))
        self.pipeline = Pipeline(PipelineConfig.model_validate(CONFIG))
        self.landing = home / "landing" / "events"
        self.landing.mkdir(parents=True)
        events = batches * CHANGES + 10_000  # more than needed
        self.workloads = [
            Workload(seed=i, events=events, keys=500, late=0.05, duplicates=0.05, table=("public", s))
            for i, s in enumerate(SOURCES)
        ]
        self.sources = [Source(w) for w in self.workloads]
        self.streams = [delivered(w, s) for w, s in zip(self.workloads, self.sources, strict=True)]
        self.arrived: list[list[Transaction]] = [[] for _ in SOURCES]
        self.encode = encoder("debezium")
        self.landed = 0

    def land(self) -> None:
        """Put the next file into the landing folder."""
        lines: list[str] = []
        for workload, stream, arrived in zip(self.workloads, self.streams, self.arrived, strict=True):
            count = 0
            for transaction in stream:
                arrived.append(transaction)
                lines.extend(self.encode(transaction, workload))
                count += len(transaction.changes)
                if count >= CHANGES:
                    break
        self.landed += 1
        name = self.landing / f"{self.landed:06}.jsonl"
        temporary = name.with_suffix(".partial")
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.rename(name)

    def run(self) -> float:
        """Absorb the pending changes; return the seconds."""
        began = time.perf_counter()
        outcomes = self.pipeline.run(self.lake)
        took = time.perf_counter() - began
        failed = [o for o in outcomes if o.status == "failed"]
        assert not failed, failed
        return took

    def tables(self) -> list[TableId]:
        """Return all tables of the pipeline, including the ledger of landed files."""
        return [t for layer in ("raw", "staging", "final", "agg") for t in self.lake.tables(layer)]

    def upkeep(self) -> float:
        """Compact every table and expire its snapshots; return the seconds."""
        began = time.perf_counter()
        spark, catalog = self.lake.spark(), self.lake.config.name
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        for table in self.tables():
            for call in (
                f"rewrite_data_files(table => '{table}', options => map('delete-file-threshold', '1', "
                "'min-input-files', '4', 'remove-dangling-deletes', 'true'))",
                f"rewrite_manifests(table => '{table}')",
                f"expire_snapshots(table => '{table}', older_than => TIMESTAMP '{now}', retain_last => 5)",
            ):
                spark.sql(f"CALL `{catalog}`.system.{call}").collect()
        return time.perf_counter() - began

    def measure(self, seconds: float, upkeep: float) -> Measured:
        """Measure memory, files and leftovers after a batch."""
        home = self.lake.config.home
        files = Counter(kind(Path(f)) for root, _, names in os.walk(home) for f in names if "landing" not in root)
        tables = [self.lake.table(t) for t in self.tables()]
        branches = sum(name.startswith("lake_assets_") for t in tables for name in t.metadata.refs)
        notes = len(list((home / "at-work").glob("*"))) if (home / "at-work").is_dir() else 0
        remaining = branches + notes + len(self.icdc_tables())
        return Measured(seconds, upkeep, *memory(), files, remaining)

    def icdc_tables(self) -> list[TableId]:
        """Return the ICDC tables that are still in the catalog."""
        return list(self.lake.tables(icdc.NAMESPACE))

    def unreferenced(self) -> int:
        """Count the files of tables that no snapshot or metadata file names."""
        return sum(len(unnamed(self.lake.table(t))) for t in self.tables())

    def check(self) -> None:
        """Check every table against its sources, and the final tables against the generator."""
        for spec in self.pipeline.specs(self.lake):
            if isinstance(spec, FinalSpec | ModelSpec):
                verification = verify(self.lake, spec)
                assert verification.equal, verification
        for source, arrived in zip(SOURCES, self.arrived, strict=True):
            rows = self.lake.spark().table(self.lake.sql_name(TableId(("final",), source))).select(*COMPARED).collect()
            expected = {tuple(row[c] for c in COMPARED) for row in replay(arrived).values()}
            assert {tuple(row) for row in rows} == expected, source
            assert len(rows) == len(expected), source


def kind(file: Path) -> str:
    """Return the kind of a file by its name."""
    suffix = file.suffix or file.name
    return {
        ".avro": "manifests",
        ".json": "metadata",
        ".parquet": "data",
        ".puffin": "deletes",
        ".crc": "checksums",
    }.get(suffix, "others")


def unnamed(table: Table) -> set[str]:
    """Return files in a table's folder that nothing names, except metadata files, which are kept for a week."""
    folder = Path(local(table.location()))
    files = {str(f) for f in folder.rglob("*") if f.is_file() and f.suffix not in (".crc", ".json")}
    return files - {local(f) for f in leftovers.named_files(table)}


def local(location: str) -> str:
    """Return the path of a location, which Java and Python write with one or three slashes."""
    return re.sub("^file:/+", "/", location)


def memory() -> tuple[float, float]:
    """Return the resident memory (MB) of this process, and of the JVM that it started."""
    me, jvm = psutil.Process(), 0
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a helper of the JVM that has ended meanwhile
            jvm += child.memory_info().rss
    return me.memory_info().rss / 2**20, jvm / 2**20


def growth(measured: list[Measured], upkeep: int) -> str:
    """Return a Markdown table with one line per span of batches."""
    lines = [
        "| batches | seconds, median | slowest | upkeep, seconds | Python, MB | JVM, MB | data | deletes | manifests "
        "| metadata | checksums | others | leftovers |",
        "|---" * 13 + "|",
    ]
    for start in range(0, len(measured), SPAN):
        span = measured[start : start + SPAN]
        seconds, last = [m.seconds for m in span], span[-1]
        kinds = " | ".join(
            f"{last.files[k]:,}" for k in ("data", "deletes", "manifests", "metadata", "checksums", "others")
        )
        lines.append(
            f"| {start + 1} to {start + len(span)} | {statistics.median(seconds):.2f} | {max(seconds):.2f} "
            f"| {sum(m.upkeep for m in span):.0f} | {last.python_mb:.0f} | {last.jvm_mb:.0f} | {kinds} "
            f"| {max(m.leftovers for m in span)} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the benchmark; exit code 1 if a required figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--upkeep", type=int, default=50, help="compact and expire after this many batches; 0: never")
    parser.add_argument("--home", type=Path, help="folder of the lake, which is kept; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-soak-") as temp:
        soak = Soak(args.home or Path(temp) / "lake", args.batches)
        measured: list[Measured] = []
        for number in itertools.islice(itertools.count(1), args.batches):
            soak.land()
            seconds = soak.run()
            upkeep = soak.upkeep() if args.upkeep and number % args.upkeep == 0 else 0.0
            measured.append(soak.measure(seconds, upkeep))
            if number % 10 == 0:
                print(f"batch {number}: {seconds:.2f} s, {measured[-1]}", file=sys.stderr, flush=True)
        soak.check()
        unreferenced = soak.unreferenced()
        soak.lake.spark().stop()
    warm = measured[min(10, len(measured) // 2) :]
    part = max(1, len(warm) // 10)
    first, last = (statistics.median(m.seconds for m in span) for span in (warm[:part], warm[-part:]))
    figures: dict[str, float | str] = {
        "seconds a batch, median of the first tenth": first,
        "of the last tenth": last,
        "last against first": last / first,
        "files a batch, before upkeep": files_a_batch(measured, args.upkeep),
        "leftovers at the end": measured[-1].leftovers,
        "files that nothing names at the end": unreferenced,
    }
    missed = show(figures, {"last against first": LAST_AGAINST_FIRST, "leftovers at the end": ("at most", 0),
                            "files that nothing names at the end": ("at most", 0)})  # fmt: skip
    print("\n" + growth(measured, args.upkeep))
    return missed


def files_a_batch(measured: list[Measured], upkeep: int) -> float:
    """Return the mean number of files by which the lake grows per batch."""
    until = min(len(measured), upkeep or len(measured)) - 1
    if until < 1:
        return math.nan
    return (measured[until - 1].files.total() - measured[0].files.total()) / max(1, until - 1)


if __name__ == "__main__":
    sys.exit(main())

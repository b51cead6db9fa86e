"""Upkeep at sizes that take years: thousands of micro-batches, and a table of very many small files.

    make bench-upkeep_scale ARGS="--batches 10000 --files 100000"

*Micro-batches*: each lands a file in raw; staging and final follow every twentieth time, and then what is due is done,
as `lake-assets run` does it. Each tenth shows the size of the tables' metadata files and of the catalog, and how long a
look at all tables takes, which the sensor does on each tick.

*Small files*: a table to which many files of ten rows were added is looked after until nothing is due.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from bench_small_steps import CHANGES, FIRST, Stream
from figures import Required, cpu_seconds, show

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig, TableId
from lake_assets.tables.upkeep_policy import DEFAULT_POLICY
from lake_assets.upkeep.attend import attend, attend_after_run, look
from lake_assets.upkeep.upkept_tables import policies

FOLLOW = 20
ROWS = 10
# Files are added in commits of so many.
ADDED = 1_000
REQUIRED: Mapping[str, Required] = {
    "metadata files: last tenth against second": ("at most", 1.2),
    "catalog: last tenth against second": ("at most", 1.2),
    "a tick: last tenth against second": ("at most", 1.2),
    "small files: files that remain": ("at most", 0.08),
}


@dataclass(frozen=True)
class Size:
    """What there is after a tenth of the micro-batches.

    Attributes:
        metadata: bytes of the tables' current metadata files.
        versions: metadata files on disk, of all tables.
        catalog: bytes of the catalog.
        tick: median seconds of a look at all tables.
    """

    metadata: int
    versions: int
    catalog: int
    tick: float


def size_of(lake: Lake, stream: Stream) -> Size:
    """Return the sizes now."""
    ticks: list[float] = []
    for _ in range(9):
        began = time.perf_counter()
        stream.pipeline.pending(lake)
        ticks.append(time.perf_counter() - began)
    tables = [lake.table(t) for t in policies(stream.pipeline, lake)]
    files = [Path("/" + t.metadata_location.removeprefix("file:").lstrip("/")) for t in tables]
    return Size(
        metadata=sum(f.stat().st_size for f in files),
        versions=sum(len(list(f.parent.glob("*.metadata.json"))) for f in files),
        catalog=sum(f.stat().st_size for f in lake.config.home.glob("*.db*")),
        tick=statistics.median(ticks),
    )


def of_batches(lake: Lake, batches: int) -> dict[str, float | str]:
    """Return figures of many micro-batches."""
    streams = [{"name": "many", "tables": ["public.t0"]}]
    stream = Stream(lake, "many", 1, streams=streams)
    stream.land(FIRST)
    stream.run()
    sizes, upkeep, began = list[Size](), 0.0, cpu_seconds()
    for n in range(1, batches + 1):
        stream.land(CHANGES)
        tables = None if n % FOLLOW == 0 else ["raw.many"]
        outcomes = stream.pipeline.run(lake, tables)
        assert not [o for o in outcomes if o.status == "failed"], outcomes
        if n % FOLLOW == 0:
            cpu = cpu_seconds()
            attended = attend_after_run(lake, stream.pipeline)
            assert not [a.text for a in attended if a.done and a.done.error]
            upkeep += cpu_seconds() - cpu
        if n % (batches // 10) == 0:
            sizes.append(size_of(lake, stream))
            print(f"{n} micro-batches: {sizes[-1]}", file=sys.stderr, flush=True)
    second, last = sizes[1], sizes[-1]
    return {
        "metadata files: MB, by tenth": ", ".join(f"{s.metadata / 1e6:.2f}" for s in sizes),
        "metadata files: last tenth against second": last.metadata / second.metadata,
        "metadata files: versions, by tenth": ", ".join(f"{s.versions:,}" for s in sizes),
        "catalog: MB, by tenth": ", ".join(f"{s.catalog / 1e6:.2f}" for s in sizes),
        "catalog: last tenth against second": last.catalog / second.catalog,
        "a tick: ms, by tenth": ", ".join(f"{s.tick * 1e3:.0f}" for s in sizes),
        "a tick: last tenth against second": last.tick / second.tick,
        "micro-batches: share of upkeep in the CPU": upkeep / (cpu_seconds() - began),
    }


def of_files(lake: Lake, files: int) -> dict[str, float | str]:
    """Return figures of a table of so many small files."""
    name, folder = TableId.parse("final.many_files"), lake.config.home / "added"
    folder.mkdir()
    lake.ensure_namespace(name.namespace)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    table = lake.catalog.create_table(name.parts, schema)
    for first in range(0, files, ADDED):
        some = range(first, min(first + ADDED, files))
        paths = [str(folder / f"{n:07}.parquet") for n in some]
        for n, path in zip(some, paths, strict=True):
            ids = range(n * ROWS, (n + 1) * ROWS)
            pq.write_table(pa.table({"id": ids, "name": [f"the name of {i}" for i in ids]}, schema=schema), path)
        table.add_files(paths, check_duplicate_files=False)
    before = look(lake, name, DEFAULT_POLICY).health
    began, cpu = time.perf_counter(), cpu_seconds()
    # Each call does what is due as long as its actions gain something.
    attended = attend(lake, {name: DEFAULT_POLICY}, is_forced=True)
    assert not [a.text for a in attended if a.done and a.done.error]
    done = [a.done for a in attended if a.done]
    pieces = sum(d.kind == "combine" for d in done)
    after = look(lake, name, DEFAULT_POLICY).health
    assert after.rows == files * ROWS
    return {
        "small files: before, after": f"{before.files:,}, {after.files:,}",
        "small files: files that remain": after.files / before.files,
        "small files: seconds, CPU seconds": f"{time.perf_counter() - began:.0f}, {cpu_seconds() - cpu:.0f}",
        "small files: pieces, seconds of the longest": f"{pieces}, {max(d.seconds for d in done):.1f}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1_000, help="micro-batches")
    parser.add_argument("--files", type=int, default=10_000, help="small files")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        lake = Lake(LakeConfig(home=Path(home), spark=SparkConfig(driver_memory="3g")))
        figures = of_files(lake, args.files) | of_batches(lake, args.batches)
        lake.spark().stop()
    return show(figures, REQUIRED)


if __name__ == "__main__":
    sys.exit(main())

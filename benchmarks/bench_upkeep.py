"""Upkeep after many micro-batches: what it costs, and how tables are with it and without it.

    make bench-upkeep ARGS="--batches 1000"

Two streams of the same events get the same micro-batches in turns; the tables of one are looked after whenever that is
due, as `lake-assets run` does, those of the other never. At the end, both final tables are read, with a copy of them
that was just written, and a batch is absorbed into both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench_small_steps import CHANGES, FIRST, MODELS, Stream
from figures import Required, cpu_seconds, show

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig
from lake_assets.upkeep.attend import attend_after_run, look
from lake_assets.upkeep.upkept_tables import policies


class Kept(Stream):
    """A stream of one table with a model, and what upkeep of its tables has taken."""

    def __init__(self, lake: Lake, name: str, *, has_upkeep: bool) -> None:
        models = [{"name": f"agg.{name}", "sql": MODELS["keys"].replace("t0", f"{name}_t0")}]
        streams = [{"name": name, "prefix": f"{name}_", "tables": ["public.t0"]}]
        super().__init__(lake, name, 1, upkeep=has_upkeep, streams=streams, models=models)
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.upkeep_cpu = 0.0

    def absorb(self) -> None:
        """Absorb one micro-batch, and do what is due."""
        self.land(CHANGES)
        began, cpu = time.perf_counter(), cpu_seconds()
        outcomes = self.pipeline.run(self.lake)
        assert not [o for o in outcomes if o.status == "failed"], outcomes
        self.seconds.append(time.perf_counter() - began)
        self.cpu.append(cpu_seconds() - cpu)
        cpu = cpu_seconds()
        attended = attend_after_run(self.lake, self.pipeline)
        assert not [a for a in attended if a.done and a.done.error], attended
        self.upkeep_cpu += cpu_seconds() - cpu

    def health(self) -> Mapping[str, int]:
        """Return sums over the tables: files, deletes, snapshots, and the size of their metadata files."""
        found = [look(self.lake, t, p).health for t, p in policies(self.pipeline, self.lake).items()]
        return {
            "data files": sum(h.files for h in found),
            "delete files": sum(h.delete_files for h in found),
            "snapshots": sum(h.snapshots for h in found),
            "bytes of metadata files": sum(h.metadata_bytes for h in found),
        }


def read_seconds(lake: Lake, table: str, repeat: int = 9) -> float:
    """Return the median seconds of a query that reads all columns of a table."""
    spark, seconds = lake.spark(), list[float]()
    for _ in range(repeat):
        began = time.perf_counter()
        spark.sql(f"SELECT sum(hash(*)) FROM {lake.sql_name(table)}").collect()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def measured(lake: Lake, batches: int) -> dict[str, float | str]:
    """Return the figures."""
    streams = {"with": Kept(lake, "kept", has_upkeep=True), "without": Kept(lake, "left", has_upkeep=False)}
    for stream in streams.values():
        stream.land(FIRST)
        stream.run()
    for n in range(batches):
        for stream in streams.values():
            stream.absorb()
        if n % 50 == 49:
            print(f"{n + 1} batches", file=sys.stderr, flush=True)
    figures: dict[str, float | str] = {}
    last = max(5, batches // 10)
    for name, stream in streams.items():
        figures[f"{name} upkeep: seconds of a batch, first and last tenth"] = (
            f"{statistics.median(stream.seconds[:last]):.2f}, {statistics.median(stream.seconds[-last:]):.2f}"
        )
        figures |= {f"{name} upkeep: {what}": f"{count:,}" for what, count in stream.health().items()}
    kept, left = streams["with"], streams["without"]
    ratio = statistics.median(kept.cpu[-last:]) / statistics.median(left.cpu[-last:])
    figures["CPU seconds of a batch, last tenth: with against without"] = ratio
    figures["CPU of upkeep against CPU of batches"] = kept.upkeep_cpu / sum(kept.cpu)
    lake.spark().sql(f"CREATE TABLE {lake.sql_name('final.fresh')} USING iceberg AS SELECT * FROM final.kept_t0")
    fresh = read_seconds(lake, "final.fresh")
    figures["reading: with upkeep against a fresh table"] = read_seconds(lake, "final.kept_t0") / fresh
    figures["reading: without upkeep against a fresh table"] = read_seconds(lake, "final.left_t0") / fresh
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=300, help="micro-batches of each stream")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        lake = Lake(LakeConfig(home=Path(home), spark=SparkConfig(driver_memory="3g")))
        figures = measured(lake, args.batches)
        lake.spark().stop()
    required: Mapping[str, Required] = {
        "CPU of upkeep against CPU of batches": ("at most", 0.3),
        "reading: with upkeep against a fresh table": ("at most", 1.1),
    }
    return show(figures, required)


if __name__ == "__main__":
    sys.exit(main())

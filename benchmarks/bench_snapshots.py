"""Cost of dumps of a whole table: landing what differs between two dumps, compared in this process and by Spark.

    make bench-snapshots
    make bench-snapshots ARGS="--rows 2000000 --changed 0.001"

A table of eight columns is dumped as Parquet. The first dump lands whole; of the next ones, a share of rows differs.
Each dump after the first is landed in both ways, one after the other, and each way lands the same changes. "copied" is
what landing replaces: every row of the dump written to the lake once more, without comparing anything. Seconds are
those of the raw table's step: what follows costs what the same number of events costs in any other format.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import Required, cpu_seconds, show

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.lake import SparkConfig, thresholds
from lake_assets.pipeline import PipelineConfig

REQUIRED: dict[str, Required] = {"records per changed row": ("at most", 2.0)}
FILE_ROWS = 500_000


def table(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows of eight columns; `seed` decides their values."""
    random = np.random.default_rng(seed)
    n = len(ids)
    return pa.table(
        {
            "id": ids,
            "name": pa.array(np.char.add("customer ", random.integers(0, 10**9, n).astype(str))),
            "city": pa.array(np.char.add("city ", random.integers(0, 500, n).astype(str))),
            "amount": random.integers(0, 10**8, n) / 100,
            "visits": random.integers(0, 1000, n),
            "active": random.integers(0, 2, n).astype(bool),
            "born": pa.array(random.integers(-10_000, 12_000, n).astype("int32")).cast(pa.date32()),
            "seen": pa.array(random.integers(0, 1_700_000_000_000_000, n)).cast(pa.timestamp("us")),
        }
    )


class Dumps:
    """A table and its dumps: each differs from the one before in a share of the rows."""

    def __init__(self, lake: Lake, rows: int, changed: float) -> None:
        self.lake, self.rows = lake, table(np.arange(rows), 0)
        self.changed, self.count = max(1, int(rows * changed)), 0
        tables = [{"table": "public.t", "key": "id"}]
        streams = [{"name": "dumps", "format": "snapshot", "tables": tables}]
        self.pipeline = Pipeline(PipelineConfig.model_validate({"name": "bench", "streams": streams}))

    def write(self) -> None:
        """Write the next dump."""
        if self.count:
            begin = self.count * self.changed % (self.rows.num_rows - self.changed)
            part = table(np.arange(begin, begin + self.changed), self.count)
            end = self.rows.slice(begin + self.changed)
            self.rows = pa.concat_tables([self.rows.slice(0, begin), part, end]).combine_chunks()
        self.count += 1
        folder = self.lake.config.home / "landing" / "dumps" / f"{self.count:04}"
        folder.mkdir(parents=True)
        for start in range(0, self.rows.num_rows, FILE_ROWS):
            pq.write_table(self.rows.slice(start, FILE_ROWS), folder / f"part-{start:010}.parquet")
        (folder / "_SUCCESS").touch()

    def copied(self) -> float:
        """Seconds to write the current rows to a table of their own."""
        began = time.perf_counter()
        copy = self.lake.catalog.create_table(f"raw.copy_{self.count}", self.rows.schema)
        copy.append(self.rows)
        return time.perf_counter() - began

    def run(self) -> tuple[int, float, float]:
        """Run the step of the raw table; return the number of records, seconds and CPU seconds."""
        cpu = cpu_seconds()
        (raw,) = self.pipeline.run(self.lake, ["raw.dumps"])
        if raw.exception:
            raise raw.exception
        return raw.inserted, raw.seconds, cpu_seconds() - cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--changed", type=float, default=0.01, help="share of the rows that differ")
    args = parser.parse_args()
    figures: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = LakeConfig(home=Path(folder), spark=SparkConfig(master="local[2]", driver_memory="3g"))
        dumps = Dumps(Lake(config), args.rows, args.changed)
        dumps.lake.spark().range(1).count()
        dumps.write()
        _, figures["first dump, seconds"], figures["first dump, CPU seconds"] = dumps.run()
        figures["copied, seconds"] = dumps.copied()
        by_spark = {"DUMP_LOCAL_ROWS": 0}
        here = {"DUMP_LOCAL_ROWS": 10**9, "DUMP_LOCAL_BYTES": 2**40}
        # The first comparison of each way warms it up.
        for turn in range(2):
            for name, values in (("by Spark", by_spark), ("in this process", here)):
                dumps.write()
                with contextlib.ExitStack() as stack:
                    for threshold, value in values.items():
                        stack.enter_context(mock.patch.object(thresholds, threshold, value))
                    records, seconds, cpu = dumps.run()
                if turn:
                    figures[f"next dump, compared {name}, seconds"] = seconds
                    figures[f"next dump, compared {name}, CPU seconds"] = cpu
                    figures["records per changed row"] = records / dumps.changed
    print(f"{args.rows:,} rows, {dumps.changed:,} of which differ in each dump\n")
    return int(show(figures, REQUIRED))


if __name__ == "__main__":
    sys.exit(main())

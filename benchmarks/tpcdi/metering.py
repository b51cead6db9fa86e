"""What was read between two moments, and what a commit wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lake_assets import Lake


@dataclass(frozen=True)
class Volume:
    """Rows and bytes."""

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Volume) -> Volume:
        return Volume(self.rows + other.rows, self.bytes + other.bytes)

    def __str__(self) -> str:
        return f"{self.rows:,} / {self.bytes / 1e6:,.1f}"


class Meter:
    """Counts what has been read since the last look.

    Rows are those of Spark's tasks, from the metrics of its stages; rows that Spark cached and read again count too.
    Bytes are those that this process and Spark's have read from files: data, metadata and shuffles. Spark's own metrics
    of bytes lack vectored reads, which is most of a Parquet file. Only Linux counts bytes; elsewhere they are 0.
    """

    def __init__(self, spark: SparkSession) -> None:
        java: Any = spark.sparkContext._jsc
        self._context = java.sc()
        pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        self._processes = [psutil.Process(), psutil.Process(pid)]
        self._next, self._bytes = self._next_stage(), self._bytes_read()

    def _bytes_read(self) -> int:
        counted = (p for p in self._processes if hasattr(p, "io_counters"))
        return sum(int(getattr(p.io_counters(), "read_chars", 0)) for p in counted)

    def _next_stage(self) -> int:
        return int(self._context.dagScheduler().nextStageId())

    def read(self) -> Volume:
        """Return what was read since the last look."""
        # Metrics reach the store through a queue.
        self._context.listenerBus().waitUntilEmpty()
        first, self._next = self._next, self._next_stage()
        before, self._bytes = self._bytes, self._bytes_read()
        rows = 0
        for stage in range(first, self._next):
            try:
                data = self._context.statusStore().lastStageAttempt(stage)
            except Py4JJavaError:  # never submitted
                continue
            rows += int(data.inputRecords())
        return Volume(rows, self._bytes - before)


def written(lake: Lake, table: str, since: int | None) -> Volume:
    """Return the rows and bytes of the files that the commits of a table added after a snapshot.

    Deletes are included: their positions count as rows.
    """
    found = Volume()
    loaded = lake.table(table)
    at = loaded.current_snapshot()
    while at is not None and at.snapshot_id != since:
        summary = dict(at.summary.additional_properties) if at.summary else {}
        rows = int(summary.get("added-records", 0)) + int(summary.get("added-position-deletes", 0))
        found += Volume(rows, int(summary.get("added-files-size", 0)))
        at = loaded.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
    return found

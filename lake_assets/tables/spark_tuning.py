"""Settings for steps with little data.

Spark compiles a Java class for every stage of every query before it reads a row. For a micro-batch, compiling takes
most of the time; interpreted, a step takes half to a third as long. Measured in docs/decisions/0005-small-steps.md.

Adaptive execution also runs each part of a query as a separate job, and plans the rest again after it. That has no use
if the joined and grouped data is known to be small, and neither has a shuffle into more than one partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping
from contextvars import ContextVar
from types import MappingProxyType

from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from lake_assets.capture import Capture
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.spark_session import set_all

_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
_ONCE = {
    "spark.sql.adaptive.enabled": "false",
    # Infers conditions of one join side from the other; the conditions that matter are written out already.
    "spark.sql.constraintPropagation.enabled": "false",
}
_AS_ONE = {"spark.sql.shuffle.partitions": "1"}
_SMALL = _INTERPRETED | _ONCE | _AS_ONE
# What the settings were before the outermost `tuned_for`, by name.
_before: ContextVar[Mapping[str, str | None]] = ContextVar("before", default=MappingProxyType({}))


@contextlib.contextmanager
def tuned_for(
    lake: LakeBase, read: Iterable[TableId], captured: Capture | None = None, of_it: int | None = None
) -> Generator[None]:
    """Interpret queries in the body, in one piece, if the total size of their input is small; else compile them.

    Settings in the lake's own configuration win.

    Args:
        lake: its Spark session is configured, and restored afterwards.
        read: the tables that are read as a whole, or to an unknown extent.
        captured: the capture that is read as well.
        of_it: the number of captured rows that the queries use; None: all.
    """
    own = lake.config.spark.conf
    sizes = [size_of(table) for t in read if not own.keys() >= _SMALL.keys() and (table := lake.find(t))]
    if captured is not None:
        sizes.append(_captured(captured, of_it))
    # Within a body over little data, a larger one gets back what it had before.
    settings: Mapping[str, str | None] = _SMALL if _is_small(sizes) else {**_before.get(), **_COMPILED}
    with _set(lake, {k: v for k, v in settings.items() if k not in own}) as before:
        token = _before.set({**before, **_before.get()})
        try:
            yield
        finally:
            _before.reset(token)


@contextlib.contextmanager
def planned_once(lake: LakeBase, *, when: bool = True, as_one: bool = False) -> Generator[None]:
    """Turn adaptive execution off in the body: for queries that shuffle and broadcast little, however much they read.

    Settings in the lake's own configuration win.

    Args:
        lake: its Spark session is configured, and restored afterwards.
        when: whether the queries are of this kind; else nothing is set.
        as_one: whether shuffles have one partition, so that writes create one file. Not for large inputs: Iceberg then
            splits its input into no more tasks than there are cores.
    """
    settings = _ONCE | (_AS_ONE if as_one else {})
    with _set(lake, {k: v for k, v in settings.items() if when and k not in lake.config.spark.conf}):
        yield


@contextlib.contextmanager
def _set(lake: LakeBase, settings: Mapping[str, str | None]) -> Generator[dict[str, str | None]]:
    """Apply settings to the session within the body, and yield their former values; None: not set."""
    spark = lake.spark()
    before: dict[str, str | None] = {key: spark.conf.get(key, None) for key in settings}
    # Each setting is a message to the server, so values that are already set are not sent again.
    changed = {key: value for key, value in settings.items() if before[key] != value}
    _apply(spark, changed)
    try:
        yield before
    finally:
        _apply(spark, {key: before[key] for key in changed})


def _apply(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    set_all(spark, {key: value for key, value in settings.items() if value is not None})
    for key, value in settings.items():
        if value is None:
            spark.conf.unset(key)


def _is_small(sizes: Iterable[tuple[int, int]]) -> bool:
    # Rows are checked as well: similar records compress to a hundredth of their size.
    size, rows = sum(b for b, _ in sizes), sum(n for _, n in sizes)
    return size <= thresholds.SMALL_INPUT_BYTES and rows <= thresholds.SMALL_INPUT_ROWS


def _captured(captured: Capture, of_it: int | None) -> tuple[int, int]:
    """Return bytes and rows of a capture, or of the used share of it.

    Rows of one kind are stored together, so other rows are mostly skipped, unless the capture is very large.
    """
    size, rows = sum(f.bytes for f in captured.files), sum(f.records for f in captured.files)
    largest = thresholds.SHARED_INPUT_FACTOR * thresholds.SMALL_INPUT_BYTES
    most = thresholds.SHARED_INPUT_FACTOR * thresholds.SMALL_INPUT_ROWS
    if of_it is None or of_it >= rows or size > largest or rows > most:
        return size, rows
    return size * of_it // rows, of_it


def in_one_piece(rows: DataFrame, captured: Capture, of_it: int | None = None) -> DataFrame:
    """Return the rows of a small capture as one partition: grouping needs no shuffle, and writes create one file.

    `of_it`: see `tuned_for`.
    """
    return rows.coalesce(1) if is_small(captured, of_it) else rows


def is_small(captured: Capture, of_it: int | None = None) -> bool:
    """Whether the used part of a capture is small; `of_it`: see `tuned_for`."""
    return _is_small([_captured(captured, of_it)])


def size_of(table: Table) -> tuple[int, int]:
    """Return bytes and rows of a table's current data files, from its snapshot summary."""
    current = table.current_snapshot()
    summary = current.summary.additional_properties if current and current.summary else {}
    return int(summary.get("total-files-size") or 0), int(summary.get("total-records") or 0)

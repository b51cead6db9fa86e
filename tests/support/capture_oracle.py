"""Properties of every capture: the feed applied to the table at start gives the table at end, as multisets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from lake_assets import Lake
from lake_assets.capture import Capture
from lake_assets.capture.rows import changed_rows
from lake_assets.errors import Refused

_contents: dict[Any, Counter[Any]] = {}


def canonical(value: Any) -> Any:
    """Return a form of `value` with exact equality: NaN equals itself, -0.0 differs from 0.0, maps have no order."""
    if isinstance(value, float):
        return ("f", "nan" if math.isnan(value) else repr(value))
    if isinstance(value, Row | tuple | list):
        return tuple(canonical(v) for v in value)
    if isinstance(value, dict):
        return frozenset((canonical(k), canonical(v)) for k, v in value.items())
    if isinstance(value, bytearray):
        return bytes(value)
    return value


def bag(rows: Iterable[Iterable[Any]]) -> Counter[Any]:
    return Counter(canonical(tuple(r)) for r in rows)


def content(lake: Lake, table: str, snapshot: int | None, columns: list[str]) -> Counter[Any]:
    """Return the rows of a snapshot in the end's columns; what was read is kept, as a snapshot never changes."""
    if snapshot is None:
        return Counter()
    metadata = lake.table(table).metadata
    key = (metadata.table_uuid, snapshot, metadata.current_schema_id, tuple(columns))
    if key not in _contents:
        frame = lake.spark().read.option("versionAsOf", snapshot).table(lake.sql_name(table))
        _contents[key] = bag(frame.select(*[f"`{c}`" for c in columns]).collect())
    return _contents[key]


def upserts_of(capture: Capture, spark: SparkSession) -> Counter[Any]:
    """Return the upserts of a capture; both ways to read few rows give the same."""
    upserts = bag(capture.upserts(spark).collect())
    if not isinstance(capture.few_rows(), Refused) and capture.granularity == "net":
        assert bag(capture._read(spark, changed_rows.upserts).collect()) == upserts
    return upserts


def assert_upserts(capture: Capture, upserts: Counter[Any], added: Counter[Any], unchanged: Counter[Any]) -> None:
    """Check upserts: inserts and after-images; with row lineage also rows updated to equal values."""
    assert not added - upserts
    has_lineage = all(part.has_lineage for part in capture._parts)
    assert not (upserts - added) - (unchanged if has_lineage else Counter())


def changes(frame: DataFrame) -> tuple[Counter[Any], Counter[Any]]:
    """Return the rows that a feed removes and adds."""
    rows: dict[str, list[Any]] = {"insert": [], "delete": [], "update_before": [], "update_after": []}
    for row in frame.collect():
        values = row.asDict()
        rows[values.pop("_change_type")].append(tuple(values.values()))
    assert not bag(rows["insert"]) & bag(rows["delete"]), "rows that did not change come out as changes"
    assert len(rows["update_before"]) == len(rows["update_after"])
    return bag(rows["delete"] + rows["update_before"]), bag(rows["insert"] + rows["update_after"])


def assert_exact(lake: Lake, table: str, start: int | None, end: int | None = None) -> Capture:
    """Check all guarantees of the capture of a window; return the (closed) capture."""
    spark = lake.spark()
    with lake.capture(table, start, end) as capture:
        columns = capture.columns
        before = content(lake, table, start, columns)
        after = content(lake, table, capture.window.end_snapshot_id, columns)
        away, added = changes(capture.feed(spark))
        assert not away - before, "rows were taken away that are not there"
        assert before - away + added == after
        assert_upserts(capture, upserts_of(capture, spark), added, before & after)
        keys = set(bag(capture.keys(spark, columns[:1]).collect()))
        assert keys >= {r[:1] for r in (away | added)}
        assert keys <= {r[:1] for r in (away | added | (before & after))}
        for column, low_high in capture.ranges.items():
            if "." not in column:
                at = columns.index(column)
                for row in away | added:
                    assert _covered(low_high, row[at]), f"{column}: {row[at]!r} is not in {low_high}"
    return capture


def _covered(low_high: Any, value: Any) -> bool:
    if isinstance(value, tuple) and value and value[0] == "f":
        value = math.nan if value[1] == "nan" else float(value[1])
    return low_high.covers(value)


def snapshots(lake: Lake, table: str) -> list[int]:
    """Return all snapshots, oldest first."""
    return [s.snapshot_id for s in lake.table(table).metadata.snapshots]


def fields(lake: Lake, table: str) -> list[dict[int, Any]]:
    """Return the rows of the current snapshot, with values by field id."""
    ids = [f.field_id for f in lake.table(table).schema().fields]
    return [dict(zip(ids, row, strict=True)) for row in lake.spark().table(lake.sql_name(table)).collect()]

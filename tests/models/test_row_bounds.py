"""Bounds of changed rows: rounded outwards, so that queries repeat, and not beyond the files of the rows."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from lake_assets import Lake
from lake_assets.capture import capture
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.models.operators.kept_frames import Bounds, Frames
from lake_assets.models.steps import model_sources
from lake_assets.tables.pending_windows import Window


@pytest.mark.parametrize(
    ("kind", "low", "high", "around"),
    [
        ("bigint", 46_875_003, 50_001_499, (46_858_240, 50_003_968)),
        ("bigint", 46_875_009, 50_002_999, (46_858_240, 50_003_968)),  # the next window: the same text
        ("bigint", 7, 40, (7, 40)),
        ("bigint", -100, 101, (-100, 104)),
        ("bigint", -(1 << 63), (1 << 63) - 1, (-(1 << 63), (1 << 63) - 1)),
        ("int", 5, (1 << 31) - 1, (0, (1 << 31) - 1)),
        ("tinyint", -128, 127, (-128, 127)),
    ],
)
def test_bounds_are_rounded_outwards(kind: str, low: int, high: int, around: tuple[int, int]) -> None:
    bounds = Bounds(kind, str(low), str(high), 2).around()
    assert bounds == tuple(map(str, around))
    assert around[0] <= low
    assert high <= around[1]
    assert low - around[0] + around[1] - high <= (high - low) / 8


@pytest.mark.parametrize(
    ("low", "high", "within", "around"),
    [
        # Changed and new rows: the next lower file is not read, and the upper bound of the newest rows is still
        # rounded.
        (46_875_003, 50_001_499, (46_875_000, 49_999_999), (46_875_000, 50_003_968)),
        (46_875_003, 49_999_990, (46_875_000, 49_999_999), (46_875_000, 49_999_999)),
        (46_800_001, 49_999_990, (46_875_000, 49_999_999), (46_792_704, 49_999_999)),  # some new rows are below
        (46_875_003, 49_999_990, (0, 99_999_999), (46_858_240, 50_003_968)),
    ],
)
def test_bounds_do_not_exceed_the_files_of_the_rows(
    low: int, high: int, within: tuple[int, int], around: tuple[int, int]
) -> None:
    bounds = Bounds("bigint", str(low), str(high), 2, within).around()
    assert bounds == tuple(map(str, around))
    assert around[0] <= low
    assert high <= around[1]


def test_bounds_of_other_types_are_not_rounded() -> None:
    assert Bounds("string", "a", "b", 2).around() == ("a", "b")
    assert Bounds("decimal(4,2)", "1.25", "7.50", 2).around() == ("1.25", "7.50")
    assert Bounds("bigint", None, None, 0).around() is None


def test_bounds_of_changed_rows_do_not_exceed_their_files(lake: Lake) -> None:
    spark, table = lake.spark(), TableId.parse("final.t")
    lake.ensure_namespace(("final",))
    spark.sql(
        "CREATE TABLE final.t (id BIGINT, v INT) USING iceberg TBLPROPERTIES ('format-version' = '3', "
        "'write.update.mode' = 'merge-on-read')"
    )
    spark.sql("INSERT INTO final.t SELECT id, 0 FROM range(0, 500, 1, 1)")
    spark.sql("INSERT INTO final.t SELECT id, 0 FROM range(500, 1000, 1, 1)")
    start = lake.table(table).metadata.current_snapshot_id
    spark.sql("UPDATE final.t SET v = id WHERE id IN (505, 700)")
    spark.sql("INSERT INTO final.t VALUES (2000, 1)")
    loaded = lake.table(table)
    with contextlib.ExitStack() as scope:
        changed = scope.enter_context(capture(lake, table, start))
        head = Watermark(str(loaded.metadata.table_uuid), loaded.metadata.current_snapshot_id)
        window = Window(table, replace(head, snapshot=start), head)
        sources = model_sources.Sources(lake, {table: loaded}, {table: window}, {table: changed}, Frames(spark, scope))
        feed = sources.feed(table)
        assert feed is not None
        assert feed.rows == 5
        assert feed.bounds["id"].within == (500, 999)
        assert feed.bounds["id"].around() == ("500", "2016")  # not 480
        # File statistics do not cover rows that are only new.
        appended = scope.enter_context(capture(lake, table, loaded.metadata.snapshots[-2].snapshot_id))
        assert not appended.ranges_before["id"].has_values

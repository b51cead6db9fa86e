"""Which files are worth combining, what is due, and in which order."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from lake_assets.lake import thresholds
from lake_assets.tables.upkeep_policy import DAY, DEFAULT_POLICY
from lake_assets.upkeep.table_health import SmallFiles, TableHealth, _small_files
from lake_assets.upkeep.upkeep_actions import chosen, due_actions
from lake_assets.upkeep.upkeep_records import Done, TableRecord

MIB = 1 << 20
NOW = 1_800_000_000.0


def entries(*sizes: int, partition: tuple[Any, ...] = ()) -> Any:
    return [SimpleNamespace(bytes=s, spec_id=0, partition=partition, snapshot_id=1) for s in sizes]


def small(files: Any) -> list[SmallFiles]:
    return [*_small_files(files, DEFAULT_POLICY, {1: NOW - 60}, NOW)]


def test_a_file_that_is_larger_than_all_smaller_ones_together_is_left_alone() -> None:
    tiny = [10_000] * 20
    assert small(entries(*tiny, 60 * MIB)) == [SmallFiles(20, 200_000, 10_000, 60)]
    assert small(entries(*tiny, 150_000)) == [SmallFiles(21, 350_000, 150_000, 60)]
    assert small(entries(*[120 * MIB] * 20)) == []
    assert small(entries(10_000, 10_000)) == []
    # Also if it would be the fifth.
    assert small(entries(*[10_000] * 4, 60 * MIB)) == []
    assert small(entries(*[10_000] * 4, 30_000)) == [SmallFiles(5, 70_000, 30_000, 60)]


def test_files_of_different_partitions_are_not_combined() -> None:
    apart = [f for n in range(20) for f in entries(10_000, 10_000, partition=(n,))]
    assert small(apart) == []
    assert len(small([*apart, *entries(*[1_000] * 9, partition=(3,))])) == 1


def test_a_row_is_rewritten_about_as_often_as_its_table_doubles() -> None:
    """Over years of small commits, what is rewritten stays a small multiple of what was written."""
    chance, files, written, rewritten = random.Random(1), list[int](), 0, 0
    for commit in range(40_000):
        size = chance.randrange(5_000, 50_000)
        files.append(size)
        written += size
        if commit % 10:
            continue
        health = TableHealth("t", 3, files=len(files), small=tuple(small(entries(*files))))
        for action in due_actions(health, DEFAULT_POLICY, 0.0):
            assert action.kind == "combine"
            merged = [s for s in files if s < action.limit]
            assert sum(merged) == action.bytes
            files = [s for s in files if s >= action.limit]
            whole, rest = divmod(sum(merged), DEFAULT_POLICY.target_file_size)
            files += [DEFAULT_POLICY.target_file_size] * whole + ([rest] if rest else [])
            rewritten += sum(merged)
    assert rewritten < 10 * written
    assert len(files) < written / DEFAULT_POLICY.target_file_size + 100


def test_small_files_wait_for_more_of_them_or_for_a_day() -> None:
    def due(files: int, oldest: float | None, size: int = 1_000) -> bool:
        health = TableHealth("t", 3, files=files, small=(SmallFiles(files, size, 100, oldest),))
        return bool(due_actions(health, DEFAULT_POLICY, 0.0))

    assert not due(49, 60)
    assert due(50, 60)
    assert due(5, DAY)
    assert due(5, None)
    assert due(5, 60, size=1 << 30)


def test_large_files_of_one_partition_are_combined_after_the_small_files_of_others() -> None:
    """Or the large files of all partitions would be rewritten with them: Iceberg has one limit for all."""
    tiny, large = SmallFiles(60, MIB, 50_000, 60), SmallFiles(60, 900 * MIB, 60 * MIB, 60)
    (first,) = due_actions(TableHealth("t", 3, files=120, small=(large, tiny)), DEFAULT_POLICY, 0.0)
    assert (first.limit, first.bytes) == (50_001, MIB)
    (second,) = due_actions(TableHealth("t", 3, files=61, small=(large,)), DEFAULT_POLICY, 0.0)
    assert second.limit == 60 * MIB + 1


def test_a_few_small_files_of_many_large_ones_are_left_alone() -> None:
    health = TableHealth("t", 3, files=2_000, small=(SmallFiles(60, 1_000, 100, 60),))
    assert due_actions(health, DEFAULT_POLICY, 0.0) == []


def test_a_table_whose_watermark_would_leave_its_newest_snapshots_is_not_rewritten() -> None:
    health = TableHealth("t", 3, files=60, small=(SmallFiles(60, 1_000, 100, 60),), since_watermark=10)
    assert due_actions(health, DEFAULT_POLICY, 0.0) == []
    assert thresholds.SNAPSHOTS_KEPT // 2 == 10


def test_what_removes_most_files_for_its_bytes_comes_first() -> None:
    many = TableHealth("many", 3, files=500, small=(SmallFiles(500, MIB, 100, 60),))
    few = TableHealth("few", 3, files=60, small=(SmallFiles(60, 900 * MIB, 20 * MIB, 60),))
    worn = TableHealth("worn", 3, files=10, rows=10**7, worn=10, worn_bytes=100 * MIB, worn_rows=9 * 10**6)
    actions = [a for h in (few, worn, many) for a in due_actions(h, DEFAULT_POLICY, 0.0)]
    assert [a.table for a in chosen(actions)] == ["many", "worn", "few"]


def test_what_gained_nothing_is_tried_less_and_less_often() -> None:
    done = [Done("combine", "", NOW - 100, 1.0)]
    assert TableRecord("t", 0, tuple(done)).is_paused("combine", NOW)
    assert not TableRecord("t", 0, tuple(done)).is_paused("combine", NOW + 100)
    assert not TableRecord("t", 0, tuple(done)).is_paused("expire", NOW)
    many = tuple(done * 10)
    assert TableRecord("t", 0, many).is_paused("combine", NOW + 10 * 3600)
    assert not TableRecord("t", 0, (*many, Done("combine", "", NOW - 1, 1.0, files=3))).is_paused("combine", NOW)

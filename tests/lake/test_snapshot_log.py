"""Ancestors of a snapshot, and steps between two, in histories with expired snapshots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.snapshots import Snapshot

from lake_assets.lake.metadata.snapshot_log import Between, between, history


def table(parents: dict[int, int | None]) -> TableMetadata:
    """A table with these snapshots, each with its parent."""
    snapshots = [
        Snapshot(snapshot_id=i, parent_snapshot_id=parent, sequence_number=i, timestamp_ms=i, manifest_list="")
        for i, parent in parents.items()
    ]
    return TableMetadataV2.model_construct(snapshots=snapshots)


def ids(log: Between) -> tuple[int | None, list[int], list[int]]:
    return (
        log.ancestor.snapshot_id if log.ancestor else None,
        [s.snapshot_id for s in log.steps],
        [s.snapshot_id for s in log.undone],
    )


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[int, int | None], int | None, int | None]:
    count = draw(st.integers(0, 8))
    parents = {i: draw(st.one_of(st.none(), st.integers(1, i - 1))) if i > 1 else None for i in range(1, count + 1)}
    expired = draw(st.sets(st.integers(1, 9), max_size=2))
    ends = st.one_of(st.none(), st.integers(1, 9))
    return {i: p for i, p in parents.items() if i not in expired}, draw(ends), draw(ends)


@given(tables())
def test_steps_between_two_snapshots(drawn: tuple[dict[int, int | None], int | None, int | None]) -> None:
    parents, start, end = drawn

    def chain(i: int | None) -> list[int]:
        return [i, *chain(parents[i])] if i in parents and i is not None else []

    meta, starts, ends = table(parents), chain(start), chain(end)
    assert [s.snapshot_id for s in history(meta, end)] == ends
    common = max(set(starts) & set(ends), default=None)
    steps, undone = (sorted(set(a) - set(b if common else [])) for a, b in ((ends, starts), (starts, ends)))
    log = between(meta, start, end)
    assert ids(log) == (common, steps, undone)
    assert log.is_forward == (common is not None and common == start)


def test_from_the_beginning_all_remaining_snapshots_are_steps() -> None:
    assert ids(between(table({2: 1, 3: 2}), None, 3)) == (None, [2, 3], [])


def test_an_expired_start_leaves_the_steps_after_it() -> None:
    assert ids(between(table({2: 1, 3: 2}), 1, 3)) == (None, [2, 3], [])


def test_a_rollback_has_steps_that_are_undone() -> None:
    assert ids(between(table({1: None, 2: 1, 3: 2, 4: 1}), 3, 4)) == (1, [4], [2, 3])

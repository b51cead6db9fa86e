"""The end of a step's window, and how long a small window waits: from snapshots alone, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import StringType

from lake_assets import Lake
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import land
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.tables.batch_limits import cut, seconds_left
from lake_assets.tables.pending_windows import Window, head_of
from lake_assets.tables.specs import BatchSize
from tests.support.debezium import BIGINT, Event, to_lines, write_lines
from tests.support.debezium import Table as SourceRows

T = TableId.parse("final.t")
WIDTH = pa.schema([pa.field("id", pa.int64())])


def append(table: Table, rows: int) -> None:
    table.append(pa.table({"id": list(range(rows))}, schema=WIDTH))


@pytest.fixture
def table(plain_lake: Lake) -> Table:
    plain_lake.ensure_namespace(("final",))
    return plain_lake.catalog.create_table(T.parts, WIDTH)


def history(table: Table, *sizes: int) -> list[int]:
    """Return the ids of snapshots that append these numbers of rows."""
    snapshots: list[int] = []
    for rows in sizes:
        append(table, rows)
        snapshots.append(table.metadata.current_snapshot_id or 0)
    return snapshots


def window(table: Table, start: int | None = None) -> Window:
    return Window(T, Watermark(str(table.metadata.table_uuid), start) if start else None, head_of(table))


@pytest.mark.parametrize(
    ("size", "start", "end", "remaining"),
    [
        (BatchSize(), None, 4, 0),
        (BatchSize(files=1), None, 0, 4),
        (BatchSize(files=3), None, 2, 2),
        (BatchSize(rows=11), None, 1, 3),
        (BatchSize(rows=10), 0, 1, 3),
        # At least one snapshot, however large it is.
        (BatchSize(rows=1), 1, 2, 2),
        # Whichever number is reached first.
        (BatchSize(files=4, rows=11), None, 1, 3),
        (BatchSize(files=100, rows=1000), None, 4, 0),
        (BatchSize(files=1), 4, 4, 0),
    ],
)
def test_a_window_ends_with_the_snapshot_that_fills_a_batch(
    table: Table, size: BatchSize, start: int | None, end: int, remaining: int
) -> None:
    ids = history(table, 5, 10, 100, 1, 1)
    batch = cut(window(table, None if start is None else ids[start]), table, size)
    assert (ids.index(batch.head.snapshot or 0), batch.left) == (end, remaining)


def test_steps_of_any_size_come_to_the_end(table: Table) -> None:
    ids = history(table, 3, 1, 4, 1, 5, 9)
    for size in (BatchSize(files=1), BatchSize(files=4), BatchSize(rows=1), BatchSize(rows=8)):
        snapshot, steps = None, 0
        while snapshot != ids[-1]:
            head = cut(window(table, snapshot), table, size).head.snapshot
            assert head is not None
            assert snapshot is None or ids.index(head) > ids.index(snapshot)
            snapshot, steps = head, steps + 1
        assert steps > 1


def test_a_batch_ends_where_the_source_has_the_columns_that_it_has_now(table: Table) -> None:
    ids = history(table, 1, 1)
    with table.update_schema() as change:
        change.add_column("name", StringType())
    ids += history(table, 1, 1)
    assert cut(window(table), table, BatchSize(files=1)).head.snapshot == ids[2]
    assert cut(window(table, ids[2]), table, BatchSize(files=1)).head.snapshot == ids[3]


def test_a_window_over_a_rollback_is_not_cut(table: Table) -> None:
    ids = history(table, 1, 1, 1)
    with table.manage_snapshots() as change:
        change.rollback_to_snapshot(ids[0])
    history(table, 1, 1)
    batch = cut(window(table, ids[2]), table, BatchSize(files=1))
    assert batch.head == head_of(table)


def test_the_oldest_snapshot_that_is_left_stands_for_those_before_it(table: Table) -> None:
    ids = history(table, 5, 5, 5, 5)
    with table.maintenance.expire_snapshots() as expiry:
        expiry.by_ids(ids[:2])
    assert cut(window(table), table, BatchSize(rows=15)).head.snapshot == ids[2]
    assert cut(window(table), table, BatchSize(rows=16)).head.snapshot == ids[3]


WAIT = BatchSize(rows=10, wait=60)


@pytest.mark.parametrize(
    ("sizes", "passed", "remaining"),
    [
        ((1,), 0, 60),
        ((1,), 45, 15),
        ((1,), 60, 0),
        ((1, 1), 61, 0),
        ((4, 5), 0, 60),
        # Enough for a batch.
        ((4, 6), 0, 0),
        # The clock was set back.
        ((1,), -3600, 0),
    ],
)
def test_less_than_a_batch_waits_for_more(table: Table, sizes: Sequence[int], passed: float, remaining: float) -> None:
    (start,) = history(table, 3)
    (first, *_), end = history(table, *sizes), table.metadata.current_snapshot_id or 0
    snapshot = table.snapshot_by_id(first)
    assert snapshot is not None
    now = snapshot.timestamp_ms / 1000 + passed
    assert seconds_left(table, start, end, WAIT, now) == pytest.approx(remaining)
    assert seconds_left(table, start, end, BatchSize(rows=10), now) == 0


def test_what_has_not_begun_does_not_wait(table: Table) -> None:
    (end,) = history(table, 1)
    assert seconds_left(table, None, end, WAIT) == 0


@pytest.mark.parametrize(
    ("batch", "commits"), [(BatchSize(), [6]), (BatchSize(files=2), [4, 2]), (BatchSize(rows=3), [4, 2])]
)
def test_files_are_taken_in_in_commits_of_a_batch(
    plain_lake: Lake, tmp_path: Path, batch: BatchSize, commits: list[int]
) -> None:
    (tmp_path / "in").mkdir()
    users = SourceRows({"id": BIGINT}, name="public.users")
    for n in range(3):
        events = [Event(users, "c", (1, i), {"id": i}) for i in (2 * n, 2 * n + 1)]
        write_lines(tmp_path / "in" / f"{n}.jsonl", to_lines(events))
    spec = RawSpec(TableId.parse("raw.e"), tmp_path / "in", "debezium", "p", batch=batch)
    assert (land(plain_lake, spec).files, land(plain_lake, spec).files) == (3, 0)
    summaries = [s.summary.additional_properties for s in plain_lake.table("raw.e").metadata.snapshots if s.summary]
    assert [int(s["added-records"] or 0) for s in summaries] == commits

"""Timestamps of tables written by a clock running ahead, without Spark."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets import Lake
from lake_assets.lake.metadata import clock_skew
from lake_assets.lake.metadata.metadata_commits import now_ms
from tests.support.clock import written_ahead

ROWS = pa.table({"n": pa.array([1], pa.int64())})
TIMES = st.lists(st.integers(0, 10_000_000), max_size=6)


@given(TIMES, TIMES, TIMES, st.integers(0, 10_000_000), st.integers(0, 10_000_000))
def test_no_timestamp_is_after_now_or_out_of_order(
    snapshots: list[int], history: list[int], versions: list[int], last: int, now: int
) -> None:
    metadata = {
        "last-updated-ms": last,
        "snapshots": [{"timestamp-ms": t, "snapshot-id": i} for i, t in enumerate(snapshots)],
        "snapshot-log": [{"timestamp-ms": t, "snapshot-id": i} for i, t in enumerate(history)],
        "metadata-log": [{"timestamp-ms": t, "metadata-file": str(i)} for i, t in enumerate(versions)],
    }
    after = clock_skew.not_after(metadata, now)
    for name, was in (("snapshot-log", history), ("metadata-log", versions)):
        times = [entry["timestamp-ms"] for entry in after[name]]
        assert times == sorted(times)
        assert all(t <= min(before, now, after["last-updated-ms"]) for t, before in zip(times, was, strict=True))
        if was == sorted(was) and (not was or was[-1] <= min(last, now)):
            assert times == was, "what was in order stays"
    assert [s["timestamp-ms"] for s in after["snapshots"]] == [min(t, now) for t in snapshots]
    assert [s["snapshot-id"] for s in after["snapshots"]] == list(range(len(snapshots)))


def test_timestamps_are_reset_only_if_a_commit_would_fail(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("raw",))
    plain_lake.catalog.create_table("raw.t", ROWS.schema).append(ROWS)
    table = plain_lake.table("raw.t")
    assert not clock_skew.reset_future_times(table)
    assert plain_lake.table("raw.t").metadata_location == table.metadata_location
    written_ahead(plain_lake, "raw.t", timedelta(seconds=30))
    assert not clock_skew.reset_future_times(plain_lake.table("raw.t")), "Iceberg lets clocks differ by a minute"
    written_ahead(plain_lake, "raw.t", timedelta(hours=2))
    assert clock_skew.reset_future_times(plain_lake.table("raw.t"))
    now = plain_lake.table("raw.t")
    assert now.metadata.last_updated_ms <= now_ms()
    assert now.scan().to_arrow().num_rows == 1
    assert not clock_skew.reset_future_times(now)


@pytest.mark.parametrize("others", [0, 1])
def test_a_table_with_a_later_pyiceberg_commit_is_readable_again(plain_lake: Lake, others: int) -> None:
    plain_lake.ensure_namespace(("raw",))
    plain_lake.catalog.create_table("raw.t", ROWS.schema).append(ROWS)
    written_ahead(plain_lake, "raw.t", timedelta(hours=2))
    for _ in range(others):
        plain_lake.table("raw.t").append(ROWS)  # at the current time, so the history goes back
    assert clock_skew.reset_future_times(plain_lake.table("raw.t"))
    metadata = plain_lake.table("raw.t").metadata
    for history in (metadata.snapshot_log, metadata.metadata_log):
        times = [*(entry.timestamp_ms for entry in history), metadata.last_updated_ms, now_ms()]
        assert times == sorted(times)

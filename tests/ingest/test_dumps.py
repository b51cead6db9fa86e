"""Dumps of a whole table: what differs between two of them becomes change events, exactly, each dump once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lake_assets import Lake
from tests.support.dumps import DumpFeed


def test_what_differs_between_two_dumps_becomes_events(lake: Lake) -> None:
    feed = DumpFeed(lake)
    feed.deliver("2026-11-01", [{"id": 1, "n": "a"}, {"id": 2, "n": "b"}, {"id": 3, "n": None}])
    assert feed.rows() == {(1, "a"): 1, (2, "b"): 1, (3, None): 1}
    outcomes = feed.deliver("2026-11-02", [{"id": 1, "n": "a"}, {"id": 2, "n": "B"}, {"id": 4, "n": "d"}])
    assert outcomes["raw.dumps"].details["dumps"] == "2026-11-02: 1 inserted, 1 updated, 1 deleted"
    assert feed.rows() == {(1, "a"): 1, (2, "B"): 1, (4, "d"): 1}
    assert feed.events()[3:] == [
        ("delete", '{"id": "3"}'),
        ("update_preimage", '{"id": "2", "n": "b"}'),
        ("update_postimage", '{"id": "2", "n": "B"}'),
        ("insert", '{"id": "4", "n": "d"}'),
    ]
    assert {o.status for o in feed.run().values()} == {"nothing"}
    assert feed.pipeline.pending(lake) == []

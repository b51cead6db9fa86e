"""Erasing a key of a table that dumps keep up to date: also from the rows that are kept of the last dump."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake
from tests.support.cli import Done
from tests.support.dumps import DumpFeed, stream
from tests.support.pipeline_files import write_pipeline

ROWS = [{"id": 17, "n": "seventeen"}, {"id": 18, "n": "eighteen"}, {"id": 170, "n": "17"}]


@pytest.mark.long
def test_a_key_is_erased_from_the_kept_rows_as_well(lake: Lake, tmp_path: Path, call: Callable[..., Done]) -> None:
    feed = DumpFeed(lake)
    file = write_pipeline(tmp_path / "defs.yaml", {"name": "made_up", "streams": [stream()]})
    feed.deliver("1", ROWS)
    words = ("erase", "--table", "final.t", "--key", "id=17", "--pipeline", file)
    planned = json.loads(call(*words, "--dry-run", "--json").out)
    counted = {t["table"]: t["rows"] for t in planned["tables"]}
    assert (counted["raw.dumps"], counted["raw.dumps_dump"], counted["final.t"]) == (1, 1, 1)
    done = call(*words, "--yes")
    assert done.code == 0, done.out + done.err
    assert "no file holds a key" in done.out
    assert "a row that the next dump still has arrives again" in done.out
    kept = lake.table("raw.dumps_dump").scan().to_arrow()["row"].to_pylist()
    assert sorted(kept) == ['{"id":"170","n":"17"}', '{"id":"18","n":"eighteen"}']
    # A dump without the row brings no event about it, and one with it brings the row again.
    feed.deliver("2", ROWS[1:])
    assert (len(feed.events()), feed.rows()) == (2, {(18, "eighteen"): 1, (170, "17"): 1})
    feed.deliver("3", ROWS)
    assert feed.rows()[17, "seventeen"] == 1

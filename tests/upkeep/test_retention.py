"""Old records of raw and superseded events of staging go, and nobody downstream can tell."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import Refused
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.folded_staging import fold
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.old_records import delete_old_records
from lake_assets.lake import TableId
from lake_assets.pipeline.verification import verify
from tests.support.debezium import Event
from tests.support.histories import Batches
from tests.support.oracle import final_rows, rows_of
from tests.support.stream_histories import evolving, ordered, repeated, scattered, truncated
from tests.support.streams import Feed

RAW = TableId.parse("raw.events")


def spec_of(feed: Feed, kind: type[Any]) -> Any:
    return next(s for s in feed.pipeline.specs(feed.lake) if isinstance(s, kind))


def remove_old(feed: Feed, before: float) -> tuple[int, int]:
    """Delete records and fold events from before a time; return how many went."""
    at = datetime.fromtimestamp(before, UTC)
    records = delete_old_records(feed.lake, RAW, [spec_of(feed, StagingSpec)], at)
    events = fold(feed.lake, spec_of(feed, FinalSpec), at)
    assert not isinstance(records, Refused)
    assert not isinstance(events, Refused)
    return records, events


def check(lake: Lake, batches: Batches) -> None:
    feed, delivered, landed = Feed(lake, "public.t"), list[Event](), list[float]()
    gone: Counter[str] = Counter()
    for batch in batches:
        delivered += batch
        landed.append(time.time())
        feed.deliver(batch)
        if not delivered:
            continue
        # The halves of a change may come in two batches.
        records, events = remove_old(feed, landed[-1])
        gone += Counter(records=records, events=events)
        assert feed.pipeline.pending(lake) == []
        final = feed.rows("final.t")
        assert rows_of(final) == final_rows(delivered, final.columns)
    assert gone["records"] > 0
    assert gone["events"] > 0
    # Computed again from what is left, it is the same.
    final_spec = spec_of(feed, FinalSpec)
    assert verify(lake, final_spec).equal
    feed.pipeline.rebuild(lake, "final.t")
    final = feed.rows("final.t")
    assert rows_of(final) == final_rows(delivered, final.columns)


@pytest.mark.parametrize(
    "kind", [evolving, *(pytest.param(k, marks=pytest.mark.long) for k in (ordered, repeated, scattered, truncated))]
)
def test_final_tables_are_what_all_events_make_of_them(lake: Lake, kind: Callable[[random.Random], Batches]) -> None:
    check(lake, kind(random.Random(kind.__name__)))

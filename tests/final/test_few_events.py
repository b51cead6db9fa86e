"""Small windows are counted and reduced in this process: as Spark counts and reduces them."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import Refused
from lake_assets.final import final_step
from lake_assets.final.events.few_events import FewEvents
from lake_assets.final.events.reduction import latest
from lake_assets.final.events.window_stats import stats_of
from lake_assets.formats.event_model import DELETE, OP
from lake_assets.lake import thresholds
from tests.support.capture_oracle import bag
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table, decimal
from tests.support.histories import Batches, Source, redelivered, shuffled, split
from tests.support.oracle import final_rows, rows_of
from tests.support.seeds import long_seeds
from tests.support.streams import Feed

TABLE = Table({"h": TEXT, "k": BIGINT, "price": decimal(6, 2), "n": INT, "name": TEXT}, key=("h", "k"))
KEYS = [[(h, k) for k in range(4)] for h in ("", "it's", "ü😀")]
DECLARED: dict[str, dict[str, Any]] = {
    "scd1": {},
    "ignored": {"deletes": "ignore"},
    "soft": {"deletes": "soft"},
    "computed": {"columns": ["h AS house", "k", "n + 1 AS more", "name"]},
    "versions": {"mode": "scd2"},
}


def value(choose: random.Random, column: str) -> Any:
    match column:
        case "n":
            return choose.randint(-3, 3)
        case "price":
            return Decimal(choose.randint(-999_999, 999_999)).scaleb(-2)
        case _:
            return choose.choice(["", "a", "it's", "ü😀", "long " * 20])


def batches(choose: random.Random, in_order: int = 5) -> Batches:
    """Windows in order, of whole transactions; then some that are late, repeated, truncated or omit values."""
    source = Source(TABLE, choose, value)
    ordered: Batches = []
    for _ in range(in_order):
        first = len(source.log)
        for _ in range(choose.randint(1, 3)):
            source.transaction(choose.choice(KEYS))
        ordered.append(source.log[first:])
    first = len(source.log)
    source.toasted = frozenset({"name"})
    for n in range(8):
        source.transaction(choose.choice(KEYS))
        if n == 4:
            source.truncate()
    return [*ordered, *redelivered(choose, shuffled(choose, split(choose, source.log[first:], 2)))]


class Compared:
    """Compares both ways whenever a step takes the short one."""

    def __init__(self, lake: Lake, patch: pytest.MonkeyPatch) -> None:
        self.lake, self.reduced, self.refused = lake, 0, Counter[str]()
        self.before: Any = None
        of, stats, last = FewEvents.of, FewEvents.stats, FewEvents.last_of_keys

        def of_window(target: Any, events: Any, before: Any) -> Any:
            self.before = before
            return of(target, events, before)

        def counted(few: FewEvents) -> Any:
            found = stats(few)
            assert found == stats_of(few.target, few.frame(lake.spark()), self.before)
            return found

        def reduced(few: FewEvents, *args: Any) -> Any:
            rows = last(few, *args)
            if isinstance(rows, Refused):
                self.refused[rows.reason] += 1
                return rows
            self.reduced += 1
            events, names = few.frame(lake.spark()), few.target.columns
            if few.target.spec.deletes == "ignore":
                events = events.where(f"{OP} <> '{DELETE}'")
            wanted = latest(events, few.target.key, names, with_unavailable=False).select(*names, OP).collect()
            assert bag(tuple(r.values()) for r in rows.select([*names, OP]).to_pylist()) == bag(wanted)
            return rows

        patch.setattr(FewEvents, "of", of_window)
        patch.setattr(FewEvents, "stats", counted)
        patch.setattr(FewEvents, "last_of_keys", reduced)


@pytest.mark.long  # all histories of little data take this way
@pytest.mark.parametrize("seed", [0, *long_seeds(1, 12)])
@pytest.mark.parametrize(
    "declared", [*DECLARED][:1] + [pytest.param(d, marks=pytest.mark.long) for d in [*DECLARED][1:]]
)
def test_few_events_are_counted_and_reduced_as_many_are(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, declared: str, seed: int
) -> None:
    monkeypatch.setattr(thresholds, "LOCAL_FILES", 50)
    if declared == "ignored":
        monkeypatch.setattr(thresholds, "POSITION_VALUES", 0)  # the rows go to MERGE
    compared = Compared(lake, monkeypatch)
    feed = Feed(lake, {"table": "public.t", **DECLARED[declared]})
    delivered: list[Event] = []
    for batch in batches(random.Random(f"{declared} {seed}"), 5 if seed else 3):
        delivered += batch
        feed.deliver(batch)
        if declared in ("scd1", "ignored", "soft"):
            final = feed.rows("final.t")
            expected = final_rows(delivered, final.columns, DECLARED[declared].get("deletes", "hard"))
            assert rows_of(final) == expected
    assert compared.reduced or declared in ("soft", "versions"), compared.refused
    assert compared.refused


@pytest.mark.long
def test_events_of_many_files_are_left_to_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(lake, "public.t")
    monkeypatch.setattr(thresholds, "LOCAL_EVENTS", 2)
    called = Counter[str]()
    monkeypatch.setattr(final_step.FewEvents, "of", lambda *_: called.update(["of"]) or Refused("counted"))
    for n in range(1, 4):
        row = {"h": "a", "k": n, "price": None, "n": n, "name": None}
        feed.deliver([Event(TABLE, "c", (3 * n, 3 * n), row)] * (3 if n == 2 else 1))
        assert feed.rows("final.t").count() == n
    assert called["of"] == 2, "the second window has three events"

"""Whatever history a stream brings, in whatever batches: staging holds each event once, final what they make of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lake_assets import Lake
from tests.support.debezium import Event
from tests.support.histories import Batches
from tests.support.oracle import final_rows, rows_of
from tests.support.seeds import any_seed
from tests.support.stream_histories import evolving, ordered, repeated, scattered, truncated
from tests.support.streams import Feed


def check(lake: Lake, batches: Batches) -> None:
    """Deliver batches; after each, compare both tables with all events delivered so far."""
    feed = Feed(lake, "public.t")
    delivered: list[Event] = []
    for n, batch in enumerate(batches):
        delivered += batch
        feed.deliver(batch)
        if not delivered:
            continue
        final = feed.rows("final.t")
        expected, actual = final_rows(delivered, final.columns), rows_of(final)
        if actual != expected:
            raise AssertionError(_explain(n, delivered, final.columns, expected, actual))
        staged = feed.rows("staging.t").select("_op", "_sequence").collect()
        assert Counter((r[0][0], r[1]) for r in staged) == Counter((_op(e), _sequence(e)) for e in delivered)


def _op(event: Event) -> str:
    return {"c": "i", "u": "u", "d": "d", "t": "t", "r": "r"}[event.op]


def _sequence(event: Event) -> str:
    commit, own = event.sequence
    return "/".join(f"{n:020}" for n in (max(commit, own), own, commit))


def _explain(batch: int, delivered: list[Event], columns: list[str], expected: Any, actual: Any) -> str:
    """Return the differing keys with all of their events, of the smallest history."""
    key = delivered[0].table.key
    wrong = {tuple(row[columns.index(k)] for k in key) for row in (expected - actual) + (actual - expected)}
    events = [
        f"  {e.sequence} {e.op} {e.row} without {set(e.absent)}" for e in delivered if e.op == "t" or e.key in wrong
    ]
    lines = [f"after batch {batch}, keys {wrong}", f"expected {expected - actual}", f"found {actual - expected}"]
    return "\n".join([*lines, "as delivered:", *events])


KINDS = [ordered, repeated, scattered, evolving, truncated]


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [*(pytest.param(k, marks=pytest.mark.long) for k in (ordered, repeated, scattered, evolving)), truncated]
)
def test_final_is_what_the_events_make_of_it(lake: Lake, kind: Callable[[random.Random], Batches]) -> None:
    check(lake, kind(random.Random(kind.__name__)))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_final_is_what_any_events_make_of_it(
    new_lake: Callable[[str], Lake], kind: Callable[[random.Random], Batches]
) -> None:
    @any_seed(6)
    def run(seed: int) -> None:
        examples.append(seed)
        check(new_lake(f"{kind.__name__}{len(examples)}"), kind(random.Random(seed)))

    examples: list[int] = []
    run()

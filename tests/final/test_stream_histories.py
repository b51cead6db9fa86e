"""Whatever history a stream brings, in whatever batches: staging holds each event once, final what they make of it.

Spark costs the same for one row and for hundreds. So an example is many histories side by side in one table, each over
a few keys of its own: the first part of the key says which.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from lake_assets import Lake
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table, decimal
from tests.support.histories import Batches, Source, redelivered, shuffled, split
from tests.support.oracle import final_rows, rows_of
from tests.support.seeds import any_seed
from tests.support.streams import Feed

NARROW = Table({"h": INT, "k": BIGINT, "n": INT, "price": decimal(6, 2), "name": TEXT}, key=("h", "k"))
WIDE = NARROW.with_columns(n=BIGINT, price=decimal(12, 4), extra=TEXT)
NAMED = Table({"h": TEXT, "k": TEXT, "n": INT, "name": TEXT}, key=("h", "k"))
SINGLE = Table({"k": TEXT, "n": INT, "name": TEXT}, key=("k",))


def value(choose: random.Random, column: str) -> Any:
    match column:
        case "n":
            return choose.randint(-3, 3)
        case "price":
            return Decimal(choose.randint(-999_999, 999_999)).scaleb(-2)
        case _:
            return choose.choice(["", "a", "it's", "\\", "ü😀", "null", "long " * 20])


def histories(
    choose: random.Random, table: Table, keys: Callable[[int], list[tuple[Any, ...]]], *, toasted: bool = False
) -> Source:
    """Return a source after random transactions over the keys of twenty histories."""
    source = Source(table, choose, value, frozenset({"name"}) if toasted else frozenset())
    for _ in range(60):
        source.transaction(keys(choose.randrange(20)))
    return source


def composite(h: int) -> list[tuple[Any, ...]]:
    return [(h, k) for k in range(3)]


def named(h: int) -> list[tuple[Any, ...]]:
    return [(f"h{h}", k) for k in ("", "'", "ü😀")]


def single(h: int) -> list[tuple[Any, ...]]:
    return [(f"{h}/{k}",) for k in range(3)]


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


def ordered(choose: random.Random) -> Batches:
    """Events in order, with omitted TOAST values."""
    return split(choose, histories(choose, NARROW, composite, toasted=True).log, 3)


def repeated(choose: random.Random) -> Batches:
    """Repeated events, with omitted TOAST values."""
    batches = split(choose, histories(choose, NAMED, named, toasted=True).log, 3)
    return [*redelivered(choose, batches), []]


def scattered(choose: random.Random) -> Batches:
    """Late, early and repeated events."""
    return redelivered(choose, shuffled(choose, split(choose, histories(choose, SINGLE, single).log, 4)))


def evolving(choose: random.Random) -> Batches:
    """Columns are added, widened and rescaled between any two events; some events are late or repeated."""
    source = histories(choose, NARROW, composite, toasted=True)
    source.table = WIDE
    for row in source.rows.values():
        row["extra"] = None
    for _ in range(30):
        source.transaction(composite(choose.randrange(20)))
    return redelivered(choose, split(choose, source.log, 3))


def truncated(choose: random.Random) -> Batches:
    """The table is truncated now and then; all events may be late or repeated."""
    source = Source(SINGLE, choose, value)
    for n in range(1, 40):
        source.transaction(single(choose.randrange(6)))
        if n % 15 == 0:
            source.truncate()
    return redelivered(choose, shuffled(choose, split(choose, source.log, 3)))


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

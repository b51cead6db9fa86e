"""Kinds of histories that a stream may bring, each as batches: in order, late, repeated, of changing columns, truncated.

Spark costs the same for one row and for hundreds. So an example is many histories side by side in one table, each over
a few keys of its own: the first part of the key says which.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tests.support.debezium import BIGINT, INT, TEXT, Table, decimal
from tests.support.histories import Batches, Source, redelivered, shuffled, split

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

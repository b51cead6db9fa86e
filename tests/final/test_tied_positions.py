"""Changes of a row that share one position are applied in the order of the stream, whatever the batches."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from pyspark.sql import functions as F

from lake_assets import Lake
from lake_assets.final.events.key_changes import PRESENT, states
from lake_assets.final.events.reduction import order
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.ordering import Ordering
from lake_assets.formats import event_format
from lake_assets.lake import TableId
from lake_assets.lake.rows_in_memory import rows_in_memory
from tests.support.debezium import INT, TEXT, Event, Table
from tests.support.oracle import OPEN_END, Rows, rows_of
from tests.support.streams import Feed, absorb_changes

T = Table({"h": INT, "n": INT, "name": TEXT}, key=("h",))
LONGEST, MOST_BATCHES = 5, 4
FOLLOWERS = {"": "c", "c": "ud", "u": "ud", "d": "c"}
SCHEMA = (
    "h INT, n INT, name STRING, _op STRING, _sequence STRING, _position BIGINT, _index INT, _unavailable ARRAY<STRING>, "
    "_arrived_at TIMESTAMP"
)
OPS = {"c": "insert", "u": "update", "d": "delete"}
KINDS: dict[str, dict[str, Any]] = {"hard": {}, "versions": {"mode": "scd2"}}


def changes(longest: int, before: str = "") -> Iterator[str]:
    """Yield every sequence of changes that a row can go through."""
    if before:
        yield before
    if len(before) < longest:
        for op in FOLLOWERS[before[-1:]]:
            yield from changes(longest, before + op)


def histories() -> Iterator[list[Event]]:
    """Yield histories of one row; with each, the deliveries that end in one of its suffixes once more."""
    for ops in changes(4):
        # Changes before the position that the others share.
        for alone in range(2):
            events = [
                Event(
                    T,
                    op,  # pyright: ignore[reportArgumentType]
                    (100, 101) if i < alone else (200, 205),
                    {"h": 0, "n": i, "name": f"name {i}"},
                    # An update that omits a value which an earlier change of the same position has.
                    frozenset({"name"}) if op == "u" and i % 2 else frozenset(),
                    time=1_700_000_000_000 + i * 1000,
                )
                for i, op in enumerate(ops)
            ]
            yield events
            for again in range(1, min(len(events), LONGEST - len(events)) + 1):
                yield [*events, *events[-again:]]


def cuts(events: Sequence[Event]) -> Iterator[list[list[Event]]]:
    """Yield every division of the events into batches."""
    for ends in product([False, True], repeat=len(events) - 1):
        batches = [[events[0]]]
        for ends_batch, event in zip(ends, events[1:], strict=True):
            if ends_batch:
                batches.append([])
            batches[-1].append(event)
        yield batches


def of_row(events: Sequence[Event], h: int) -> list[Event]:
    return [Event(e.table, e.op, e.sequence, {**e.row, "h": h}, e.absent, e.time) for e in events]


def spec(kind: str) -> FinalSpec:
    return FinalSpec(TableId(("final",), kind), TableId(("staging",), "t"), "made_up", **KINDS[kind])


def expected(kind: str, h: int, events: Sequence[Event]) -> Rows:
    """Apply the changes one after the other."""
    row: dict[str, Any] | None = None
    versions: list[list[Any]] = []
    last: dict[str, Any] = {}
    for e in _once(events):
        at = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=e.time or 0)  # noqa: DTZ001
        if versions and row is not None:
            versions[-1][-2:] = [at, False]
        written = {c: e.row[c] for c in T.columns if c not in e.absent}
        row = None if e.op == "d" else {**(row or {}), **written, "h": h}
        if row is not None:
            last = row
            versions.append([*(row[c] for c in T.columns), at, OPEN_END, True])
    match kind:
        case "versions":
            return Counter(map(tuple, versions))
        case "soft":
            return Counter([(*(last[c] for c in T.columns), row is None)])
        case _:
            return Counter([tuple(row[c] for c in T.columns)] if row else [])


@pytest.mark.long
@pytest.mark.parametrize("kinds", [["versions"], pytest.param([*KINDS], marks=pytest.mark.long)])
def test_ties_are_in_the_order_of_the_stream_whatever_the_cuts(lake: Lake, kinds: list[str]) -> None:
    feed = Feed(lake, {"table": "public.t", "final": False})
    rows = [batches for events in histories() if len(events) <= MOST_BATCHES for batches in cuts(events)]
    wanted = {kind: Rows() for kind in kinds}
    told: dict[int, str] = {}
    for h, batches in enumerate(rows):
        events = [e for b in batches for e in b]
        told[h] = " | ".join(" ".join(f"{e.op}{e.row['n']}@{e.sequence[1]}" for e in b) for b in batches)
        for kind in kinds:
            wanted[kind] += expected(kind, h, events)
    for n in range(MOST_BATCHES):
        feed.deliver([e for h, batches in enumerate(rows) for e in of_row(batches[n] if n < len(batches) else [], h)])
        for kind in kinds:
            absorb_changes(lake, spec(kind))
    for kind in kinds:
        found = rows_of(feed.rows(f"final.{kind}"))
        wrong = sorted({r[0] for r in (found - wanted[kind]) + (wanted[kind] - found)})
        assert not wrong, f"{kind}: {len(wrong)} of {len(rows)} rows, such as " + "\n".join(
            f"{told[h]}: expected {[r for r in wanted[kind] if r[0] == h]}, found {[r for r in found if r[0] == h]}"
            for h in sorted(wrong, key=lambda h: (len(told[h]), h))[:12]
        )


def _once(events: Sequence[Event]) -> list[Event]:
    """Return the events without those that are delivered again."""
    return list({e.row["n"]: e for e in events}.values())


# The position of a change and, as a later delivery may have it, less of it: without the line that begins a transaction.
SEQUENCES = {
    "debezium": (f"{200:020}/{205:020}",) * 2,
    "wal2json-v1": (f"{200:016X}/{5:010}",) * 2,
    "wal2json-v2": (f"{200:016X}/{205:016X}", f"{205:016X}"),
    "wal2json-v2 without B lines": (f"{205:016X}", f"{205:016X}"),
    "wal2json-v2 with xids": (f"{205:016X}/x{7:010}", f"{205:016X}"),
}


@pytest.mark.parametrize(
    "form", [f if f in ("debezium", "wal2json-v2") else pytest.param(f, marks=pytest.mark.long) for f in SEQUENCES]
)
def test_ties_are_in_the_order_of_the_stream_in_every_format(spark_lake: Lake, form: str) -> None:
    first, again = SEQUENCES[form]
    rows, wanted, told = list[tuple[Any, ...]](), Rows(), dict[int, str]()
    for h, events in enumerate(histories()):
        delivered: set[int] = set()
        for position, e in enumerate(events):
            sequence = again if e.row["n"] in delivered else first
            written = [None if e.op == "d" or c in e.absent else e.row[c] for c in ("n", "name")]
            rows.append((h, *written, OPS[e.op], sequence, position, 0, list(e.absent) or None, None))
            delivered.add(e.row["n"])
        # Here all changes have one position.
        wanted += expected("hard", h, events)
        told[h] = " ".join(f"{e.op}{e.row['n']}" for e in events)
    frame = rows_in_memory(spark_lake.spark(), rows, SCHEMA)
    ordering = Ordering.of(event_format(form.split()[0]))
    after = states(frame, T.key, list(T.columns), ordering, omits_values=False)
    last = after.groupBy("h").agg(F.max_by(F.struct(*T.columns, PRESENT), order()).alias("row")).select("row.*")
    found = rows_of(last.where(PRESENT).drop(PRESENT))
    wrong = sorted({r[0] for r in (found - wanted) + (wanted - found)})
    assert not wrong, [told[h] for h in wrong]

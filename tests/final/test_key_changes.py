"""Keys that rows take over from each other: the state after a transaction is the source's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import functions as F

from lake_assets import Lake
from lake_assets.final.events.key_changes import PRESENT, entangled, states
from lake_assets.final.events.reduction import order
from lake_assets.final.ordering import Ordering
from lake_assets.formats import FORMATS, event_format
from lake_assets.formats.event_model import INDEX, OP, POSITION, SEQUENCE
from lake_assets.formats.log_positions import upgraded
from lake_assets.lake.rows_in_memory import rows_in_memory
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table
from tests.support.deferred import Deferred
from tests.support.seeds import seeds

T = Table({"h": INT, "k": BIGINT, "n": INT, "name": TEXT}, key=("h", "k"))
SCHEMA = (
    f"h INT, k BIGINT, n INT, name STRING, {OP} STRING, {SEQUENCE} STRING, {POSITION} BIGINT, {INDEX} INT, "
    "_unavailable ARRAY<STRING>"
)
OPS = {"c": "insert", "u": "update", "d": "delete", "r": "read"}


def value(choose: random.Random, column: str) -> Any:
    return choose.randint(0, 9) if column == "n" else f"long {choose.randint(0, 999)}"


def tables(seed: int, count: int, transactions: int) -> list[Deferred]:
    sources: list[Deferred] = []
    for h in range(count):
        source = Deferred(
            T, random.Random(f"{seed}/{h}"), value, {"h": h}, lsn=1_000_000 * (h + 1), commit=1_000_000 * (h + 1) - 10
        )
        for _ in range(transactions):
            source.transaction()
        sources.append(source)
    return sources


SEQUENCES: dict[str, Callable[[int, int], str]] = {
    "debezium": lambda commit, lsn: upgraded(f"{commit:020}/{lsn:020}"),
    # With B lines, which have the LSN of the commit: after the changes, but here the previous commit.
    "wal2json-v2": lambda commit, lsn: f"{commit:016X}/{lsn:016X}",
    "wal2json-v2 with xids": lambda commit, lsn: f"{lsn:016X}/x{commit % 10**10:010}",
}


def rows_after(lake: Lake, events: Sequence[Event], name: str = "debezium") -> Counter[Any]:
    """Return the rows that `states` computes from events in this order of arrival."""
    sequence = SEQUENCES[name]
    data = [
        (
            e.row.get("h"), e.row["k"], None if e.op == "d" else e.row["n"],
            None if e.op == "d" or "name" in e.absent else e.row["name"], OPS[e.op],
            sequence(*e.sequence), i, 0, list(e.absent) or None,
        )
        for i, e in enumerate(events)
    ]  # fmt: skip
    frame = rows_in_memory(lake.spark(), data, SCHEMA)
    rows = states(frame, T.key, list(T.columns), Ordering.of(event_format(name.split()[0])), omits_values=True)
    last = rows.groupBy("h", "k").agg(
        F.max_by(F.struct(*T.columns), order()).alias("row"), F.max_by(PRESENT, order()).alias("there")
    )
    return Counter(tuple(r) for r in last.where("there").select("row.*").collect())


def source_rows(sources: Sequence[Deferred]) -> Counter[Any]:
    return Counter((s.part["h"], r["k"], r["n"], r["name"]) for s in sources for r in s.rows)


def check(lake: Lake, seed: int, name: str = "debezium") -> None:
    choose = random.Random(seed)
    sources = tables(seed, 40, 12)
    events = [e for s in sources for e in s.log]
    again = choose.sample(events, len(events) // 10)
    arrived = [*events, *again]
    choose.shuffle(arrived)
    assert rows_after(lake, arrived, name) == source_rows(sources), f"seed {seed}"


@pytest.mark.parametrize("name", [n if n == "debezium" else pytest.param(n, marks=pytest.mark.long) for n in SEQUENCES])
def test_rows_that_shift_rotate_and_swap_are_where_the_source_has_them(spark_lake: Lake, name: str) -> None:
    check(spark_lake, 1, name)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(2, 4))
def test_rows_are_where_any_transactions_leave_them(spark_lake: Lake, seed: int) -> None:
    check(spark_lake, seed)


def test_each_statement_alone(spark_lake: Lake) -> None:
    sources: list[Deferred] = []
    names = ("shift_up", "shift_down", "rotate", "swap", "swap_through", "again", "chain")
    for h, name in enumerate(names):
        source = Deferred(
            T, random.Random(h), value, {"h": h}, lsn=1_000_000 * (h + 1), commit=1_000_000 * (h + 1) - 10
        )
        for k in range(1, 5):
            source._insert(k)  # pyright: ignore[reportPrivateUsage]
        source.commit = source.lsn
        getattr(source, name)()
        sources.append(source)
    assert rows_after(spark_lake, [e for s in sources for e in s.log]) == source_rows(sources)


def test_keys_that_are_taken_and_left_within_a_transaction_are_found(spark_lake: Lake) -> None:
    data = [
        (0, 1, "delete", "1/1"), (0, 2, "insert", "1/1"), (0, 2, "delete", "1/2"), (0, 3, "insert", "1/2"),
        (0, 4, "insert", "1/3"), (0, 4, "delete", "2/4"),
    ]  # fmt: skip
    rows = [
        (h, k, None, None, op, upgraded("/".join(f"{int(n):020}" for n in s.split("/"))), i, 0, None)
        for i, (h, k, op, s) in enumerate(data)
    ]
    frame = rows_in_memory(spark_lake.spark(), rows, SCHEMA)
    keys = entangled(frame, T.key, Ordering.of(event_format("debezium"))).collect()
    assert [tuple(r) for r in keys] == [(0, 2)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_transactions_where_its_sequences_can_tell_them(name: str) -> None:
    ordering = Ordering.of(event_format(name))
    assert ordering.has_transactions == ("_sequence" in ordering.transaction)
    assert ordering.has_transactions == (name in ("debezium", "wal2json-v1", "wal2json-v2"))

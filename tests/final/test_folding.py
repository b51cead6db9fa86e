"""Events that later ones have superseded: without them, and with whatever arrives later, rows are what they would be."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Lake
from lake_assets.errors import Refused
from lake_assets.final.events.folding import superseded
from lake_assets.final.events.key_changes import PRESENT, certain_changes, states
from lake_assets.final.events.reduction import order
from lake_assets.final.ordering import Ordering
from lake_assets.formats import event_format
from lake_assets.formats.event_model import INDEX, OP, POSITION, SEQUENCE
from lake_assets.formats.log_positions import upgraded
from lake_assets.lake.rows_in_memory import rows_in_memory
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table
from tests.support.deferred import Deferred
from tests.support.histories import Source
from tests.support.seeds import long_seeds

T = Table({"h": INT, "k": BIGINT, "n": INT, "name": TEXT, "note": TEXT}, key=("h", "k"))
SCHEMA = (
    f"h INT, k BIGINT, n INT, name STRING, note STRING, {OP} STRING, {SEQUENCE} STRING, {POSITION} BIGINT, "
    f"{INDEX} INT, _unavailable ARRAY<STRING>, late BOOLEAN"
)
OPS = {"c": "insert", "u": "update", "d": "delete", "r": "read"}
ORDERING = Ordering.of(event_format("debezium"))


def value(choose: random.Random, column: str) -> Any:
    return choose.randint(0, 9) if column == "n" else f"long {choose.randint(0, 999)}"


class Calm(Source):
    """A source with one change a transaction, most of them updates."""

    def transaction(self, keys: Sequence[tuple[Any, ...]]) -> None:
        key = self.choose.choice(keys)
        if (held := self.rows.get(key)) is None or self.choose.random() < 0.15:
            self._change(key, keys)
        else:
            kept = self._left_out()
            self.rows[key] = {**self._new(dict(zip(T.key, key, strict=True))), **{c: held[c] for c in kept}}
            self._write("u", self.rows[key], kept)
        self.commit = self.lsn


def log_of(choose: random.Random, h: int) -> list[Event]:
    """The events of a few keys: some of a table whose keys move within transactions, most of one with omitted values."""
    if h % 4 == 0:
        table = Table({"h": INT, "k": BIGINT, "n": INT, "name": TEXT}, key=("h", "k"))
        deferred = Deferred(table, choose, value, {"h": h}, lsn=1_000_000 * (h + 1), commit=1_000_000 * (h + 1) - 10)
        for _ in range(8):
            deferred.transaction()
        return deferred.log
    toasted = frozenset({"name", "note"}) if h % 4 < 3 else frozenset[str]()
    kind = Source if h % 8 == 1 else Calm
    source = kind(T, choose, value, toasted, lsn=1_000_000 * (h + 1), commit=1_000_000 * (h + 1) - 10)
    for _ in range(16 if kind is Source else 50):
        source.transaction([(h, k) for k in range(3 if h % 2 else 1)])
    return source.log


def arrivals(choose: random.Random, log: Sequence[Event]) -> list[tuple[Event, bool]]:
    """The events as they arrive, each with whether it comes after the old ones were folded.

    Most come a little out of order, some twice. Some come very late: not those of a transaction in which a key changes,
    whose halves belong together.
    """
    moves = {e.sequence[0] for e in log if e.op in "cr" and e.absent}
    cut = choose.randrange(len(log) + 1)
    arrived: list[tuple[float, Event, bool]] = []
    for n, e in enumerate(log):
        is_whole = e.sequence[0] not in moves
        late = n >= cut or (is_whole and choose.random() < 0.15)
        arrived.append((n + (choose.uniform(0, 4) if is_whole else 0) + (1000 if late else 0), e, late))
        if choose.random() < 0.1:
            arrived.append((n + 0.5 + (choose.uniform(500, 2000) if choose.random() < 0.5 or late else 0), e, late))
    ends = [e.sequence[0] for e in log[:cut]]
    # A transaction that is cut arrives with the later ones.
    arrived = [(at + (1000 if (cut_ := e.sequence[0] == ends[-1]) else 0), e, late or cut_) if ends else (at, e, late)
               for at, e, late in arrived]  # fmt: skip
    return [(e, late) for _, e, late in sorted(arrived, key=lambda a: a[0])]


def frame_of(lake: Lake, arrived: Sequence[tuple[Event, bool]]) -> DataFrame:
    data = [
        (
            e.row.get("h"), e.row["k"],
            *(None if e.op == "d" or c in e.absent else e.row.get(c) for c in ("n", "name", "note")), OPS[e.op],
            upgraded(f"{e.sequence[0]:020}/{e.sequence[1]:020}"), i, 0, list(e.absent) or None, late,
        )
        for i, (e, late) in enumerate(arrived)
    ]  # fmt: skip
    return rows_in_memory(lake.spark(), data, SCHEMA)


def rows_after(events: DataFrame, *, with_deleted: bool) -> Counter[Any]:
    rows = states(events.drop("late"), T.key, list(T.columns), ORDERING, omits_values=True)
    last = rows.groupBy("h", "k").agg(
        F.max_by(F.struct(*T.columns), order()).alias("row"), F.max_by(PRESENT, order()).alias("there")
    )
    found = last if with_deleted else last.where("there")
    return Counter((r["there"], *r["row"]) for r in found.collect())


def folded(events: DataFrame, *, is_reset: bool) -> DataFrame:
    gone = superseded(events.where("NOT late"), T.key, ORDERING, "true", is_reset=is_reset)
    assert not isinstance(gone, Refused)
    return events.join(gone, [POSITION, INDEX], "left_anti")


@pytest.mark.parametrize("is_reset", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", [1, *long_seeds(2, 8)])
def test_whatever_arrives_later_rows_are_the_same(spark_lake: Lake, seed: int, is_reset: bool) -> None:
    arrived: list[tuple[Event, bool]] = []
    for h in range(5 if seed == 1 else 60):
        choose = random.Random(f"{seed}/{h}")
        arrived += arrivals(choose, log_of(choose, h))
    events = frame_of(spark_lake, arrived).persist()
    kept = folded(events, is_reset=is_reset).persist()
    assert kept.where("NOT late").count() < 0.8 * events.where("NOT late").count()
    assert rows_after(kept, with_deleted=not is_reset) == rows_after(events, with_deleted=not is_reset)
    # Nothing is left to fold.
    assert folded(kept, is_reset=is_reset).count() == kept.count()
    events.unpersist()
    kept.unpersist()


def test_one_event_of_a_key_remains_and_what_it_omits(spark_lake: Lake) -> None:
    def event(op: Any, at: int, k: int, *absent: str, **row: Any) -> tuple[Event, bool]:
        return Event(
            T, op, (at, at), {"h": 0, "k": k, "n": at, "name": "x", "note": "y", **row}, frozenset(absent)
        ), False

    arrived = [
        *(event("c" if n == 1 else "u", n, 1) for n in range(1, 6)),
        event("c", 11, 2), event("u", 12, 2, "name"), event("u", 13, 2, "name", "note"), event("u", 14, 2, "name"),
        event("c", 21, 3), event("d", 22, 3), event("u", 23, 3, "name"), event("u", 24, 3, "name"),
        event("c", 31, 4), event("u", 32, 4), event("d", 33, 4),
        # Arrived before what is before it at the source: a tombstone would come after the other one.
        event("u", 42, 5), event("c", 41, 5),
        # All that tells that 6 and 7 were keys of one row.
        event("c", 51, 6), event("d", 52, 6), event("c", 52, 7), event("u", 53, 7), event("c", 54, 6),
    ]  # fmt: skip
    events = frame_of(spark_lake, arrived)

    def left(*, is_reset: bool) -> list[int]:
        return sorted(int(r[0].split("/")[1]) for r in folded(events, is_reset=is_reset).select(SEQUENCE).collect())

    assert left(is_reset=True) == [5, 11, 14, 22, 24, 33, 41, 42, 52, 52, 53, 54]
    assert left(is_reset=False) == [5, 11, 14, 21, 22, 24, 32, 33, 41, 42, 52, 52, 53, 54]


def test_rows_of_one_statement_that_share_a_place_are_told_apart(spark_lake: Lake) -> None:
    place = "b0000000003/00000000000000000300/bin"
    rows = [
        (op, k + moved, 3 * k + 2 * moved // 10) for k in (1, 2, 3) for op, moved in (("delete", 0), ("insert", 10))
    ]
    schema = f"{OP} STRING, k BIGINT, {POSITION} BIGINT, {SEQUENCE} STRING, {INDEX} INT"
    events = rows_in_memory(spark_lake.spark(), [(*row, place, 0) for row in rows], schema)
    found = certain_changes(events, ("k",), ORDERING).select("old.k0", "new.k0").collect()
    assert sorted(map(tuple, found)) == [(1, 11), (2, 12), (3, 13)]


@pytest.mark.long  # as one event of a key, and of a transaction
def test_what_is_needed_of_few_events(spark_lake: Lake) -> None:
    def events(*log: tuple[Any, int, int], absent: frozenset[str] = frozenset()) -> DataFrame:
        rows = [Event(T, op, (n, n), {"h": 0, "k": k, "n": n, "name": "", "note": ""}) for op, n, k in log]
        moved = [e if e.key == (0, 1) else replace(e, absent=absent) for e in rows]
        return frame_of(spark_lake, [(e, False) for e in moved])

    def gone(rows: DataFrame, ordering: Ordering = ORDERING, *, is_old: str = "true", is_reset: bool = True) -> int:
        found = superseded(rows, T.key, ordering, is_old, is_reset=is_reset)
        assert not isinstance(found, Refused)
        return found.count()

    changed = events(("c", 1, 1), ("u", 2, 1))
    assert gone(changed) == 1
    assert gone(changed, is_old=f"{POSITION} < 1") == 0
    # Which of several changes in one place comes last is known only while all are there.
    assert gone(changed.withColumn(SEQUENCE, F.lit("b0000000003/00000000000000000300/bin"))) == 0
    # A deleted row keeps its values, if it stays.
    deleted = events(("c", 1, 1), ("d", 2, 1))
    assert (gone(deleted), gone(deleted, is_reset=False)) == (1, 0)
    # The halves of a key change are found by their places where no number tells.
    log = events(("c", 1, 1), ("d", 2, 1), ("c", 2, 2), ("u", 3, 2), absent=frozenset({"name"}))
    assert gone(log, Ordering.declared()) == 0


def test_what_decides_the_rows_of_a_transaction_remains(spark_lake: Lake) -> None:
    def event(op: Any, tx: int, at: int, k: int, *absent: str, late: bool = False) -> tuple[Event, bool]:
        return Event(
            T, op, (tx, at), {"h": 0, "k": k, "n": at, "name": f"of {at}", "note": ""}, frozenset(absent)
        ), late

    events = frame_of(spark_lake, [
        # Another row gets the key before the first one loses it.
        event("c", 1, 2, 1), event("c", 10, 11, 1), event("d", 10, 12, 1), event("u", 20, 21, 1, "name"),
        # The key goes to another row, which is deleted; half of the transaction is late, and so was the event before.
        event("d", 10, 13, 2), event("c", 10, 14, 2), event("u", 1, 3, 2), event("d", 10, 15, 2, late=True),
        # A row has a value from under its former key.
        event("c", 30, 31, 3), event("d", 32, 33, 3), event("c", 32, 33, 4, "name"), event("u", 34, 35, 4, "name"),
    ])  # fmt: skip
    expected = Counter([(True, 0, 1, 21, "of 11", ""), (True, 0, 4, 35, "of 31", "")])
    assert rows_after(events, with_deleted=False) == expected
    assert rows_after(folded(events, is_reset=True), with_deleted=False) == expected


def test_while_half_of_a_key_change_is_missing_nothing_is_superseded(spark_lake: Lake) -> None:
    rows = [Event(T, "u", (n, n), {"h": 0, "k": 1, "n": n, "name": "x", "note": ""}) for n in (1, 2)]
    moved = Event(T, "c", (3, 3), {"h": 0, "k": 2, "n": 1, "name": "x", "note": ""}, frozenset({"name"}))
    events = frame_of(spark_lake, [(e, False) for e in (*rows, moved)])
    gone = superseded(events, T.key, ORDERING, "true", is_reset=True)
    assert isinstance(gone, Refused)
    assert "1 inserts omit values" in gone.reason

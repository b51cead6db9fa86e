"""Final tables of every kind, over one staging table: whatever arrives, in whatever batches and order, each holds what
plain Python makes of the events."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lake_assets import Lake
from lake_assets.errors import UnsupportedEventError
from lake_assets.lake import TableId
from lake_assets.merge.final import absorb_changes
from lake_assets.merge.specs import FinalSpec
from lake_assets.merge.target import Target
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table
from tests.support.deferred import Deferred
from tests.support.histories import Batches, Source, redelivered, shuffled, split
from tests.support.oracle import Rows, final_rows, rows_of, versions
from tests.support.streams import Feed, pipeline

T = Table({"h": INT, "k": BIGINT, "n": INT, "name": TEXT}, key=("h", "k"))
NAMES = list(T.columns)
START = 1_700_000_000_000

SPECS: dict[str, dict[str, Any]] = {
    "hard": {},
    "soft": {"deletes": "soft"},
    "ignored": {"deletes": "ignore"},
    "versions": {"mode": "scd2"},
    "versions_of_n": {"mode": "scd2", "track": ("n",)},
}


def value(choose: random.Random, column: str) -> Any:
    return choose.randint(-3, 3) if column == "n" else choose.choice(["", "a", "it's", "\\", "ü😀", "long " * 5])


def expected(kind: str, delivered: list[Event]) -> Rows:
    match kind:
        case "hard":
            return final_rows(delivered, NAMES)
        case "soft":
            return final_rows(delivered, [*NAMES, "__deleted"], "soft")
        case "ignored":
            return final_rows(delivered, NAMES, "ignore")
        case "versions":
            return versions(delivered, NAMES)
        case _:
            return versions(delivered, NAMES, ["n"])


class Tables:
    """Final tables of several kinds, of one stream."""

    def __init__(self, lake: Lake, kinds: list[str]) -> None:
        self.lake, self.kinds = lake, kinds
        self.feed = Feed(lake, {"table": "public.t", "final": False})
        self.delivered: list[Event] = []

    def spec(self, kind: str) -> FinalSpec:
        return FinalSpec(TableId(("final",), kind), TableId(("staging",), "t"), "made_up", **SPECS[kind])

    def deliver(self, batch: list[Event]) -> None:
        self.delivered += batch
        self.feed.deliver(batch)
        for kind in self.kinds:
            outcome = absorb_changes(self.lake, self.spec(kind))
            if self.delivered:
                self.compare(kind, f"{outcome.why}, {outcome.details}")

    def compare(self, kind: str, said: str) -> None:
        rows = self.feed.rows(f"final.{kind}")
        own = {"soft": ["__deleted"], "versions": ["effective_from", "effective_to", "is_current"]}
        columns = [*NAMES, *own.get(kind.removesuffix("_of_n"), [])]
        found, wanted = rows_of(rows, columns), expected(kind, self.delivered)
        if found == wanted:
            return
        wrong = {row[:2] for row in (wanted - found) + (found - wanted)}
        at = min(wrong)
        events = [f"  {n} {e.sequence} {e.op} {dict(e.row)} without {set(e.absent)} at {e.time}"
                  for n, e in enumerate(self.delivered) if e.op == "t" or (e.key in wrong and e.key[0] == at[0])]  # fmt: skip
        mine = [sorted(map(str, (r for r in rows.elements() if r[:2] == at))) for rows in (wanted, found)]
        raise AssertionError("\n".join([f"{kind}: {at} of {len(wrong)}; {said}", f"expected {mine[0]}",
                                        f"found {mine[1]}", "as delivered:", *events]))  # fmt: skip


def source(choose: random.Random, **options: Any) -> Source:
    return Source(T, choose, value, frozenset({"name"}), **options)


def keys(h: int) -> list[tuple[Any, ...]]:
    return [(h, k) for k in range(3)]


def unsteady(choose: random.Random) -> Callable[[int], int]:
    """A clock with ties that steps back now and then."""
    return lambda lsn: START + random.Random(lsn).choice([lsn // 40 * 40, lsn // 40 * 40, lsn - 60])


def transactions(choose: random.Random, made: Source, count: int, histories: int = 20) -> list[Event]:
    for _ in range(count):
        made.transaction(keys(choose.randrange(histories)))
    return made.log


def in_order(choose: random.Random) -> Batches:
    return split(choose, transactions(choose, source(choose), 80), 3)


def scattered(choose: random.Random) -> Batches:
    """Late, early, repeated, of a source whose clock is not steady."""
    log = transactions(choose, source(choose, clock=unsteady(choose)), 80)
    return redelivered(choose, shuffled(choose, split(choose, log, 3)))


def emptied(choose: random.Random) -> Batches:
    made = source(choose)
    for n in range(1, 40):
        made.transaction(keys(choose.randrange(6)))
        if n % 15 == 0:
            made.truncate()
    return redelivered(choose, shuffled(choose, split(choose, made.log, 3)))


def shifted(choose: random.Random) -> Batches:
    """Keys that rows take over from each other within a transaction; batches cut transactions in two."""
    log: list[Event] = []
    for h in range(12):
        made = Deferred(T, choose, value, {"h": h}, lsn=1_000_000 * (h + 1), commit=1_000_000 * (h + 1) - 10)
        for _ in range(8):
            made.transaction()
        log += made.log
    return split(choose, log, 3)


def shifted_and_scattered(choose: random.Random) -> Batches:
    return redelivered(choose, shuffled(choose, shifted(choose)))


KINDS = [in_order, scattered, emptied, shifted, shifted_and_scattered]
QUICK = [
    (scattered, ["soft", "ignored", "versions_of_n"]),
    (emptied, ["soft", "versions"]),
    (shifted, ["hard", "versions"]),
]


@pytest.mark.parametrize(("kind", "tables"), QUICK)
def test_tables_of_every_kind_are_what_the_events_make_of_them(
    lake: Lake, kind: Callable[[random.Random], Batches], tables: list[str]
) -> None:
    made = Tables(lake, tables)
    for batch in kind(random.Random(kind.__name__)):
        made.deliver(batch)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_every_kind_are_what_any_events_make_of_them(
    new_lake: Callable[[str], Lake], kind: Callable[[random.Random], Batches]
) -> None:
    @settings(
        max_examples=20, deadline=None, phases=[Phase.reuse, Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(seed=st.integers(0, 2**63))
    def run(seed: int) -> None:
        examples.append(seed)
        made = Tables(new_lake(f"{kind.__name__}{len(examples)}"), list(SPECS))
        for batch in kind(random.Random(seed)):
            made.deliver(batch)

    examples: list[int] = []
    run()


# --- declarations -----------------------------------------------------------------------------------------------


def write(sequence: int, op: Any, k: int, n: int = 0) -> Event:
    return Event(T, op, (sequence, sequence + 1), {"h": 1, "k": k, "n": n, "name": "a"}, time=START + sequence)


def test_a_table_of_inserts_refuses_or_ignores_what_is_none(lake: Lake) -> None:
    feed = Feed(lake, {"table": "public.t", "mode": "append"})
    first = [write(10, "c", 1), write(20, "c", 2)]
    feed.deliver(first)
    feed.land([write(30, "u", 1, 5), write(40, "c", 3), *first])
    outcome = feed.outcomes()["final.t"]
    assert isinstance(outcome.exception, UnsupportedEventError)
    assert "on_change: ignore" in (outcome.error or "")
    feed.pipeline = pipeline({"table": "public.t", "mode": "append", "on_change": "ignore"})
    outcome = feed.run()["final.t"]
    assert outcome.details == {"events": 4, "ignored": 1}
    assert rows_of(feed.rows("final.t"), ["k", "n"]) == Counter({(1, 0): 1, (2, 0): 1, (3, 0): 1})


def test_a_table_that_is_declared_otherwise_is_made_again_from_staging(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    events = [write(10, "c", 1), write(20, "u", 1, 5), write(30, "c", 2), write(40, "d", 2)]
    feed.deliver(events)
    for options, columns, expected_rows in (
        ({"deletes": "soft"}, [*NAMES, "__deleted"], final_rows(events, [*NAMES, "__deleted"], "soft")),
        ({"mode": "scd2"}, [*NAMES, "effective_from", "effective_to", "is_current"], versions(events, NAMES)),
        ({}, NAMES, final_rows(events, NAMES)),
    ):
        feed.pipeline = pipeline({"table": "public.t", **options})
        before = feed.lake.table("final.t").metadata.table_uuid
        assert feed.run()["final.t"].strategy == "rebuild"
        assert rows_of(feed.rows("final.t")) == rows_of(feed.rows("final.t"), columns) == expected_rows
        assert feed.lake.table("final.t").metadata.table_uuid == before
        assert {o.status for o in feed.run().values()} == {"nothing"}
    events.append(write(50, "u", 1, 7))
    feed.deliver(events[-1:])
    assert rows_of(feed.rows("final.t"), NAMES) == final_rows(events, NAMES)


def test_a_step_that_is_killed_before_its_commit_is_done_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tables(lake, [])
    batches = scattered(random.Random(7))[:2]
    for batch in batches:
        made.deliver(batch)
        for kind in ("soft", "versions"):
            with monkeypatch.context() as patch:
                patch.setattr(Target, "merge", _killed)
                with pytest.raises(KeyboardInterrupt):
                    absorb_changes(lake, made.spec(kind))
            absorb_changes(lake, made.spec(kind))
            made.compare(kind, "after a kill")


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt

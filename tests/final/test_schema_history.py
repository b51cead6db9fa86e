"""Final tables of a source whose columns are added, dropped, widened and renamed during its history."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import LakeError
from lake_assets.final.column_selection import read_columns
from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake import TableId
from lake_assets.tables.partitioning.partition_fields import PartitionField
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table
from tests.support.final_kinds import START, keys, value
from tests.support.histories import Batches, Source, redelivered, shuffled, split
from tests.support.item_events import debezium
from tests.support.item_stream import ITEMS, Stream
from tests.support.oracle import Rows, final_rows, happened, rows_of, versions
from tests.support.seeds import any_seed
from tests.support.streams import Feed, absorb_changes, pipeline

T = Table({"h": INT, "k": BIGINT, "n": INT, "name": TEXT, "gone": INT}, key=("h", "k"))
RENAME = {"name": "title"}
HORIZON = 0.3
KINDS: dict[str, dict[str, Any]] = {
    "hard": {},
    "soft": {"deletes": "soft"},
    "versions": {"mode": "scd2"},
    "parts": {"partition_by": (PartitionField("n"),), "write": "overwrite-partitions"},
    "made": {},
}
OWN = {"soft": ["__deleted"], "versions": ["effective_from", "effective_to", "is_current"]}


def anything(choose: random.Random, column: str) -> Any:
    if column in ("n", "x", "gone"):
        return choose.randint(-3, 3)
    return value(choose, column)


def changing(choose: random.Random, transactions: int = 15) -> Batches:
    """Return a history in parts, with one column change after each part, in any order."""
    source = Source(T, choose, anything, frozenset({"name"}))
    changes = choose.sample(["add", "drop", "widen", "rename"], 4)
    for what in [*changes, None]:
        for _ in range(transactions):
            source.transaction(keys(choose.randrange(8)))
        columns = dict(source.table.columns)
        if what == "add":
            columns["x"] = INT
        elif what == "drop":
            del columns["gone"]
            source.rows = {k: {c: v for c, v in r.items() if c != "gone"} for k, r in source.rows.items()}
        elif what == "widen":
            columns["n"] = BIGINT
        elif what == "rename":
            columns = {RENAME.get(c, c): s for c, s in columns.items()}
            source.rows = {k: {RENAME.get(c, c): v for c, v in r.items()} for k, r in source.rows.items()}
            source.toasted = frozenset({"title"})
        source.table = replace(source.table, columns=columns)
    return redelivered(choose, shuffled(choose, split(choose, source.log, 3)))


def renamed(event: Event) -> Event:
    """Return the event with the new name of the column."""
    columns = {RENAME.get(c, c): s for c, s in event.table.columns.items()}
    row = {RENAME.get(c, c): v for c, v in event.row.items()}
    absent = frozenset(RENAME.get(c, c) for c in event.absent)
    return replace(event, table=replace(event.table, columns=columns), row=row, absent=absent)


class Tables:
    """Final tables of a stream whose rename is declared at some point."""

    def __init__(self, lake: Lake, kinds: list[str]) -> None:
        self.lake, self.kinds, self.declared = lake, kinds, False
        self.feed = Feed(lake, {"table": "public.t", "final": False})
        self.delivered: list[Event] = []

    def declare(self) -> None:
        self.declared = True
        self.feed.pipeline = pipeline({"table": "public.t", "final": False, "rename": RENAME})

    @property
    def name(self) -> str:
        """Return the name of the renamed column."""
        return "title" if self.declared or not any("name" in e.table.columns for e in self.delivered) else "name"

    def spec(self, kind: str) -> FinalSpec:
        options = dict(KINDS[kind])
        if kind == "made":
            name = self.name
            options["columns"] = read_columns([f"* EXCEPT ({name})", f"upper({name}) AS loud"])
        return FinalSpec(
            TableId(("final",), kind), TableId(("staging",), "t"), "made_up", horizon=HORIZON,
            rename=RENAME if self.declared else {}, **options,
        )  # fmt: skip

    def deliver(self, batch: list[Event]) -> None:
        latest = max((happened(e) for e in self.delivered), default=None)
        self.delivered += batch
        self.feed.deliver(batch)
        if not self.delivered:
            return
        for kind in self.kinds:
            outcome = absorb_changes(self.lake, self.spec(kind))
            rows = self.feed.rows(f"final.{kind}")
            names = [c for c in rows.columns if c not in OWN.get(kind, [])]
            context = f"{kind}, declared: {self.declared}; {outcome.strategy}: {outcome.why}, {outcome.details}"
            expected_rows = self.expected(kind, names)
            assert {*names} == self.columns(kind), context
            assert rows_of(rows, [*names, *OWN.get(kind, [])]) == expected_rows, context
            if outcome.strategy != "rebuild" and latest is not None:
                old = sum((latest - happened(e)).total_seconds() > HORIZON for e in batch)
                assert outcome.details.get("older_than_horizon", 0) == old, context

    def columns(self, kind: str) -> set[str]:
        existing = {c for e in self.events for c in e.table.columns}
        return existing - {self.name} | {"loud"} if kind == "made" else existing

    @property
    def events(self) -> list[Event]:
        events = [renamed(e) for e in self.delivered] if self.declared else self.delivered
        every = {c: s for e in events for c, s in e.table.columns.items()}
        # Values that an insert omits are null; values that an update omits are unchanged.
        whole = (replace(e.table, columns=every) for e in events)
        return [replace(e, table=t) if e.op in "cr" else e for e, t in zip(events, whole, strict=True)]

    def expected(self, kind: str, names: list[str]) -> Rows:
        name = self.name

        def made(row: dict[str, Any]) -> dict[str, Any]:
            return {**row, "loud": None if row.get(name) is None else row[name].upper()}

        if kind == "versions":
            return versions(self.events, names)
        return final_rows(self.events, [*names, *OWN.get(kind, [])], "soft" if kind == "soft" else "hard", made)


def run(lake: Lake, choose: random.Random, kinds: list[str]) -> None:
    world, batches = Tables(lake, kinds), changing(choose)
    declared = choose.randint(0, len(batches))
    for n, batch in enumerate(batches):
        if n == declared:
            world.declare()
        world.deliver(batch)
    if not world.declared:
        world.declare()
        world.deliver([])


@pytest.mark.long
@pytest.mark.parametrize("kinds", [["made"], pytest.param(["hard", "made"], marks=pytest.mark.long)])
def test_tables_follow_any_changes_of_columns(lake: Lake, kinds: list[str]) -> None:
    run(lake, random.Random(3), kinds)


@pytest.mark.long
def test_versions_that_a_rename_makes_the_same_become_one(lake: Lake) -> None:
    """For a key without events after the rename was declared."""
    run(lake, random.Random(337), ["versions"])


@pytest.mark.long
def test_tables_follow_any_changes_of_columns_in_many_histories(new_lake: Callable[[str], Lake]) -> None:
    @any_seed(5)
    def each(seed: int) -> None:
        examples.append(seed)
        run(new_lake(f"l{len(examples)}"), random.Random(seed), list(KINDS))

    examples: list[int] = []
    each()


# --- downstream -------------------------------------------------------------------------------------------------


def write(at: int, op: Any, k: int, n: int) -> Event:
    return Event(T, op, (at, at + 1), {"h": 1, "k": k, "n": n, "name": "a", "gone": 0}, time=START + at)


@pytest.mark.long
def test_a_model_follows_a_table_that_is_made_again_with_other_columns(lake: Lake) -> None:
    query = "SELECT n, count(*) AS c, sum(k) AS s FROM final.t GROUP BY n"
    models = [{"name": "agg.m", "sql": query}]

    def declare(**options: Any) -> None:
        feed.pipeline = pipeline({"table": "public.t", **options}, models=models)

    feed = Feed(lake, "public.t", models=models)
    feed.deliver([write(10, "c", 1, 1), write(20, "c", 2, 1), write(30, "c", 3, 2)])
    for at, options in ((40, {"columns": "* EXCEPT (name), k % 2 AS odd"}), (50, {"deletes": "soft"}), (60, {})):
        declare(**options)
        outcomes = feed.deliver([write(at, "u", 1, at)])
        assert outcomes["final.t"].strategy == "rebuild"
        assert rows_of(feed.rows("agg.m")) == rows_of(lake.spark().sql(query)) == Counter({(1, 1, 2): 1, (2, 1, 3): 1, (at, 1, 1): 1})  # fmt: skip
        assert {o.status for o in feed.run().values()} == {"nothing"}
    # If a column that the model reads is missing, the model keeps its rows and reports the error.
    before = rows_of(feed.rows("agg.m"))
    declare(columns="* EXCEPT (n)")
    outcome = feed.outcomes()["agg.m"]
    assert isinstance(outcome.exception, LakeError), outcome.error
    assert "n" in (outcome.error or "")
    assert rows_of(feed.rows("agg.m")) == before


@pytest.mark.long
def test_whole_rows_after_a_dropped_column(lake: Lake) -> None:
    """Earlier rows are not recognized and remain; later rows are exact."""
    stream = Stream(lake, tables=[{"table": ITEMS, "key": "*", "types": {"n": "int", "name": "string"}}])
    old = [{"n": n, "name": "a"} for n in range(3)]
    stream.run(*(line for at, row in enumerate(old, 1) for line in debezium(at, "c", None, row)))
    now = [{"n": n} for n in range(10, 13)]
    stream.run(
        *(line for at, row in enumerate(now, 10) for line in debezium(at, "c", None, row)),
        *debezium(20, "u", {"n": 0}, {"n": 20}),
        *debezium(21, "d", {"n": 1}, None),
        *debezium(22, "u", {"n": 11}, {"n": 21}),
        *debezium(23, "d", {"n": 12}, None),
    )
    assert stream.rejected() == []
    actual = Counter((r["n"], r["name"]) for r in stream.rows("final.items"))
    assert actual == Counter([*((n, "a") for n in range(3)), (10, None), (20, None), (21, None)])

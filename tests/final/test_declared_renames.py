"""A rename that is declared before, between or after the events that it is about: the table is equal to its source."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.health.table_status import table_status
from lake_assets.ingest.staging.exactness import reasons_of
from lake_assets.lake import TableId
from lake_assets.pipeline.verification import verify
from tests.support.debezium import BIGINT, TEXT, Event, Table
from tests.support.item_stream import Stream
from tests.support.oracle import rows_of
from tests.support.renames import LAST, MODES, Renamed
from tests.support.seeds import seeds
from tests.support.streams import Feed, pipeline

FINAL = TableId.parse("final.t")
CITY, TOWN, PLACE = (Table({"id": BIGINT, name: TEXT}) for name in ("city", "town", "place"))


def event(table: Table, op: Any, at: int, **row: Any) -> Event:
    return Event(table, op, (at, at + 1), row)


def declare(feed: Feed, **rename: str) -> None:
    feed.pipeline = pipeline({"table": "public.t", "rename": rename})


def is_verified(feed: Feed, table: str = "final.t") -> bool:
    return verify(feed.lake, next(s for s in feed.pipeline.specs(feed.lake) if str(s.table) == table)).equal


@pytest.mark.long  # any history has such nulls
def test_a_null_under_the_new_name_wins_over_a_value_under_the_old_one(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    feed.deliver([event(CITY, "c", 10, id=1, city="A"), event(CITY, "c", 12, id=2, city="A")])
    outcomes = feed.deliver([event(TOWN, "u", 20, id=1, town="B"), event(TOWN, "u", 30, id=1, town=None)])
    # Row 2 has not changed since: its value is in the old column.
    assert "declare `rename: {city: town}`" in outcomes["final.t"].details["not_exact"][0]
    outcomes = feed.deliver([event(TOWN, "u", 40, id=2, town=None)])
    assert "not_exact" not in outcomes["final.t"].details
    assert reasons_of(lake, FINAL) == table_status(lake, FINAL).not_exact == []
    declare(feed, city="town")
    # At once, without a new event.
    feed.run()
    expected: Counter[Any] = Counter({(1, None): 1, (2, None): 1})
    assert feed.rows("final.t").columns == ["id", "town"]
    assert rows_of(feed.rows("final.t")) == expected
    assert {o.status for o in feed.run().values()} == {"nothing"}
    feed.deliver([event(TOWN, "c", 50, id=3, town="C")])
    assert rows_of(feed.rows("final.t")) == expected + Counter({(3, "C"): 1})
    assert is_verified(feed)


def test_a_rename_of_a_quiet_table_applies_at_once_and_only_changes_the_name(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    feed.deliver([event(CITY, "c", 10, id=1, city="A")])
    files = {f.file.file_path for f in lake.table("staging.t").scan().plan_files()}
    declare(feed, city="town")
    assert {p.table for p in feed.pipeline.pending(lake)} == {"staging.t"}
    outcomes = feed.run()
    assert outcomes["staging.t"].details["schema_changes"] == ["rename town string"]
    assert feed.rows("final.t").columns == ["id", "town"]
    assert rows_of(feed.rows("final.t")) == Counter({(1, "A"): 1})
    assert {f.file.file_path for f in lake.table("staging.t").scan().plan_files()} == files
    assert {o.status for o in feed.run().values()} == {"nothing"}
    assert is_verified(feed)


@pytest.mark.long
def test_a_chain_of_renames_is_declared_as_the_notices_say(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    feed.deliver([event(CITY, "c", n, id=n, city="A") for n in (1, 2, 3)])
    declare(feed, city="town")
    feed.deliver([event(TOWN, "u", 20, id=1, town=None)])
    outcomes = feed.deliver([event(PLACE, "u", 30, id=2, place="C")])
    (notice,) = outcomes["final.t"].details["not_exact"]
    assert "declare `rename: {city: town, town: place}`" in notice
    declare(feed, city="town", town="place")
    feed.run()
    for _ in range(2):
        assert rows_of(feed.rows("final.t")) == Counter({(1, None): 1, (2, "C"): 1, (3, "A"): 1})
        assert is_verified(feed)
        # A late event with the first name.
        feed.deliver([event(CITY, "u", 5, id=1, city="late")])


@pytest.mark.long
def test_a_table_whose_records_are_gone_is_renamed_in_place_and_says_so(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    feed.deliver([event(CITY, "c", n, id=n, city="A") for n in (1, 2)])
    feed.deliver([event(TOWN, "u", 20, id=1, town="B")])
    lake.spark().sql("DELETE FROM raw.events WHERE position < 2")
    declare(feed, city="town")
    outcomes = feed.run()
    assert rows_of(feed.rows("final.t")) == Counter({(1, "B"): 1, (2, "A"): 1})
    (reason,) = outcomes["final.t"].details["not_exact"]
    assert "raw.events no longer holds" in reason
    assert {o.status for o in feed.run().values()} == {"nothing"}
    feed.deliver([event(TOWN, "u", 30, id=2, town=None)])
    assert rows_of(feed.rows("final.t")) == Counter({(1, "B"): 1, (2, None): 1})
    assert is_verified(feed)


# --- any history ------------------------------------------------------------------------------------------------


def check(lake: Lake, choose: random.Random, modes: list[str]) -> None:
    """Deliver random histories, one per kind of table; the renames are declared at a random time."""
    tables = [Renamed(mode, choose) for mode in modes]
    batches = 3
    declared = choose.randint(0, batches)
    stream = Stream(lake, tables=[])
    for n in range(batches + 1):
        lines: list[str] = []
        for table in tables if n < batches else ():
            for _ in range(choose.randint(1, 2)):
                for _ in range(choose.randint(3, 8)):
                    table.change()
                table.alter()
            lines += table.lines
            table.lines = []
        stream.declare(tables=[t.declared(n >= declared) for t in tables])
        stream.run(*lines)
        if n >= declared:
            equal(stream, tables, f"batch {n}, declared before batch {declared}")
    assert stream.rejected() == []
    for table in tables:
        specs = {str(s.table): s for s in stream.pipeline.specs(lake)}
        assert verify(lake, specs[f"final.{table.mode}"]).equal, table.mode
        stream.pipeline.rebuild(lake, f"staging.{table.mode}")
    stream.run()
    equal(stream, tables, "rebuilt")


def equal(stream: Stream, tables: list[Renamed], context: str) -> None:
    for table in tables:
        rows = stream.lake.spark().table(f"lake.final.{table.mode}")
        columns = [c for c in rows.columns if c not in ("__row", "__copy")]
        last = {LAST.get(c, c) for c in columns}
        assert last == set(columns), (table.mode, context, columns)
        assert rows_of(rows, columns) == table.expected(columns), (table.mode, context)


@pytest.mark.long
@pytest.mark.parametrize("modes", [["versions"], pytest.param(list(MODES), marks=pytest.mark.long)])
def test_renames_declared_at_any_time_make_tables_equal_to_the_source(lake: Lake, modes: list[str]) -> None:
    check(lake, random.Random(1), modes)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(2, 2))
def test_renames_declared_at_any_time_make_tables_equal_in_many_histories(
    new_lake: Callable[[str], Lake], seed: int
) -> None:
    check(new_lake("l"), random.Random(seed), list(MODES))

"""What is known to be inexact is said by outcomes, by `status` and with assets, for as long as it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.formats.event_model import EventColumn, EventPlan, Planned
from lake_assets.health.table_status import table_status
from lake_assets.ingest.records.parsing import unreported
from lake_assets.ingest.staging.exactness import reasons_of
from lake_assets.lake import TableId
from lake_assets.orchestration.asset_metadata import of_outcome
from lake_assets.tables.outcome import INEXACT, Outcome
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table
from tests.support.item_events import v2
from tests.support.item_stream import ITEMS, Stream
from tests.support.streams import Feed, pipeline

FINAL = TableId.parse("final.items")
DURATION = {"type": "int64", "name": "io.debezium.time.MicroDuration"}
MODELS = [{"name": "agg.m", "sql": "SELECT count(*) AS c FROM final.t"}]


def reasons(outcomes: Mapping[str, Outcome], table: str) -> list[str]:
    return outcomes[table].details.get(INEXACT, [])


# --- in plain Python: what a batch shows ------------------------------------------------------------------------


def planned(*columns: str, forms: tuple[str, ...] = (), default: str = "") -> Planned:
    """A plan of columns like `n:int`."""
    pairs = [c.split(":") for c in columns]
    made = tuple(EventColumn(n, t, n, has_default=n == default) for n, t in pairs)
    return Planned(("s",), EventPlan("", "", "", "", made, ("id",), forms=tuple(frozenset(f.split()) for f in forms)))


ID = "id:int"


@pytest.mark.parametrize(
    ("plans", "known", "rename", "expected"),
    [
        ([planned(ID, "a:int")], {}, {}, ((), ())),
        ([planned(ID, "b:int")], {"id": "int", "a": "int"}, {}, ((), (("a", "b"),))),
        ([planned(ID, "a:int"), planned(ID, "b:int")], {}, {}, ((), (("a", "b"),))),
        ([planned(ID, "b:int")], {"id": "int", "a": "int"}, {"a": "b"}, ((), ())),
        # Another type, or both stand together, or several went.
        ([planned(ID, "b:string")], {"id": "int", "a": "int"}, {}, ((), ())),
        ([planned(ID, "a:int", "b:int")], {"id": "int", "a": "int"}, {}, ((), ())),
        ([planned(ID, "b:int")], {"id": "int", "a": "int", "c": "int"}, {}, ((), ())),
        # A plan of several forms: an update may leave a column out, an insert does not.
        ([planned(ID, "a:int", "b:int", forms=("id a", "id b"))], {"id": "int", "a": "int"}, {}, ((), (("a", "b"),))),
        ([planned(ID, "a:int", "b:int", forms=("id a b", "id b"))], {"id": "int", "a": "int"}, {}, ((), ())),
        ([planned(ID, "x:int", default="x")], {"id": "int"}, {}, (("x",), ())),
        ([planned(ID, "x:int", default="x")], {}, {}, ((), ())),
    ],
)
def test_columns_that_come_and_go_show_what_no_event_reports(
    plans: list[Planned], known: dict[str, str], rename: dict[str, str], expected: Any
) -> None:
    assert unreported(plans, known, rename) == expected


# --- through the tables -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_rename_and_a_default_that_no_event_reports_are_said_until_they_matter_no_more(lake: Lake) -> None:
    feed = Feed(lake, "public.t", models=MODELS)
    first = Table({"id": BIGINT, "name": TEXT})
    outcomes = feed.deliver([Event(first, "c", (i, i), {"id": i, "name": "a"}) for i in (10, 20)])
    assert reasons_of(lake, TableId.parse("final.t")) == reasons(outcomes, "final.t") == []
    second = Table({"id": BIGINT, "title": TEXT, "flag": {**INT, "default": 7}})
    outcomes = feed.deliver([Event(second, "u", (30, 31), {"id": 10, "title": "b", "flag": 7})])
    default, rename = reasons(outcomes, "final.t")
    assert "column flag was added with a default" in default
    assert "declare `rename: {name: title}`" in rename
    assert table_status(lake, TableId.parse("final.t")).not_exact == [default, rename]
    # A table that is made of it says whose fault it is.
    assert reasons_of(lake, TableId.parse("agg.m")) == [f"final.t: {default}", f"final.t: {rename}"]
    spec = next(s for s in feed.pipeline.specs(lake) if str(s.table) == "final.t")
    assert of_outcome(outcomes["final.t"], spec)[INEXACT] == f"not exact: {default}; {rename}"
    # What the error says is done, and the other row changes.
    feed.pipeline = pipeline({"table": "public.t", "rename": {"name": "title"}}, models=MODELS)
    outcomes = feed.deliver([Event(second, "u", (40, 41), {"id": 20, "title": "c", "flag": 7})])
    assert reasons(outcomes, "final.t") == []
    assert table_status(lake, TableId.parse("final.t")).not_exact == reasons_of(lake, TableId.parse("agg.m")) == []


@pytest.mark.long  # as a dropped column
def test_a_rename_that_was_none_is_dismissed_as_the_message_says(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    first, second = Table({"id": BIGINT, "name": TEXT}), Table({"id": BIGINT, "title": TEXT})
    feed.deliver([Event(first, "c", (i, i), {"id": i, "name": "a"}) for i in (10, 20)])
    (rename,) = reasons(feed.deliver([Event(second, "u", (30, 31), {"id": 10, "title": "b"})]), "final.t")
    assert rename.endswith("If it was not, declare `rename: {name: name}`")
    feed.pipeline = pipeline({"table": "public.t", "rename": {"name": "name"}})
    for at in (40, 50):
        outcomes = feed.deliver([Event(second, "u", (at, at + 1), {"id": 20, "title": f"c{at}"})])
        assert reasons(outcomes, "final.t") == []
    final = TableId.parse("final.t")
    assert reasons_of(lake, final) == []
    assert {tuple(r) for r in lake.spark().table(lake.sql_name(final)).select("id", "name", "title").collect()} == {
        (10, "a", "b"), (20, "a", "c50"),
    }  # fmt: skip


@pytest.mark.long
def test_rejected_records_are_said_until_they_are_read(lake: Lake) -> None:
    stream = Stream(lake, format="wal2json-v2", on_conflict="reject")
    stream.run(v2(1, "I", id=("integer", 1), n=("integer", 7)))
    outcomes = stream.run(v2(2, "U", id=("integer", 1), n=("text", "seven")))
    assert reasons_of(lake, FINAL) == reasons(outcomes, "staging.items") == reasons(outcomes, "final.items")
    (reason,) = reasons_of(lake, FINAL)
    assert reason.startswith("1 record is rejected")
    stream.declare(format="wal2json-v2", tables=[{"table": ITEMS, "types": {"n": "string"}}])
    stream.run()
    assert reasons_of(lake, FINAL) == []


@pytest.mark.long
def test_a_generated_column_of_the_snapshot_and_saturated_intervals_are_said(lake: Lake) -> None:
    """`gen` is stored and generated, so pgoutput leaves it out; `old` is dropped after the first change."""
    feed = Feed(lake, "public.t", models=[])
    read = Table({"id": BIGINT, "a": INT, "gen": INT, "old": INT, "span": DURATION, "short": DURATION})
    rows = [{"id": i, "a": i, "gen": i + 1, "old": 0, "span": 60, "short": 60} for i in (1, 2)]
    outcomes = feed.deliver([Event(read, "r", (1, 1), row) for row in rows])
    assert reasons(outcomes, "final.t") == []
    stream = Table({c: s for c, s in read.columns.items() if c != "gen"})
    changed = {"id": 1, "a": 10, "old": 0, "span": 2**63 - 1, "short": 2**63 - 2}
    outcomes = feed.deliver([Event(stream, "u", (10, 11), changed)])
    saturated, generated = reasons(outcomes, "final.t")
    assert saturated.startswith("column span holds intervals that are longer than the stream can say")
    assert generated.startswith("column gen is in the snapshot, but in no change after it")
    dropped = Table({c: s for c, s in stream.columns.items() if c != "old"})
    new = {"id": 3, "a": 30, "span": -(2**63), "short": 1}
    outcomes = feed.deliver([Event(dropped, "c", (20, 21), new)])
    assert reasons(outcomes, "final.t") == [saturated, generated]
    assert {(r["id"], r["gen"]) for r in feed.rows("final.t").collect()} == {(1, 2), (2, 3), (3, None)}

    # What the message proposes; and intervals that fit again.
    feed.pipeline = pipeline({"table": "public.t", "columns": ["*", "a + 1 AS gen"]})
    fits = [Event(dropped, "u", (30, 31 + i), {"id": i, "a": 10 * i, "span": 60, "short": 1}) for i in (1, 3)]
    assert reasons(feed.deliver(fits), "final.t") == []
    assert {(r["id"], r["gen"]) for r in feed.rows("final.t").collect()} == {(1, 11), (2, 3), (3, 31)}


@pytest.mark.long
def test_a_column_that_was_dropped_right_after_the_snapshot_is_dismissed_as_the_message_says(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    read, stream = Table({"id": BIGINT, "a": INT, "gone": INT}), Table({"id": BIGINT, "a": INT})
    feed.deliver([Event(read, "r", (1, 1), {"id": 1, "a": 1, "gone": 1})])
    (reason,) = reasons(feed.deliver([Event(stream, "u", (10, 11), {"id": 1, "a": 2})]), "final.t")
    assert reason.endswith("declare `rename: {gone: gone}`")
    feed.pipeline = pipeline({"table": "public.t", "rename": {"gone": "gone"}})
    for at in (20, 30):
        assert reasons(feed.deliver([Event(stream, "u", (at, at + 1), {"id": 1, "a": at})]), "final.t") == []

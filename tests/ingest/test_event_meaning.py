"""What each kind of event means for the rows of staging and final tables, after each batch of a history."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

from lake_assets import Lake
from tests.support.debezium import BIGINT, DATE, INT, TEXT, TIMESTAMP, Event, Table, decimal, write_lines
from tests.support.event_log import COLUMNS, Log, T, final
from tests.support.oracle import final_rows, rows_of
from tests.support.streams import Feed, pipeline


def deliver(feed: Feed, batches: list[list[Event]], columns: list[str] = COLUMNS) -> None:
    """Deliver batches; after each, final is what the events so far make of it."""
    delivered: list[Event] = []
    for n, batch in enumerate(batches):
        delivered += batch
        feed.deliver(batch)
        assert final(feed, columns) == final_rows(delivered, columns), f"after batch {n}"


@pytest.mark.long
def test_a_row_left_out_keeps_its_unchanged_toast_value(feed: Feed, log: Log) -> None:
    deliver(
        feed,
        [
            [log("c", id=1, n=1, name="long"), log("u", ("name",), id=1, n=2), log("c", id=2, n=1, name=None)],
            [log("u", ("name",), id=1, n=3), log("u", ("name",), id=2, n=3)],
            [log("u", id=1, n=4, name="other"), log("u", ("name",), id=1, n=5)],
            [log("d", id=1), log("c", id=1, n=6, name="again"), log("u", ("name",), id=1, n=7)],
        ],
    )


@pytest.mark.long  # test_formats_end_to_end delivers late and repeated events
def test_a_repeated_batch_changes_nothing(feed: Feed, log: Log) -> None:
    first = [log("c", id=1, n=1, name="a"), log("c", id=2, n=1), log("u", ("name",), id=1, n=2), log("d", id=2)]
    second = [log("u", ("name",), id=1, n=3), log("c", id=2, n=9)]
    deliver(feed, [first, second, first, [*second, *first], [log("u", ("name",), id=1, n=4)]])
    assert feed.rows("staging.t").count() == 4 + 2 + 4 + 6 + 1


@pytest.mark.long  # test_formats_end_to_end delivers late and repeated events
def test_late_events_do_not_overwrite_newer_ones(feed: Feed, log: Log) -> None:
    events = [log("c", id=1, n=1), log("u", id=1, n=2), log("d", id=1), log("c", id=1, n=3), log("c", id=2, n=1)]
    deliver(feed, [[events[3]], [events[0]], [events[2], events[4]], [events[1]]])


@pytest.mark.long  # so do the truncated ones of test_stream_histories
def test_a_truncate_empties_the_table(feed: Feed, log: Log) -> None:
    deliver(
        feed,
        [
            [log("c", id=1), log("c", id=2)],
            [log("t")],
            [log("c", id=3), log("t"), log("c", id=4)],
            [log("c", id=5)],
        ],
    )


@pytest.mark.long  # so do the truncated ones of test_stream_histories
def test_a_truncate_that_comes_late_spares_what_came_after_it(feed: Feed, log: Log) -> None:
    one, cut, two, three = log("c", id=1), log("t"), log("c", id=2), log("u", id=2, n=5)
    deliver(feed, [[one, two], [cut], [three], [one, cut]])


@pytest.mark.long  # test_key_changes does that
def test_keys_are_changed_in_chains_and_swapped(feed: Feed, log: Log) -> None:
    def rekey(old: int, new: int, name: str) -> list[Event]:
        gone = log("d", id=old)
        return [gone, Event(T, "c", gone.sequence, {"id": new, "name": name})]

    deliver(
        feed,
        [
            [log("c", id=1, name="one"), log("c", id=2, name="two")],
            [*rekey(1, 7, "one"), *rekey(7, 8, "one")],
            [*rekey(8, -1, "one"), *rekey(2, 8, "two"), *rekey(-1, 2, "one")],
        ],
    )


@pytest.mark.long
def test_values_that_a_key_change_leaves_out_come_from_the_row_under_the_old_key(feed: Feed, log: Log) -> None:
    def rekey(old: int, new: int, n: int) -> list[Event]:
        gone = log("d", id=old)
        return [gone, Event(T, "c", gone.sequence, {"id": new, "n": n}, frozenset({"name"}))]

    feed.deliver([log("c", id=1, n=1, name="one"), log("c", id=2, n=2, name="two")])
    feed.deliver([*rekey(1, 7, 1), *rekey(7, 8, 1), *rekey(2, 1, 3)])
    assert final(feed) == Counter({(8, 1, "one"): 1, (1, 3, "two"): 1})
    gone, came = rekey(8, 9, 4)
    assert feed.deliver([came])["final.t"].details["inserts_without_old_row"] == 1
    feed.deliver([gone])
    assert final(feed) == Counter({(9, 4, "one"): 1, (1, 3, "two"): 1})


@pytest.mark.parametrize("step", ["one batch", pytest.param("two batches", marks=pytest.mark.long)])
def test_columns_are_added_widened_and_rescaled(feed: Feed, log: Log, step: str) -> None:
    log.table = Table({"id": BIGINT, "n": INT, "price": decimal(6, 2)})
    before = [log("c", id=1, n=1, price="12.50"), log("c", id=2, n=-1, price="-0.01")]
    log.table = Table({"id": BIGINT, "n": BIGINT, "price": decimal(12, 4), "extra": TEXT})
    after = [log("c", id=3, n=2**40, price="99999999.0001", extra="x"), log("u", id=2, n=5, price="0.5", extra=None)]
    feed.deliver(before + after) if step == "one batch" else [feed.deliver(b) for b in (before, after)]
    expected = {(1, 1, Decimal("12.5"), None), (2, 5, Decimal("0.5"), None), (3, 2**40, Decimal("99999999.0001"), "x")}
    assert set(final(feed, ["id", "n", "price", "extra"])) == expected
    types = {f.name: f.dataType.simpleString() for f in feed.rows("final.t").schema.fields}
    assert types == {"id": "bigint", "n": "bigint", "price": "decimal(12,4)", "extra": "string"}
    staged = rows_of(feed.rows("staging.t").where(F.col("_op") == "insert"), ["_position"])
    assert len(staged) == 3
    deliver_more = feed.deliver([log("u", id=1, n=7, price="1.25", extra="y")])
    assert deliver_more["final.t"].updated == 1
    assert (1, 7, Decimal("1.25"), "y") in final(feed, ["id", "n", "price", "extra"])


@pytest.mark.long
def test_a_rescaled_column_of_late_events_is_read_from_its_earlier_type(feed: Feed, log: Log) -> None:
    log.table = Table({"id": BIGINT, "price": decimal(6, 2)})
    first = [log("c", id=1, price="1.50"), log("c", id=2, price="2.50")]
    log.table = Table({"id": BIGINT, "price": decimal(8, 4)})
    second = [log("u", id=1, price="1.2345")]
    feed.deliver(first)
    feed.deliver(second)
    feed.deliver(first)
    assert set(final(feed, ["id", "price"])) == {(1, Decimal("1.2345")), (2, Decimal("2.5"))}


@pytest.mark.long
def test_a_table_whose_values_are_converted_keeps_its_partitions_and_order(lake: Lake, log: Log) -> None:
    feed = Feed(lake, {"table": "public.t", "partition_by": "bucket(2, id)", "sort_by": "price"})
    log.table = Table({"id": BIGINT, "price": decimal(6, 2)})
    feed.deliver([log("c", id=1, price="1.50")])
    made = lake.table("final.t")
    log.table = Table({"id": BIGINT, "price": decimal(8, 4)})
    feed.deliver([log("u", id=1, price="1.2345")])
    now = lake.table("final.t")
    assert (
        [str(f.transform) for f in now.spec().fields] == [str(f.transform) for f in made.spec().fields] == ["bucket[2]"]
    )
    assert len(now.sort_order().fields) == len(made.sort_order().fields) == 1
    assert set(final(feed, ["id", "price"])) == {(1, Decimal("1.2345"))}


@pytest.mark.parametrize("declared", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_a_declared_rename_carries_values_along(lake: Lake, log: Log, declared: str) -> None:
    renamed = {"table": "public.t", "rename": {"name": "label"}}
    feed = Feed(lake, renamed if declared == "before" else "public.t")
    feed.deliver([log("c", id=1, n=1, name="a"), log("c", id=2, n=1, name="b")])
    if declared == "after":
        later = Feed(lake, renamed)
        feed.pipeline = later.pipeline
    log.table = Table({"id": BIGINT, "n": INT, "label": TEXT})
    feed.deliver([log("u", id=2, n=2, label="c"), log("c", id=3, n=3, label="d")])
    assert set(final(feed, ["id", "n", "label"])) == {(1, 1, "a"), (2, 2, "c"), (3, 3, "d")}
    assert "name" not in feed.rows("final.t").columns


@pytest.mark.long  # as other columns
def test_a_key_column_may_be_renamed(lake: Lake, log: Log) -> None:
    feed = Feed(lake, "public.t")
    feed.deliver([log("c", id=1, n=1, name="a"), log("c", id=2, n=1, name="b")])
    feed.pipeline = pipeline({"table": "public.t", "rename": {"id": "uid"}})
    log.table = Table({"uid": BIGINT, "n": INT, "name": TEXT}, key=("uid",))
    feed.deliver([log("u", uid=2, n=2, name="c"), log("c", uid=3, n=3, name="d"), log("d", uid=1)])
    assert set(final(feed, ["uid", "n", "name"])) == {(2, 2, "c"), (3, 3, "d")}
    assert {o.status for o in feed.run().values()} == {"nothing"}


@pytest.mark.long
def test_what_was_left_out_under_a_former_name_is_still_left_out(lake: Lake, log: Log) -> None:
    feed = Feed(lake, "public.t")
    late = log("u", id=1, n=0, name="older")
    feed.deliver([log("c", id=1, n=1, name="a"), log("u", ("name",), id=1, n=2)])
    feed.pipeline = pipeline({"table": "public.t", "rename": {"name": "label"}})
    log.table = Table({"id": BIGINT, "n": INT, "label": TEXT})
    feed.deliver([late, log("c", id=2, n=3, label="d")])  # the whole history of id 1 is looked at
    assert set(final(feed, ["id", "n", "label"])) == {(1, 2, "a"), (2, 3, "d")}


@pytest.mark.long  # as names of columns in tests/hostile
def test_hostile_names_are_names(lake: Lake) -> None:
    columns = {
        "id": BIGINT,
        "`tick`": TEXT,
        "sel ect": TEXT,
        "quote'\"": TEXT,
        "e€": INT,
        "a.b": TEXT,
        "back\\slash": TEXT,
    }
    table = Table(columns, key=("id", "a.b"), name="public.Odd `Name`' --")
    feed, log = Feed(lake, "public.*"), Log(table)
    row = {"`tick`": "1", "sel ect": "2", "quote'\"": "3", "e€": 4, "a.b": "5", "back\\slash": "6"}
    feed.deliver([log("c", id=1, **row), log("c", id=2, **row)])
    feed.deliver([log("u", ("sel ect", "quote'\"", "back\\slash"), id=1, **{**row, "e€": 5}), log("d", id=2, **row)])
    (found,) = feed.rows("final.`Odd ``Name``' --`").collect()
    assert found.asDict() == {"id": 1, **row, "e€": 5}


@pytest.mark.long
def test_texts_that_look_like_variables_are_keys_and_values_as_others_are(lake: Lake) -> None:
    texts = ("${env:HOME}", "${spark.app.name}", "${system:user.name}", "${nothing}", "a\\${env:HOME}", ":k0")
    log = Log(Table({"k": TEXT, "n": BIGINT}, key=("k",), name="public.t"))
    sql = "SELECT k, sum(n) AS s, count(*) AS c FROM final.t WHERE k <> '${nothing}' GROUP BY k"
    feed = Feed(lake, "public.*", models=[{"name": "agg.m", "sql": sql}])
    feed.deliver(log("c", k=k, n=i) for i, k in enumerate(texts))
    for n in range(2):
        feed.deliver(log("u", k=k, n=10 * n) for k in texts[:2])
    feed.deliver([log("d", k=texts[2])])
    wanted = {k: i for i, k in enumerate(texts)} | dict.fromkeys(texts[:2], 10)
    del wanted[texts[2]]
    assert {r["k"]: r["n"] for r in feed.rows("final.t").collect()} == wanted
    del wanted["${nothing}"]
    assert {r["k"]: r["s"] for r in feed.rows("agg.m").collect()} == wanted


@pytest.fixture
def far_from_utc() -> Iterator[None]:
    """Python in a zone with summer time: its datetimes must not come between Spark and Spark."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


KEYS: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("timestamp", TIMESTAMP, [dt.datetime(2024, 11, 3, 1, 30, n) for n in range(3)]),  # noqa: DTZ001
    ("date", DATE, [dt.date(1969, 12, 31), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]),
    ("decimal", decimal(38, 10), [Decimal("1.5"), Decimal("-1E+27"), Decimal("1E-10")]),
    ("bigint", BIGINT, [-(2**63), 2**63 - 1, 0]),
    ("text", TEXT, ["", "a'b\\", "z" * 40 + "😀"]),
    ("boolean", {"type": "boolean"}, [True, False]),
    ("double", {"type": "double"}, [0.1, -1e300, 5e-324]),
    ("bytes", {"type": "bytes"}, [b"\x00", b"\xff" * 20]),
]


@pytest.mark.long
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_rows_are_found_by_keys_of_every_type(lake: Lake, far_from_utc: None, every: int) -> None:
    chosen = KEYS[::every]
    logs = {name: Log(Table({"k": schema, "v": INT}, key=("k",), name=f"public.{name}")) for name, schema, _ in chosen}
    pair = Log(Table({"k": TIMESTAMP, "k2": BIGINT, "v": INT}, key=("k", "k2"), name="public.pair"))
    feed = Feed(lake, *(f"public.{n}" for n in logs), "public.pair")
    for v in (1, 2):
        op = "c" if v == 1 else "u"
        singles = [logs[name](op, k=k, v=v) for name, _, keys in chosen for k in keys]
        feed.deliver([*singles, *(pair(op, k=k, k2=7, v=v) for k in KEYS[0][2])])
    found = {name: sorted(r["v"] for r in feed.rows(f"final.{name}").select("v").collect()) for name in [*logs, "pair"]}
    assert found == {name: [2] * len(keys) for name, _, keys in [*chosen, ("pair", {}, KEYS[0][2])]}


@pytest.mark.long
def test_infinite_moments_are_keys_too(lake: Lake) -> None:
    feed, log = (
        Feed(lake, "public.t"),
        Log(Table({"at": TIMESTAMP, "v": INT}, key=("at",))),
    )
    for v in (1, 2):
        record = log("c" if v == 1 else "u", at=dt.datetime(2024, 1, 1), v=v).records()[0]  # noqa: DTZ001
        for image in (record["key"]["payload"], record["value"]["payload"]["after"]):
            image["at"] = 9_223_372_036_825_200_000  # Debezium's number for Postgres's infinity
        write_lines(feed.landing / f"{v}.jsonl", [json.dumps(record).encode() + b"\n"])
        feed.run()
    assert [r["v"] for r in feed.rows("final.t").select("v").collect()] == [2]


def test_a_table_without_a_key_keeps_every_row(lake: Lake) -> None:
    feed, log = Feed(lake, "public.clicks"), Log(Table({"url": TEXT, "n": INT}, key=(), name="public.clicks"))
    feed.deliver([log("c", url="a", n=1), log("c", url="a", n=1)])
    feed.deliver([log("c", url="a", n=1), log("c", url=None, n=None)])
    assert rows_of(feed.rows("final.clicks"), ["url", "n"]) == Counter({("a", 1): 3, (None, None): 1})
    table = feed.lake.table("final.clicks")
    assert set(table.refs()) == {"main"}


def test_staging_keeps_the_whole_event(feed: Feed, log: Log) -> None:
    event = log("u", ("name",), id=1, n=2)
    feed.deliver([event, log("d", id=1)])
    update, delete = feed.rows("staging.t").orderBy("_position").collect()
    assert (update["_op"], update["id"], update["n"], update["name"], update["_unavailable"]) == (
        "update", 1, 2, None, ["name"],
    )  # fmt: skip
    assert update["_sequence"] == "00000000000000000011/00000000000000000011/00000000000000000010"
    assert (delete["_op"], delete["id"], delete["_position"], delete["_unavailable"]) == ("delete", 1, 1, None)


@pytest.mark.long  # test_missing_columns does so in several formats
def test_an_update_says_nothing_of_a_column_that_its_schema_does_not_have(feed: Feed, log: Log) -> None:
    """A stored generated column is in the initial snapshot and in no event; a dropped one is in no event any more."""
    log.table = T.with_columns(made=TEXT)
    first = [log("r", id=1, n=1, made="a"), log("r", id=2, n=1, made="b"), log("r", id=3, n=1, made="c")]
    log.table = T
    deliver(
        feed,
        [first, [log("u", id=1, n=2), log("d", id=3)], [log("u", id=2, n=2), log("c", id=3, n=3), log("u", id=3, n=4)]],
        [*COLUMNS, "made"],
    )

"""Final tables whose events are ordered by the logs of different databases, by nothing, or read again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import OrderUnknownError
from lake_assets.tables.outcome import INEXACT, Outcome
from tests.support.logs import history, record
from tests.support.streams import Feed, pipeline

CONNECTORS = ("postgresql", "mysql", "sqlserver", "oracle")


def land(feed: Feed, records: Iterable[Any]) -> None:
    feed.land_text("".join(json.dumps(r) + "\n" for r in records))


def rows(feed: Feed, table: str) -> dict[int, str]:
    return {r["id"]: r["v"] for r in feed.rows(table).select("id", "v").collect()}


def reasons(outcome: Outcome) -> str:
    return " ".join(outcome.details.get(INEXACT, []))


@pytest.mark.parametrize(
    "connectors", [CONNECTORS[1:2], pytest.param(CONNECTORS, marks=pytest.mark.long)], ids=["some", "all"]
)
def test_events_of_any_connector_may_be_late_repeated_and_out_of_order(lake: Lake, connectors: tuple[str, ...]) -> None:
    choose = random.Random(5)
    feed = Feed(lake, "app.*")
    expected: dict[str, dict[int, str]] = {}
    batches: list[list[Any]] = [[], []] if len(connectors) == 1 else [[], [], []]
    for connector in connectors:
        records, expected[connector] = history(connector, choose.randrange(10**6), table=connector)
        for r in [*records, *choose.choices(records, k=len(records) // 5)]:
            choose.choice(batches).append(r)
    for batch in batches:
        choose.shuffle(batch)
        land(feed, batch)
        feed.run()
    assert {c: rows(feed, f"final.{c}") for c in connectors} == expected


def postgres(
    op: str, key: int, value: str | None, at: int, last: int | None, snapshot: str = "false", table: str = "t"
) -> Any:
    source = {"lsn": at, "sequence": json.dumps([last and str(last), str(at)]), "snapshot": snapshot}
    return record("postgresql", source, op, key, value, table)


def keyless(sent: Any) -> Any:
    return {**sent, "key": None}


@pytest.mark.long
def test_a_later_snapshot_is_newer_and_tells_which_rows_are_gone(lake: Lake) -> None:
    feed = Feed(lake, "app.*")

    land(feed, [postgres("r", 1, "a", 100, None, "first"), postgres("r", 2, "b", 100, None, "true"),
                keyless(postgres("r", 1, "a", 100, None, "last", "heap")),
                postgres("r", 3, "c", 100, None, "last"), postgres("u", 1, "a2", 200, 190)])  # fmt: skip
    outcome = feed.run()["final.t"]
    assert reasons(outcome) == ""
    # The slot is lost; meanwhile 1 is updated, 2 is deleted, 4 is inserted. The stream goes on where it was.
    stale = [postgres("u", 1, "a2", 200, 190), postgres("u", 3, "old", 300, 290)]
    land(feed, [postgres("r", 1, "a3", 900, None, "first"), postgres("r", 3, "c", 900, None, "true"),
                keyless(postgres("r", 1, "a", 900, None, "last", "heap"))])  # fmt: skip
    outcomes = feed.run()
    assert reasons(outcomes["final.t"]) == ""  # not yet complete
    assert "are here once more" in reasons(outcomes["final.heap"])
    land(feed, [postgres("r", 4, "d", 900, None, "last_in_data_collection"), *stale])
    outcomes = feed.run()
    assert rows(feed, "final.t") == {1: "a3", 2: "b", 3: "c", 4: "d"}
    assert "1 row here was not in it any more" in reasons(outcomes["final.t"])
    assert "`start_position: 5`" in reasons(outcomes["final.t"])
    land(feed, [postgres("u", 4, "d2", 1000, 990)])
    assert "1 row here was not in it any more" in reasons(feed.run()["final.t"])
    # An incremental snapshot misses no delete.
    land(feed, [postgres("r", 1, "a4", 1100, 1090, "incremental"), postgres("u", 1, "a2", 200, 190)])
    feed.run()
    assert rows(feed, "final.t")[1] == "a4"
    feed.pipeline = pipeline({"table": "app.t", "start_position": 5}, "app.*")
    assert reasons(feed.run()["final.t"]) == ""
    assert rows(feed, "final.t") == {1: "a4", 3: "c", 4: "d2"}


def test_events_that_nothing_orders_need_a_declaration(lake: Lake) -> None:
    feed = Feed(lake, "app.*")
    shards = [record("vitess", {"vgtid": "x"}, op, 1, v, "shards") for op, v in (("c", "a"), ("u", "b"))]
    land(feed, shards)
    failed = feed.outcomes()["staging.shards"]
    assert isinstance(failed.exception, OrderUnknownError)
    assert "app.shards" in str(failed.error)
    assert "`order_by: _position`" in str(failed.error)
    feed.pipeline = pipeline({"table": "app.shards", "order_by": ["_position"]}, "app.*")
    feed.run()
    land(feed, [record("vitess", {"vgtid": "y"}, "d", 1, None, "shards"), record("vitess", {}, "c", 2, "c", "shards")])
    feed.run()
    assert rows(feed, "final.shards") == {2: "c"}


def flat(key: int, value: str, op: str = "u", **added: Any) -> dict[str, Any]:
    return {"id": key, "v": value, "__op": op, "__table": "t", "__db": "app", **added}


def test_a_time_orders_events_with_a_word_and_is_not_compared_with_positions(lake: Lake) -> None:
    declared = {"table": "app.t", "key": ["id"]}
    feed = Feed(lake, declared)
    land(feed, [flat(1, "a", __source_ts_ms=1_700_000_000_000), flat(1, "b", __source_ts_ms=1_700_000_001_000)])
    outcome = feed.run()["final.t"]
    assert "only a time orders the events" in reasons(outcome)
    land(feed, [flat(1, "c", __source_ts_ms=1_700_000_002_000, __source_lsn=500)])
    failed = feed.outcomes()["final.t"]
    assert isinstance(failed.exception, OrderUnknownError)
    assert "positions in the write-ahead log and in times in milliseconds" in str(failed.error)
    feed.pipeline = pipeline({**declared, "order_by": ["_position"]})
    feed.run()
    assert rows(feed, "final.t") == {1: "c"}


@pytest.mark.long
def test_a_log_that_begins_again_is_reported(lake: Lake) -> None:
    def mysql(value: str, file: str, pos: int, hours: int) -> Any:
        ms = 1_700_000_000_000 + hours * 3_600_000
        return record("mysql", {"file": file, "pos": pos, "row": 0, "ts_ms": ms}, "u", 1, value)

    feed = Feed(lake, "app.t")
    land(feed, [mysql("a", "bin.000900", 5, 0), mysql("b", "bin.000901", 5, 1)])
    feed.run()
    land(feed, [mysql("late", "bin.000900", 4, 0)])
    assert reasons(feed.run()["final.t"]) == ""
    land(feed, [mysql("failed over", "bin.000002", 5, 2)])
    assert "1 event has an earlier position" in reasons(feed.run()["final.t"])
    land(feed, [mysql("next", "bin.000002", 9, 3)])
    outcome = feed.run()["final.t"]
    assert "2 events have an earlier position" in reasons(outcome)
    feed.pipeline = pipeline({"table": "app.t", "order_by": ["_position"]})
    assert reasons(feed.run()["final.t"]) == ""
    assert rows(feed, "final.t") == {1: "next"}
    # Another name of the log cannot be compared at all.
    feed.pipeline = pipeline("app.t")
    land(feed, [mysql("other", "log.000001", 5, 4)])
    failed = feed.outcomes()["final.t"]
    assert "the binary log bin and in the binary log log" in str(failed.error)

"""Events that do not fit their table are rejected, or stop it before anything is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import (
    DefinitionChangedError,
    KeyMissingError,
    SchemaConflictError,
    UnsupportedEventError,
)
from tests.support.debezium import TEXT, Event, Table, write_lines
from tests.support.event_log import Log, T
from tests.support.streams import Feed


@pytest.mark.long  # as each kind of bad record in test_rejects
@pytest.mark.parametrize(
    ("column", "harm", "message"),
    [
        ("n", {"n": 2**40}, "n does not fit int"),
        pytest.param("n", {"n": "many"}, "n does not fit int", marks=pytest.mark.long),
        pytest.param("id", {"id": None}, "key column id is null", marks=pytest.mark.long),
        pytest.param("op", None, "no such op", marks=pytest.mark.long),
    ],
)
def test_a_record_that_does_not_fit_is_rejected_and_the_others_go_on(
    feed: Feed, log: Log, column: str, harm: dict[str, Any] | None, message: str
) -> None:
    feed.deliver([log("c", id=1, n=1)])
    good, bad = log("c", id=2, n=2).records()[0], log("c", id=3, n=3).records()[0]
    if harm:
        bad["value"]["payload"]["after"] |= harm
        if column == "id":
            bad["key"]["payload"] |= harm
    else:
        bad["value"]["payload"]["op"] = "x"
    write_lines(feed.landing / "bad.jsonl", [json.dumps(r).encode() + b"\n" for r in (good, bad)])
    assert feed.run()["staging.t"].details["rejected"] == 1
    assert sorted(r["id"] for r in feed.rows("final.t").collect()) == [1, 2]
    (reject,) = feed.rows("raw.events_rejected").collect()
    assert (reject["source_file"], reject["source_line"], reject["source_table"]) == ("bad.jsonl", 2, "public.t")
    assert reject["reason"].startswith(message)


def test_an_insert_without_its_row_is_rejected(lake: Lake) -> None:
    feed, table = Feed(lake, "public.clicks"), Table({"url": TEXT}, key=(), name="public.clicks")
    record = Event(table, "c", (1, 2), {"url": "a"}).records()[0]
    record["value"]["payload"]["after"] = None
    write_lines(feed.landing / "bad.jsonl", [json.dumps(record).encode() + b"\n"])
    assert feed.run()["staging.clicks"].details["rejected"] == 1


def test_a_column_whose_types_do_not_meet_stops_before_anything_is_written(feed: Feed, log: Log) -> None:
    feed.deliver([log("c", id=1, n=1)])
    log.table = T.with_columns(n=TEXT)
    before = feed.heads()["staging.t"]
    feed.land([log("c", id=2, n="two")])
    outcome = feed.outcomes()["staging.t"]
    assert isinstance(outcome.exception, SchemaConflictError)
    assert "changed the type of column n from int to string" in (outcome.error or "")
    assert feed.heads()["staging.t"] == before


def test_a_table_whose_key_changes_is_noticed(feed: Feed, log: Log) -> None:
    feed.deliver([log("c", id=1, n=1)])
    log.table = Table(T.columns, key=("id", "n"))
    feed.land([log("c", id=2, n=1)])
    assert isinstance(feed.outcomes()["staging.t"].exception, DefinitionChangedError)


def test_a_declared_key_must_be_a_column(lake: Lake, log: Log) -> None:
    feed = Feed(lake, {"table": "public.t", "key": "nope"})
    feed.land([log("c", id=1)])
    outcome = feed.outcomes()["final.t"]
    assert isinstance(outcome.exception, KeyMissingError)
    assert "nope" in (outcome.error or "")


def test_updates_of_a_table_without_a_key_are_refused(lake: Lake) -> None:
    feed, log = Feed(lake, "public.clicks"), Log(Table({"url": TEXT}, key=(), name="public.clicks"))
    feed.deliver([log("c", url="a")])
    before = feed.heads()["final.clicks"]
    feed.land([log("u", url="b")])
    assert isinstance(feed.outcomes()["final.clicks"].exception, UnsupportedEventError)
    assert feed.heads()["final.clicks"] == before

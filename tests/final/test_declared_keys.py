"""Declared keys: alternatives, and events that lack a key value."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from lake_assets import Lake
from lake_assets.errors import KeyMissingError
from lake_assets.pipeline import Pipeline, PipelineConfig
from tests.support.debezium import BIGINT, INT, Event, Table
from tests.support.item_events import debezium
from tests.support.item_stream import ITEMS, Stream
from tests.support.streams import Feed

KEYS = [["id"], ["tenant", "email"], ["email"]]


def row(tenant: int, email: str, n: int, **more: Any) -> dict[str, Any]:
    return {"tenant": tenant, "email": email, "n": n, **more}


def rows_of_items(stream: Stream) -> Counter[Any]:
    return Counter((r["tenant"], r["email"], r["n"]) for r in stream.rows("final.items"))


def test_the_first_of_several_keys_whose_columns_are_there_is_taken_and_stays(lake: Lake) -> None:
    stream = Stream(lake, tables=[{"table": ITEMS, "key": KEYS}])
    stream.run(
        *debezium(1, "c", None, row(1, "a", 1)),
        *debezium(2, "c", None, row(2, "a", 2)),
        # Its key changes with its email.
        *debezium(3, "u", row(2, "a", 2), row(2, "b", 3)),
    )
    assert rows_of_items(stream) == Counter({(1, "a", 1): 1, (2, "b", 3): 1})
    # A column of an earlier declared key appears: existing rows have no values in it.
    outcomes = stream.run(
        *debezium(4, "c", None, row(3, "c", 4, id=7)), *debezium(5, "u", row(1, "a", 1), row(1, "a", 5, id=8))
    )
    assert outcomes["final.items"].strategy == "merge"
    assert rows_of_items(stream) == Counter({(1, "a", 5): 1, (2, "b", 3): 1, (3, "c", 4): 1})
    # The key also stays if the order of declaration changes; if it is no longer declared, the first match is used.
    stream.declare(tables=[{"table": ITEMS, "key": KEYS[::-1]}])
    assert stream.run()["final.items"].status == "nothing"
    stream.declare(tables=[{"table": ITEMS, "key": [["nope"], ["email"]]}])
    assert stream.run()["final.items"].strategy == "rebuild"
    assert rows_of_items(stream) == Counter({(1, "a", 5): 1, (2, "b", 3): 1, (3, "c", 4): 1})


def keyed(at: int, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """Return a Debezium record with a separate key and both rows."""
    (value,) = debezium(at, op, before, after)
    return json.dumps({"key": {"id": (after or before or {})["id"]}, "value": json.loads(value)})


@pytest.mark.long
@pytest.mark.parametrize("records", ["keyed", pytest.param("keyless", marks=pytest.mark.long)])
def test_another_declared_key_parts_all_updates_anew(lake: Lake, records: str) -> None:
    def write(at: int, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
        return keyed(at, op, before, after) if records == "keyed" else debezium(at, op, before, after)[0]

    def person(id_: int, email: str) -> dict[str, Any]:
        return {"id": id_, "email": email}

    def people() -> Counter[Any]:
        return Counter((r["id"], r["email"]) for r in stream.rows("final.items"))

    stream = Stream(lake, tables=[{"table": ITEMS, "key": "id"}])
    stream.run(
        write(1, "c", None, person(1, "a")),
        write(2, "c", None, person(2, "b")),
        write(3, "u", person(1, "a"), person(1, "c")),
    )
    assert people() == Counter({(1, "c"): 1, (2, "b"): 1})
    stream.declare(tables=[{"table": ITEMS, "key": "email"}])
    assert [p.table for p in stream.pipeline.pending(lake)] == ["staging.items", "final.items"]
    outcomes = stream.run()
    assert (outcomes["staging.items"].strategy, outcomes["final.items"].strategy) == ("rebuild", "rebuild")
    # No row remains under the old key.
    assert people() == Counter({(1, "c"): 1, (2, "b"): 1})
    assert {o.status for o in stream.run().values()} == {"nothing"}
    outcomes = stream.run(write(4, "u", person(2, "b"), person(2, "d")), write(5, "u", person(1, "c"), person(1, "e")))
    assert outcomes["final.items"].strategy == "merge"
    assert people() == Counter({(1, "e"): 1, (2, "d"): 1})
    stream.declare(tables=[{"table": ITEMS, "key": "id"}])
    stream.run(write(6, "d", person(2, "d"), None))
    assert people() == Counter({(1, "e"): 1})


@pytest.mark.long
def test_formats_that_say_no_key_take_one_as_well(lake: Lake) -> None:
    stream = Stream(lake, format="change-set", tables=[{"table": ITEMS, "key": KEYS}])
    lines = [
        f'{{"FLAG": "{flag}", "CDC_TIMESTAMP": "2024-01-0{at} 00:00:00", "tenant": 1, "email": "a", "n": {n}}}'
        for at, (flag, n) in enumerate([("I", 1), ("U", 2), ("D", 2), ("I", 3)], 1)
    ]
    stream.run(*lines[:2])
    assert rows_of_items(stream) == Counter({(1, "a", 2): 1})
    stream.run(*lines[2:])
    assert rows_of_items(stream) == Counter({(1, "a", 3): 1})
    assert stream.rejected() == []


def test_that_no_key_fits_is_said(lake: Lake) -> None:
    stream = Stream(lake, tables=[{"table": ITEMS, "key": [["id"], ["tenant", "nope"]]}])
    stream.land(*debezium(1, "c", None, row(1, "a", 1)))
    with pytest.raises(KeyMissingError, match=r"no declared key \(id; tenant, nope\)"):
        stream.run()
    assert not lake.exists("final.items")


def test_events_that_do_not_say_the_declared_key_are_refused_and_nothing_is_lost(lake: Lake) -> None:
    table = Table({"id": BIGINT, "n": INT, "m": INT})
    feed = Feed(lake, {"table": "public.t", "key": "n"})
    feed.deliver([Event(table, "c", (10, 11), {"id": 1, "n": 5, "m": 1})])
    before = feed.heads()["final.t"]
    # The stream has another key: its deletes contain only that.
    feed.land([Event(table, "d", (20, 21), {"id": 1})])
    outcome = feed.outcomes()["final.t"]
    assert isinstance(outcome.exception, KeyMissingError)
    assert "1 of 1 events of staging.t have no value in a column of the key n" in (outcome.error or "")
    assert feed.heads()["final.t"] == before


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (["id", ["a", "b"]], "each of them a list"),
        ([["id"], []], "each of them a list"),
        ([["id"], ["*"]], "cannot be combined with other keys"),
        ([["a", "b"], ["b", "a"]], "twice"),
        (["a", "a"], "twice"),
    ],
)
def test_keys_that_cannot_be_are_said(key: Any, message: str) -> None:
    declared = {"name": "p", "streams": [{"name": "s", "tables": [{"table": "public.t", "key": key}]}]}
    with pytest.raises(ValidationError, match=message):
        Pipeline(PipelineConfig.model_validate(declared))

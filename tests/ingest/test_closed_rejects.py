"""A person closes a reject whose row was delivered again: it counts in no table, and nothing is said of it any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema

from lake_assets import Lake
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.health.lake_status import quick_status
from lake_assets.health.table_status import TableStatus
from lake_assets.ingest.records.rejects import is_of_rejects
from lake_assets.ingest.staging.closed_rejects import Selection, close, reopen
from lake_assets.lake import TableId, caching_catalog
from lake_assets.signals.alerts.alert_conditions import Limits, conditions
from tests.support.cli import Done, caller
from tests.support.item_events import TYPED, change
from tests.support.item_stream import ITEMS, Stream

RAW = TableId.parse("raw.events")


@pytest.fixture
def call(lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    monkeypatch.setattr(LakeOfCommands, "load_existing", classmethod(lambda *_: lake))
    return caller(monkeypatch, capsys)


def status(lake: Lake) -> dict[str, TableStatus]:
    return {t.table: t for t in quick_status(lake)}


def told(stream: Stream) -> set[tuple[str, str]]:
    """The alerts of rejects that stand."""
    found = conditions(stream.lake, [stream.pipeline], Limits(None, 0.0, {"rejected", "not_exact"}))
    return {(c.kind, c.table) for c in found.conditions}


def shown(stream: Stream) -> list[tuple[int, int]]:
    return sorted((r["id"], r["n"]) for r in stream.rows("final.items"))


def typed(kind: str) -> dict[str, Any]:
    return {"format": "simplified", "tables": [{"table": ITEMS, "key": "id", "types": {"id": "int", "n": kind}}]}


def unreadable(lake: Lake, name: str) -> TableId:
    """Create a table whose metadata cannot be read."""
    table = TableId.parse(name)
    lake.ensure_namespace(table.namespace)
    made = lake.catalog.create_table(table.parts, Schema())
    Path(made.metadata_location.removeprefix("file://")).write_text("{")
    return table


def test_a_row_that_was_delivered_again_and_its_reject_is_closed(
    lake: Lake, call: Callable[..., Done], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(
        change("insert", 1, id=1, n=1), change("insert", 2, id=2, n="3000000000"), change("insert", 3, id=3, n=3)
    )
    stream.run(change("insert", 4, id=2, n=2))
    assert told(stream) == {("rejected", "raw.events"), ("not_exact", "staging.items"), ("not_exact", "final.items")}

    broken = [unreadable(lake, name) for name in ("agg.broken", "final.broken", "raw.broken", "staging.broken")]
    monkeypatch.setattr(caching_catalog, "_cache", caching_catalog.MetadataCache())
    done = call("rejected", "close", "raw.events", "--position", "1", "--because", "delivered again")
    assert done.code == 0, done.err
    assert done.out.strip() == "1 record is closed; `lake-assets rejected list --closed` shows them"
    # Only what may have such records is read.
    warned = [r.getMessage() for r in caplog.records if "cannot be read" in r.getMessage()]
    assert [w.split()[0] for w in warned] == ["staging.broken", "final.broken"]
    for name in broken:
        lake.catalog.drop_table(name.parts)
    assert told(stream) == set()
    of = status(lake)
    assert (of["raw.events"].rejected, of["raw.events"].closed) == (0, 1)
    assert {t: s.not_exact for t, s in of.items() if s.not_exact} == {}
    assert ("dim", "1 rejected record is closed (`lake-assets rejected list --closed`)") in list(of["raw.events"].notes)
    (listed,) = json.loads(call("rejected", "list", "--closed", "--json").out)
    assert (listed["position"], listed["closed_because"]) == (1, "delivered again")
    assert "@" in listed["closed_by"]
    assert json.loads(call("rejected", "list", "--json").out) == []
    assert "no record stands rejected; 1 record is closed" in call("rejected").out


@pytest.mark.long
def test_a_closed_record_is_left_out_of_all_readings_until_it_is_opened_again(
    lake: Lake, call: Callable[..., Done]
) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(
        change("insert", 1, id=1, n=1), change("insert", 2, id=2, n="3000000000"), change("insert", 3, id=3, n=3)
    )
    stream.run(change("insert", 4, id=2, n=2))
    close(lake, RAW, Selection((1,)), "me", "delivered again")
    # By another declaration all records are read again, and this one could be read.
    stream.declare(**typed("bigint"))
    stream.replay()
    stream.run(change("insert", 5, id=4, n=4))
    assert shown(stream) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert 1 not in {r["_position"] for r in stream.rows("staging.items")}
    assert (status(lake)["raw.events"].closed, told(stream)) == (1, set())

    assert "opened again" in call("rejected", "reopen", "raw.events", "--all").out
    assert told(stream) == {("rejected", "raw.events"), ("not_exact", "staging.items"), ("not_exact", "final.items")}
    assert stream.replay()["staging.items"].inserted == 1
    stream.run()
    assert shown(stream) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert (stream.rejected(), told(stream)) == ([], set())


@pytest.mark.long  # as rows that were delivered again
def test_lines_that_are_no_json_may_be_about_any_table_and_are_closed_by_their_file(
    lake: Lake, call: Callable[..., Done]
) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(change("insert", 1, id=1, n=1), "what is this", "{")
    (text,) = status(lake)["raw.events"].not_exact
    assert text.startswith("2 rejected records do not say which table they are about (not JSON (2)):")
    assert "rows of staging.items, final.items may be missing or stale" in text
    # Said once, not of each table.
    assert told(stream) == {("rejected", "raw.events"), ("not_exact", "raw.events")}
    assert call("rejected", "close", "raw.events", "--file", "none.jsonl", "--because", "no").code == 1
    assert call("rejected", "close", "raw.events", "--because", "no").code == 1
    assert call("rejected", "close", "raw.events", "--all", "--because", " ").code == 1
    call("rejected", "close", "raw.events", "--file", "001.jsonl", "--because", "a broken upload")
    assert (status(lake)["raw.events"].not_exact, told(stream)) == ([], set())
    stream.run("more of this")
    assert (status(lake)["raw.events"].rejected, status(lake)["raw.events"].closed) == (1, 2)
    explained = call("rejected", "explain", "raw.events", "1").out
    assert "a broken upload: it counts in no table" in explained
    assert "`lake-assets rejected reopen raw.events --position 1` undoes that" in explained


@pytest.mark.long
def test_a_closed_record_that_a_later_declaration_could_route_stays_out(lake: Lake) -> None:
    line = json.loads(change("insert", 1, id=1, n=1))
    del line["table"], line["schema"]
    stream = Stream(lake, format="simplified", tables=["public.*"])
    stream.run(json.dumps(line), json.dumps({**line, "columnValues": [2, 2]}))
    assert close(lake, RAW, Selection((0,)), "me", "not missed") == 1
    stream.declare(**TYPED)
    stream.replay()
    stream.run()
    assert shown(stream) == [(2, 2)]
    assert reopen(lake, RAW, Selection()) == 1
    stream.replay()
    stream.run()
    assert shown(stream) == [(1, 1), (2, 2)]


@pytest.mark.long
def test_a_row_of_a_table_without_a_key_is_not_there_twice(lake: Lake) -> None:
    """Where every insert is a row, the one that was delivered again would be one more."""
    stream = Stream(lake, format="simplified", tables=[{"table": ITEMS, "types": {"id": "int", "n": "int"}}])
    stream.run(change("insert", 1, id=1, n=1), change("insert", 2, id=2, n="3000000000"))
    stream.run(change("insert", 3, id=2, n=3))
    close(lake, RAW, Selection(source_table=ITEMS), "me", "delivered again")
    stream.declare(format="simplified", tables=[{"table": ITEMS, "types": {"id": "int", "n": "bigint"}}])
    stream.run()
    stream.pipeline.rebuild(lake, "staging.items")
    stream.run()
    assert shown(stream) == [(1, 1), (2, 3)]


@pytest.mark.long
def test_what_a_closing_survives(lake: Lake) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(change("insert", 1, id=1, n=1), change("insert", 2, id=2, n="x"), change("insert", 3, id=3, n="y"), "{")
    close(lake, RAW, Selection((1, 3)), "me", "not missed")
    name = TableId.parse("raw.events_rejected")
    assert is_of_rejects(lake.table(name))
    stream.replay()
    stream.pipeline.rebuild(lake, "staging.items")
    stream.run(change("insert", 5, id=5, n="z"))
    spark, sql_name = lake.spark(), lake.sql_name(name)
    catalog = sql_name.split(".")[0]
    spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")
    stream.run("}")
    rows = stream.rows(str(name))
    assert sorted((r["position"], r["closed_because"]) for r in rows) == [
        (1, "not missed"), (2, None), (3, "not missed"), (4, None), (5, None),
    ]  # fmt: skip
    of = status(lake)
    assert (of["raw.events"].rejected, of["raw.events"].closed) == (3, 2)
    assert of["final.items"].not_exact == ["2 records are rejected, and their data is missing (`lake-assets rejected`)"]


@pytest.mark.long
def test_after_a_rollback_another_record_in_the_place_of_a_closed_one_counts(lake: Lake) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(change("insert", 1, id=1, n=1))
    before = lake.table(RAW).metadata.current_snapshot_id
    file = stream.land(change("insert", 2, id=2, n="x"), change("insert", 3, id=3, n="y"))
    stream.run()
    close(lake, RAW, Selection(), "me", "not missed")
    lake.spark().sql(f"CALL {lake.sql_name(RAW).split('.')[0]}.system.set_current_snapshot('{RAW}', {before})")
    file.write_text(change("insert", 2, id=2, n=2) + "\n" + change("insert", 3, id=3, n="z") + "\n")
    stream.run()
    stream.run()
    assert shown(stream) == [(1, 1), (2, 2)]
    assert status(lake)["raw.events"].rejected == 1

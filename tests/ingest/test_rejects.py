"""A record that cannot be read stops nothing: it is put down with the reason, and read again after a fix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from lake_assets import Lake
from lake_assets.commands import rejected as command
from lake_assets.examples.event_generator import Source, Workload
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.formats import SourceTable
from lake_assets.formats.format_base import DEPTH
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.reject_reasons import advice
from lake_assets.ingest.staging import staging_writes
from lake_assets.tables.writing.table_writer import TableWriter
from tests.support.item_events import TYPED, change, v2
from tests.support.item_stream import ITEMS, Stream
from tests.support.seeds import histories


def test_each_kind_of_bad_record_is_put_down_and_the_good_ones_go_on(lake: Lake) -> None:
    stream = Stream(lake, **TYPED)
    outcomes = stream.run(
        change("insert", 1, id=1, n=10),
        change("insert", 2, id=2, n="many"),
        change("insert", 3, n=3),
        "what is this",
        b"\xff\xfe",
        change("upsert", 4, id=4, n=4),
        change("update", 5, id=1, n=11),
        change("insert", 6, id=99999999999, n=6),
        change("insert", 7, id=None, n=7),
    )
    assert [(r["id"], r["n"]) for r in stream.rows("final.items")] == [(1, 11)]
    assert stream.rejected() == [
        (1, "public.items", "n does not fit int: many"),
        (2, "public.items", "key column id is missing"),
        (3, None, "not JSON (unexpected character, expected a JSON value: line 1 column 1 (char 0))"),
        (4, None, "not UTF-8 ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)"),
        (5, None, "no such changeType: 'upsert'"),
        (7, "public.items", "id does not fit int: 99999999999"),
        (8, "public.items", "key column id is null"),
    ]
    assert outcomes["raw.events"].details == {"rejected": 3}
    assert outcomes["staging.items"].details["rejected"] == 4
    assert {o.status for o in stream.run().values()} == {"nothing"}


@pytest.mark.long  # as values of another type
def test_a_newer_event_heals_a_row_and_the_rejected_one_stays_in_the_list(lake: Lake) -> None:
    stream = Stream(lake, **TYPED)
    outcomes = stream.run(change("insert", 1, id=1, n="many"))
    # A table is made of its first event: nothing is known of its columns and key before.
    assert (outcomes["staging.items"].status, outcomes["staging.items"].details) == ("waiting", {"rejected": 1})
    assert not lake.exists("staging.items")
    stream.run(change("update", 2, id=1, n=2))
    assert [(r["id"], r["n"]) for r in stream.rows("final.items")] == [(1, 2)]
    assert len(stream.rejected()) == 1


@pytest.mark.long
def test_a_first_record_that_a_later_declaration_reads_is_rejected_no_longer(lake: Lake) -> None:
    """Without a staging table there is nothing to make again: it is made of all records, whatever they were before."""
    stream = Stream(lake, **TYPED)
    stream.run(change("insert", 1, id=1, n="1.5"), change("insert", 2, id=2, n="x"))
    assert not lake.exists("staging.items")
    types = {"id": "int", "n": "decimal(12,2)"}
    stream.declare(format="simplified", tables=[{"table": ITEMS, "key": "id", "types": types}])
    stream.run()
    assert [(r["id"], str(r["n"])) for r in stream.rows("final.items")] == [(1, "1.50")]
    assert [r[0] for r in stream.rejected()] == [1]


@pytest.mark.long
def test_a_limited_batch_without_a_readable_event_does_not_hold_up_those_after_it(lake: Lake) -> None:
    stream = Stream(lake, **TYPED, max_rows=1)
    for n, value in enumerate(("1.5", "x", "y", "4", "5"), 1):
        stream.land(change("insert", n, id=n, n=value))
    stream.run()
    assert sorted(r["id"] for r in stream.rows("final.items")) == [4, 5]
    assert [r[0] for r in stream.rejected()] == [0, 1, 2]
    assert {o.status for o in stream.run().values()} == {"nothing"}


@pytest.mark.long
def test_a_batch_of_inserts_keeps_the_key_that_updates_have_said(lake: Lake) -> None:
    """Old keys come with updates and deletes only."""
    stream = Stream(lake, format="simplified")
    stream.run(change("insert", 1, id=1, n=1), change("update", 2, id=1, n=2))
    stream.run(change("insert", 3, id=2, n=3))
    stream.run(change("update", 4, id=2, n=4), change("insert", 5, id=3, n=5))
    assert sorted((r["id"], r["n"]) for r in stream.rows("final.items")) == [("1", "2"), ("2", "4"), ("3", "5")]


@pytest.mark.long
def test_a_rename_that_is_declared_while_events_leave_values_out(lake: Lake) -> None:
    """Of a format whose updates name only what they hold."""
    stream = Stream(lake, format="wal2json-v2")
    stream.run(v2(1, "I", id=("integer", 1), note=("text", "a")), v2(2, "I", id=("integer", 2), note=("text", "b")))
    stream.declare(format="wal2json-v2", tables=[{"table": ITEMS, "rename": {"note": "remark"}}])
    stream.run(v2(3, "U", id=("integer", 1)), v2(4, "U", id=("integer", 2), remark=("text", "c")))
    assert sorted((r["id"], r["remark"]) for r in stream.rows("final.items")) == [(1, "a"), (2, "c")]
    stream.run(v2(5, "U", id=("integer", 2)))
    assert sorted((r["id"], r["remark"]) for r in stream.rows("final.items")) == [(1, "a"), (2, "c")]
    assert "note" not in stream.rows("staging.items")[0]


@pytest.mark.long
def test_a_key_that_is_said_later_makes_the_final_table_anew(lake: Lake) -> None:
    stream = Stream(lake, format="simplified")
    stream.run(change("insert", 1, id=1, n=1), change("insert", 2, id=2, n=2), change("insert", 1, id=1, n=1))
    assert len(stream.rows("final.items")) == 3  # without a key, every insert is a row
    outcomes = stream.run(change("update", 3, id=2, n=3))
    assert outcomes["final.items"].strategy == "rebuild"
    assert sorted((r["id"], r["n"]) for r in stream.rows("final.items")) == [("1", "1"), ("2", "3")]
    stream.run(change("delete", 4, id=1))
    assert [(r["id"], r["n"]) for r in stream.rows("final.items")] == [("2", "3")]


@pytest.mark.long
def test_a_table_is_made_of_its_first_event_not_of_a_record_that_may_be_about_any(lake: Lake) -> None:
    """A wal2json transaction holds the changes of several tables, of this one perhaps none."""

    def transaction(xid: int, *changes: dict[str, Any]) -> str:
        return json.dumps({"xid": xid, "nextlsn": f"0/{xid}", "change": changes})

    def insert(table: str, at: int) -> dict[str, Any]:
        return {
            "kind": "insert", "schema": "public", "table": table, "columnnames": ["id", "n"],
            "columntypes": ["integer", "integer"], "columnvalues": [at, at], "pk": {"pknames": ["id"], "pktypes": [""]},
        }  # fmt: skip

    stream = Stream(lake, format="wal2json-v1", tables=[ITEMS, "public.a", "public.b"])
    outcomes = stream.run(transaction(1, insert("a", 1), insert("b", 1)))
    assert outcomes["staging.items"].status == "waiting"
    assert not lake.exists("staging.items")
    stream.run(transaction(2, insert("a", 2), insert("items", 2)))
    stream.run(transaction(3, insert("a", 3), insert("b", 3)))
    assert [(r["id"], r["n"]) for r in stream.rows("final.items")] == [(2, 2)]
    assert len(stream.rows("final.a")) == 3
    assert stream.rejected() == []


@pytest.mark.long
def test_after_a_fix_of_the_declaration_they_are_read_again_in_their_old_place(lake: Lake) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(change("insert", 1, id=1, n="1.5"), change("insert", 2, id=2, n="x"), change("update", 3, id=3, n="3"),
               change("delete", 9, id=3), change("insert", 4, id=4, n="4.5"))  # fmt: skip
    assert [r[0] for r in stream.rejected()] == [0, 1, 4]
    fixed: dict[str, Any] = {"table": ITEMS, "key": "id", "types": {"id": "int", "n": "decimal(12,2)"}}
    stream.declare(format="simplified", tables=[fixed], on_conflict="new-column")
    replayed = stream.replay()["staging.items"]
    why = "2 records can be read now, 1 cannot; another type is declared for n: every record is read again"
    assert (replayed.inserted, replayed.why) == (2, why)
    stream.run()
    assert [r[0] for r in stream.rejected()] == [1]
    assert sorted(r["id"] for r in stream.rows("final.items")) == [1, 4]
    before = {t: lake.table(t).metadata.current_snapshot_id for t in ("raw.events", "staging.items", "final.items")}
    assert stream.replay()["staging.items"].status == "nothing"
    assert {t: lake.table(t).metadata.current_snapshot_id for t in before} == before


@pytest.mark.long  # as records that a fixed declaration reads
@pytest.mark.parametrize(
    "declared",
    [
        {"types": {"id": "int", "n": "string"}},
        pytest.param({"types": {"id": "int", "n": "bigint"}, "start_position": 0}, marks=pytest.mark.long),
    ],
)
def test_a_replay_after_another_declaration_reads_all_records_by_it(lake: Lake, declared: dict[str, Any]) -> None:
    """Whether the next run or the replay comes first makes no difference."""
    before = {"table": ITEMS, "key": "id", "types": {"id": "int", "n": "int"}, "start_position": 1}
    stream = Stream(lake, format="simplified", tables=[before])
    stream.run(
        change("insert", 1, id=1, n="001"),
        change("insert", 2, id=2, n="002"),
        change("insert", 3, id=3, n="9999999999"),
    )
    stream.declare(format="simplified", tables=[{"start_position": 1, "table": ITEMS, "key": "id", **declared}])
    assert stream.replay()["staging.items"].why.startswith("1 record can be read now, 0 cannot")
    stream.run()
    shown = sorted((r["id"], r["n"]) for r in stream.rows("final.items"))
    assert shown == ([(2, "002"), (3, "9999999999")] if len(declared) == 1 else [(1, 1), (2, 2), (3, 9999999999)])
    assert stream.rejected() == []


@pytest.mark.long
def test_the_advice_for_a_column_that_became_text_works_as_it_is_written(lake: Lake) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(change("insert", 1, id=1, n=1), change("insert", 2, id=2, n="many"))
    ((_, _, reason),) = stream.rejected()
    (written,) = re.findall(r"`(types: [^`]+)`", advice(reason, ITEMS))
    types = {**TYPED["tables"][0]["types"], **yaml.safe_load(written)["types"]}
    stream.declare(format="simplified", tables=[{"table": ITEMS, "key": "id", "types": types}])
    stream.replay()
    stream.run()
    assert sorted((r["id"], r["n"]) for r in stream.rows("final.items")) == [(1, "1"), (2, "many")]
    assert stream.rejected() == []


@pytest.mark.long
def test_a_replay_before_the_first_event_could_be_read_makes_the_table(lake: Lake) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(change("insert", 1, id=1, n="1.5"), change("insert", 2, id=2, n="x"))
    assert stream.replay()["staging.items"].status == "nothing"
    types = {"id": "int", "n": "decimal(12,2)"}
    stream.declare(format="simplified", tables=[{"table": ITEMS, "key": "id", "types": types}])
    replayed = stream.replay()["staging.items"]
    assert (replayed.inserted, replayed.why[:38]) == (1, "1 record can be read now, 1 cannot; ev")
    assert [r[0] for r in stream.rejected()] == [1]
    stream.run()
    assert [r["id"] for r in stream.rows("final.items")] == [1]


@pytest.mark.long
def test_records_that_could_not_be_routed_are_routed_after_a_fix(lake: Lake) -> None:
    line = json.loads(change("insert", 1, id=1, n=1))
    del line["table"], line["schema"]
    stream = Stream(lake, format="simplified", tables=["public.*"])
    outcomes = stream.run(json.dumps(line), "garbage")
    assert outcomes["raw.events"].details == {"rejected": 2}
    assert not lake.exists("staging.items")
    stream.declare(**TYPED)
    assert stream.replay()["raw.events"].why == "1 record can be routed now"
    stream.run()
    assert [(r["id"], r["n"]) for r in stream.rows("final.items")] == [(1, 1)]
    assert [(r["_position"], r["_op"]) for r in stream.rows("staging.items")] == [(0, "insert")]
    assert [r[0] for r in stream.rejected()] == [1]
    assert stream.replay()["raw.events"].status == "nothing"


@pytest.mark.long
def test_a_replay_that_was_killed_after_routing_is_made_good_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.loads(change("insert", 1, id=1, n=1))
    del line["table"], line["schema"]
    stream = Stream(lake, format="simplified", tables=["public.*"])
    stream.run(json.dumps(line), "garbage")
    stream.declare(**TYPED)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rejects, "forget", killed)
        with pytest.raises(KeyboardInterrupt):
            stream.replay()
    assert [r[0] for r in stream.rejected()] == [0, 1]
    stream.replay()
    assert [r[0] for r in stream.rejected()] == [1]
    stream.run()
    assert [(r["id"], r["n"]) for r in stream.rows("final.items")] == [(1, 1)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "stops"),
    [
        pytest.param("2", False, marks=pytest.mark.long),
        ("1", True),
        pytest.param("50%", False, marks=pytest.mark.long),
        pytest.param("49%", True, marks=pytest.mark.long),
    ],
)
def test_more_rejects_than_declared_stop_the_table_alone(lake: Lake, limit: str, stops: bool) -> None:
    other = json.loads(change("insert", 1, id=1, n=1)) | {"table": "other"}
    tables = [*TYPED["tables"], {"table": "public.other", "key": "id"}]
    stream = Stream(lake, format="simplified", tables=tables, max_rejected=limit)
    stream.land(
        json.dumps(other), change("insert", 1, id=1, n="x"), change("insert", 2, id=2, n="y"),
        change("insert", 3, id=3, n=3), change("insert", 4, id=4, n=4),
    )  # fmt: skip
    outcomes = {o.table: o for o in stream.pipeline.run(lake)}
    assert len(stream.rows("final.other")) == 1
    if not stops:
        assert len(stream.rows("final.items")) == 2
        return
    error = outcomes["staging.items"].error or ""
    assert error.startswith("RejectedLimitError: staging.items: 2 of 4 records would be rejected, and `max_rejected`")
    assert "n does not fit int: x" in error
    assert not lake.exists("staging.items")
    assert stream.rejected() == []


@pytest.mark.long  # as records that a fixed declaration reads
def test_a_replay_takes_in_what_can_be_read_beside_what_cannot(lake: Lake) -> None:
    """The limit is one for the records of a batch, of which a replay reads the rejected ones alone."""
    stream = Stream(lake, **TYPED, max_rejected="50%")
    good = [change("insert", n, id=n, n=n) for n in (1, 2)]
    stream.run(*good, change("insert", 3, id=3, n="99999999999"), change("insert", 4, id="x", n=4))
    types = {"id": "int", "n": "bigint"}
    stream.declare(format="simplified", tables=[{"table": ITEMS, "key": "id", "types": types}], max_rejected="50%")
    stream.run(change("insert", 5, id="y", n=5), change("insert", 6, id=6, n=6))
    assert stream.replay()["staging.items"].why == "1 record can be read now, 2 cannot"
    stream.run()
    assert sorted(r["id"] for r in stream.rows("final.items")) == [1, 2, 3, 6]
    assert [r[0] for r in stream.rejected()] == [3, 4]


KILLS: list[tuple[Any, str]] = [
    (rejects, "reject"), (staging_writes, "prepare"), (TableWriter, "append"), (rejects, "ensure_rejected"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.long), True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("where", "name"),
    [pytest.param(*kill, id=kill[1], marks=pytest.mark.long if n else ()) for n, kill in enumerate(KILLS)],
)
def test_a_run_that_is_killed_anywhere_is_made_good_by_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, after: bool
) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(change("insert", 1, id=1, n=1), change("insert", 2, id=2, n="x"))
    stream.land(change("insert", 3, id=3, n=3), change("insert", 4, id=4, n="y"))
    original: Callable[..., Any] = getattr(where, name)

    def killed(*args: Any, **more: Any) -> Any:
        if after:
            original(*args, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, name, killed)
        with pytest.raises(KeyboardInterrupt):
            stream.run()
    stream.run()
    assert [r[0] for r in stream.rejected()] == [1, 3]
    assert sorted(r["id"] for r in stream.rows("final.items")) == [1, 3]
    assert len(stream.rows("staging.items")) == 2


@pytest.mark.long  # as each kind of bad record
def test_one_schema_that_nobody_can_read_is_rejected_and_the_rest_is_read(lake: Lake) -> None:
    """A key that the row does not have: a plan for records with this schema cannot be made."""
    stream = Stream(lake)
    workload = Workload(seed=2, events=20, keys=5)
    good = [line for t in Source(workload) for line in ENCODERS["debezium"](t, workload)]
    bad = json.loads(next(x for x in good if json.loads(x)["value"]))
    bad["key"]["schema"]["fields"][0]["field"] = "other"
    outcomes = stream.run(*good, json.dumps(bad))
    assert outcomes["staging.items"].details["rejected"] == 1
    assert [(p, t) for p, t, _ in stream.rejected()] == [(len(good), "public.items")]
    expected = sum(1 for x in good if json.loads(x)["value"])
    assert len(stream.rows("staging.items")) == expected


@pytest.mark.long  # as each kind of bad record
def test_a_record_with_two_names_that_differ_in_case_only_is_rejected_and_the_rest_is_read(lake: Lake) -> None:
    stream = Stream(lake, format="simplified", tables=[{"table": ITEMS, "key": "id"}])
    stream.run(
        change("insert", 1, id="1", n="1"),
        change("insert", 2, id="2", N="2"),
        change("insert", 3, id="3", n="3", N="4"),
    )
    # One name or the other is the same column: the source has renamed it.
    assert sorted((r["id"], r["n"]) for r in stream.rows("final.items")) == [("1", "1"), ("2", "2")]
    ((position, _, reason),) = stream.rejected()
    assert position == 2
    assert "n and N share one name" in reason


HOSTILE = [
    "it's",
    'a "b"',
    "`tick`",
    "a.b",
    "a b",
    "select",
    "Mixed",
    "é漢",
    "; DROP TABLE x --",
    "a\\b",
    "$x",
    "%s",
    "{t}",
    "$.a",
]


@pytest.mark.long
@pytest.mark.parametrize("names", [HOSTILE[::5], pytest.param(HOSTILE, marks=pytest.mark.long)], ids=["some", "all"])
def test_hostile_names_and_values_are_only_names_and_values(lake: Lake, names: list[str]) -> None:
    tables = [f"public.{_ticked(n)}" for n in names]
    stream = Stream(lake, format="wal2json-v2", tables=["public.*"])
    lines = [
        json.dumps({
            "action": "I", "schema": "public", "table": name,
            "columns": [{"name": c, "type": "text", "value": f"{c}'\"`;--"} for c in names],
            "pk": [{"name": name, "type": "text"}],
        })
        for name in names
    ]  # fmt: skip
    stream.run(*lines)
    assert stream.rejected() == []
    for name, table in zip(names, tables, strict=True):
        spec = next(s for s in stream.pipeline.specs(lake) if str(getattr(s, "source_table", "")) == table)
        (row,) = lake.spark().table(lake.sql_name(f"final.{_ticked(spec.table.name)}")).collect()
        assert row.asDict() == {c: f"{c}'\"`;--" for c in names}, name


@pytest.mark.parametrize(
    "names",
    [
        ["../../../../x"],
        pytest.param(["..", "tab\tnew\nline what?#%2e%2e/*", "n" * 300], marks=pytest.mark.long),
    ],
    ids=["some", "others"],
)
def test_names_that_are_no_folders_lead_nowhere_else(lake: Lake, names: list[str]) -> None:
    stream = Stream(lake, format="wal2json-v2", tables=["public.*"])
    for at in (1, 2):
        row = [{"name": "n", "type": "integer", "value": at}]
        change = {"action": "I", "schema": "public", "columns": row, "pk": [{"name": "n", "type": "integer"}]}
        stream.run(*(json.dumps({**change, "table": name, "lsn": f"0/{at}"}) for name in names))
    assert stream.rejected() == []
    warehouse = lake.config.home / "warehouse"
    for name in names:
        spec = next(s for s in stream.pipeline.specs(lake) if str(s.table) == f"final.{_ticked(name)}")
        assert sorted(r["n"] for r in stream.rows(f"final.{_ticked(name)}")) == [1, 2]
        location = lake.table(spec.table).location()
        assert Path(urlparse(location).path).parent == warehouse / "final", location
        assert Path(urlparse(location).path).resolve().is_dir()
    assert {p.name for p in warehouse.iterdir()} <= {"raw", "staging", "final", "icdc"}


def _ticked(name: str) -> str:
    return str(SourceTable("x", name)).removeprefix("x.")


@pytest.mark.parametrize(
    "form",
    [
        "debezium",
        pytest.param("wal2json-v2", marks=pytest.mark.long),
        pytest.param("change-set", marks=pytest.mark.long),
    ],
)
def test_nesting_stops_at_a_depth_and_stops_nothing_else(lake: Lake, form: str) -> None:
    def nested(levels: int) -> str:
        return '{"a":' * levels + '"x"' + "}" * levels

    def record(at: int, value: str) -> str:
        row = {"id": at, "n": "@"}
        if form == "debezium":
            source = {"schema": "public", "table": "items", "lsn": at, "ts_ms": at}
            message: Any = {"op": "c", "before": None, "after": row, "source": source}
        elif form == "change-set":
            message = {"FLAG": "I", "CDC_TIMESTAMP": at, **row}
        else:
            types = {"id": "integer", "n": "json"}
            columns = [{"name": c, "type": types[c], "value": v} for c, v in row.items()]
            message = {"action": "I", "schema": "public", "table": "items", "lsn": f"0/{at}", "columns": columns}
        return json.dumps(message).replace('"@"', value)

    stream = Stream(lake, format=form, tables=[{"table": ITEMS, "key": "id", "types": {"n": "string"}}])
    values = {1: nested(1), 2: nested(DEPTH - 5)}
    stream.run(*(record(at, value) for at, value in values.items()), record(3, nested(DEPTH)), record(4, nested(3000)))
    assert {r["id"]: json.loads(r["n"]) for r in stream.rows("final.items")} == {
        at: json.loads(value) for at, value in values.items()
    }
    assert [(p, r) for p, _, r in stream.rejected()] == [(p, f"nested deeper than {DEPTH} levels") for p in (2, 3)]


# --- a column whose type cannot become what comes ---------------------------------------------------------------


@pytest.mark.long
def test_values_of_another_type_go_to_a_column_of_their_own(lake: Lake) -> None:
    stream = Stream(lake, format="wal2json-v2", on_conflict="new-column")
    one, two = ("integer", 1), ("integer", 2)
    stream.run(v2(1, "I", id=one, n=("integer", 7)), v2(2, "I", id=two, n=("integer", 8)))
    stream.run(v2(3, "U", id=one, n=("text", "seven")))
    assert _items(stream) == [(1, None, "seven"), (2, 8, None)]
    stream.run(v2(4, "U", id=one, n=("bigint", 70)), v2(5, "U", id=two, n=("text", "eight")))
    assert _items(stream) == [(1, 70, None), (2, None, "eight")]
    # Both types in one batch.
    stream.run(
        v2(6, "U", id=one, n=("text", "a")), v2(7, "U", id=two, n=("bigint", 80)), v2(8, "U", id=one, n=("text", "b"))
    )
    assert _items(stream) == [(1, None, "b"), (2, 80, None)]


def _items(stream: Stream) -> list[tuple[Any, ...]]:
    return sorted((r["id"], r["n"], r["n__string"]) for r in stream.rows("final.items"))


def test_without_that_policy_the_table_stops_and_the_others_go_on(lake: Lake) -> None:
    stream = Stream(lake, format="wal2json-v2", tables=["public.*"])
    stream.run(v2(1, "I", id=("integer", 1), n=("integer", 7)))
    other = v2(2, "I", id=("integer", 1)).replace('"items"', '"other"')
    stream.land(v2(3, "U", id=("integer", 1), n=("text", "seven")), other)
    outcomes = {o.table: o for o in stream.pipeline.run(lake)}
    assert "SchemaConflictError" in (outcomes["staging.items"].error or "")
    assert "on_conflict: new-column" in (outcomes["staging.items"].error or "")
    assert len(stream.rows("final.other")) == 1


# --- any bytes at all -------------------------------------------------------------------------------------------

WORKLOAD = Workload(seed=4, events=12, keys=4, key_changes=0.3)
SAMPLES = {
    name: [x for t in Source(WORKLOAD) for x in ENCODERS[name](t, WORKLOAD)]
    for name in ("debezium", "debezium-plain", "wal2json-v1", "wal2json-v2", "simplified", "change-set")
}
READERS = {"debezium-plain": "debezium"}


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    """A line of the format with a piece cut out, doubled or replaced; or no line of it at all."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=40)).replace(b"\n", b" ").replace(b"\r", b" ")
    line = draw(st.sampled_from(SAMPLES[name]))
    at, length = draw(st.integers(0, len(line))), draw(st.sampled_from([0, 0, 1, 2, 5, 30]))
    return (line[:at] + draw(st.text(max_size=2)) + line[at + length :]).encode("utf-8", "replace").replace(b"\n", b"")


def deletes_nothing(raw: dict[str, Any], staged: list[dict[str, Any]]) -> bool:
    """Whether a record is a tombstone without a row: the last event of its key before it is a delete, or missing."""
    try:
        record = json.loads(raw["record"])
    except ValueError:
        return False
    if not isinstance(record, dict) or record.get("value", 0) is not None or not isinstance(record.get("key"), dict):
        return False
    key = record["key"].get("payload", record["key"])
    if not isinstance(key, dict) or "id" not in key:
        return False
    before = [e for e in staged if e["id"] == key["id"] and e["_position"] < raw["position"]]
    return not before or max(before, key=lambda e: (e["_position"], e["_index"]))["_op"] == "delete"


@pytest.mark.parametrize("examples", [2, pytest.param(histories(8), marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "name", [n if n == "wal2json-v2" else pytest.param(n, marks=pytest.mark.long) for n in SAMPLES]
)
def test_any_bytes_give_rows_or_rejects_that_account_for_every_record(
    new_lake: Callable[[str], Lake], name: str, examples: int
) -> None:
    made = 0

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )  # fmt: skip
    @given(lines=st.lists(damaged(name), min_size=10, max_size=60))
    def check(lines: list[bytes]) -> None:
        nonlocal made
        made += 1
        tables = [{"table": ITEMS, "key": "id", "on_conflict": "reject"}]
        stream = Stream(new_lake(f"lake{made}"), format=READERS.get(name, name), tables=tables)
        landed = [x for x in lines if x.decode("utf-8", "backslashreplace").strip()]
        stream.run(*lines)
        raw = stream.rows("raw.events")
        assert len(raw) == len(landed)
        rejected = {p for p, _, _ in stream.rejected()}
        there = stream.rows("staging.items") if stream.lake.exists("staging.items") else []
        staged, lost = {r["_position"] for r in there}, []
        for r in raw:
            about = r["source_table"]
            if r["problem"] is not None:
                assert r["position"] in rejected
            elif about == ITEMS and r["position"] not in rejected | staged and not deletes_nothing(r, there):
                lost.append(r["record"][:500])
        assert lost == []

    check()


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_lists_explains_and_replays(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = Stream(lake, **TYPED)
    stream.run(change("insert", 1, id=1, n="1.5"), change("insert", 2, id=2, n="2.5"), "garbage")
    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: lake))

    def call(*words: str) -> str:
        done = CliRunner().invoke(command.app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    counts = json.loads(call("summary", "--json"))
    assert [(c["source_table"], c["reason"], c["records"]) for c in counts] == [
        ("public.items", "n does not fit int", 2), (None, "not JSON", 1),
    ]  # fmt: skip
    listed = json.loads(call("list", "--source-table", ITEMS, "--json"))
    assert sorted(r["position"] for r in listed) == [0, 1]
    explained = " ".join(call("explain", "raw.events", "0").split())  # lines are as long as a terminal is wide
    for part in ("001.jsonl, line 1", "n does not fit int: 1.5", "types: {n: string}", '"columnNames"'):
        assert part in explained
    fixed = tmp_path / "p.yaml"
    declared = {"name": "p", "streams": [{"name": "events", "format": "simplified", "on_conflict": "new-column",
                "tables": [{"table": ITEMS, "key": "id", "types": {"id": "int", "n": "double"}}]}]}  # fmt: skip
    fixed.write_text(json.dumps({"type": "lake_assets.LakePipeline", "attributes": declared}))
    outcomes = json.loads(call("replay", str(fixed), "--json"))
    assert {o["table"]: o["inserted"] for o in outcomes}["staging.items"] == 2
    assert [c["reason"] for c in json.loads(call("summary", "--json"))] == ["not JSON"]


def test_staging_is_partitioned_by_day_of_arrival_and_ordered_by_key(lake: Lake) -> None:
    """Whatever sorts first by arrival, a file holds its rows by key: few of its pages are read for one key."""
    stream = Stream(lake, **TYPED)
    stream.run(*(change("insert", n, id=(n * 7) % 20, n=n) for n in range(20)))
    table = lake.table("staging.items")
    assert [(p.name, str(p.transform)) for p in table.spec().fields] == [("_arrived_at_day", "day")]
    (by,) = table.sort_order().fields
    assert table.schema().find_column_name(by.source_id) == "id"
    (file,) = lake.spark().sql(f"SELECT file_path FROM {lake.sql_name('staging.items')}.files").collect()
    ids = [r["id"] for r in lake.spark().read.parquet(file["file_path"]).collect()]
    assert ids == sorted(ids)

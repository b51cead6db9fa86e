"""Heartbeats, schema changes and other records about no row are counted and skipped, in every form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import MalformedRecordError
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import INSERT, Hints
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import land
from lake_assets.ingest.raw_tables import routes
from lake_assets.lake import TableId
from lake_assets.pipeline.step_retries import absorb
from tests.support.parsing import lines_of, parse

RAW = TableId.parse("raw.events")
SOURCE = {"version": "3.6.3.Final", "connector": "postgresql", "name": "shop", "db": "shop", "ts_ms": 1, "lsn": 7}


def row(table: str = "users", op: str = "c", **columns: Any) -> dict[str, Any]:
    source = {**SOURCE, "schema": "public", "table": table, "sequence": '["1","7"]'}
    images = {"before": columns, "after": None} if op == "d" else {"before": None, "after": columns}
    return {**images, "source": source, "op": op, "ts_ms": 2}


DDL = {"ts_ms": 1, "databaseName": "shop", "ddl": "ALTER TABLE t ADD x INT", "tableChanges": [
    {"type": "ALTER", "id": '"shop"."t"', "table": {"columns": []}}]}  # fmt: skip
# What each record is, its topic, and its value.
CONTROL: list[tuple[str, str, dict[str, Any]]] = [
    ("heartbeats", "__debezium-heartbeat.shop", {"ts_ms": 1_700_000_000_000}),
    ("heartbeats", "beats", {"ts_ms": 1_700_000_000_000}),
    ("schema changes", "shop", {**DDL, "source": SOURCE, "schemaName": None}),
    ("schema changes", "shop", {**DDL, "source": SOURCE, "schemaName": "dbo", "ddl": None}),
    ("schema changes", "history", {**DDL, "source": {"server": "shop"}, "position": {"file": "binlog.1", "pos": 4}}),
    ("schema changes", "shop", {"source": SOURCE, "databaseName": "shop", "ddl": "DROP TABLE t"}),
    ("transaction markers", "shop.transaction", {
        "status": "BEGIN", "id": "571:53195829", "ts_ms": 1, "event_count": None, "data_collections": None}),
    ("transaction markers", "shop.transaction", {
        "status": "END", "id": "571:53195832", "event_count": 2,
        "data_collections": [{"data_collection": "public.users", "event_count": 2}]}),
    ("logical messages", "shop.message", {
        "op": "m", "ts_ms": 1, "source": {**SOURCE, "schema": "", "table": ""},
        "message": {"transactional": True, "prefix": "p", "content": "eA=="}}),
    ("logical messages", "shop.message", {"op": "m", "source": SOURCE, "message": {"prefix": "p", "content": ""}}),
    ("notifications", "notifications", {
        "id": "5563ae14", "aggregate_type": "Initial Snapshot", "type": "COMPLETED", "timestamp": 1,
        "additional_data": {"connector_name": "shop"}}),
    ("signals", "signals", {"type": "execute-snapshot", "data": {"data-collections": ["public.users"]}}),
    ("signals", "shop.public.debezium_signal", row("debezium_signal", id="a", type="log", data='{"message":"x"}')),
    ("signals", "shop.public.debezium_signal", row("debezium_signal", "d", id="a")),
    ("signals", "shop.dbo.debezium_signal", {"ID": "a", "TYPE": "log", "DATA": "{}", "__op": "c", "__deleted": "false",
                                             "__table": "DEBEZIUM_SIGNAL", "__source_schema": "dbo"}),
]  # fmt: skip
KINDS = {kind: sum(k == kind for k, _, _ in CONTROL) for kind, _, _ in CONTROL}


def schema_of(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"type": "struct", "fields": [{**schema_of(v), "field": n} for n, v in value.items()]}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0] if value else "")}
    return {"type": "int64" if isinstance(value, int) else "string", "optional": True}


def with_schema(value: Any) -> dict[str, Any]:
    return {"schema": schema_of(value), "payload": value}


FORMS: Mapping[str, Callable[[str, Any], Any]] = {
    "value alone": lambda _, value: value,
    "value alone, with its schema": lambda _, value: with_schema(value),
    "wrapped": lambda topic, value: {"topic": topic, "key": {"k": "x"}, "value": value},
    "wrapped, with schemas": lambda topic, value: {
        "destination": topic, "key": with_schema({"k": "x"}), "value": with_schema(value),
    },
}  # fmt: skip


def spec(folder: Path, format_: str = "debezium", **more: Any) -> RawSpec:
    return RawSpec(RAW, folder, format_, "p", **more)


def deliver(folder: Path, *records: Any, name: str = "a.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines_of(*records)))
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_what_is_about_no_row_is_counted_by_kind_and_not_rejected(plain_lake: Lake, tmp_path: Path, form: str) -> None:
    put = FORMS[form]
    records = [put(topic, value) for _, topic, value in CONTROL]
    folder = deliver(tmp_path / "in", *records, put("shop.public.users", row(id=1)))
    landed = land(plain_lake, spec(folder))
    assert (landed.records, landed.rejected, landed.skipped) == (len(CONTROL) + 1, 0, KINDS)
    assert routes(plain_lake, RAW) == [SourceTable("public", "users")]


def test_the_outcome_of_a_step_names_what_it_skipped(plain_lake: Lake, tmp_path: Path) -> None:
    beat, begin = CONTROL[0][2], CONTROL[6][2]
    outcome = absorb(plain_lake, spec(deliver(tmp_path / "in", beat, beat, begin, row(id=1))))
    assert outcome.details == {"skipped": "heartbeats: 2, transaction markers: 1"}
    assert absorb(plain_lake, spec(deliver(tmp_path / "in", row(id=2), name="b.jsonl"))).details == {}


ALMOST = [
    {"ts_ms": 1, "x": 2},
    {"status": "OPEN", "id": "1", "event_count": 1},
    {"status": "BEGIN", "id": "1", "event_count": 1, "total": 2},
    {"databaseName": "shop", "ddl": "x", "source": "text"},
    {"databaseName": "shop", "source": SOURCE},
    {"id": 1, "type": "COMPLETED", "aggregate_type": "x", "name": "y"},
    {"type": "unheard-of", "data": {}},
]


@pytest.mark.parametrize("value", ALMOST)
def test_what_only_resembles_such_a_record_is_still_rejected(value: dict[str, Any]) -> None:
    with pytest.raises(MalformedRecordError, match="no Debezium envelope"):
        event_format("debezium").routes(value)


@pytest.mark.parametrize(
    "value",
    [
        row("t", status="BEGIN", id="1", event_count=1),
        row("debezium_signals", id="a", type="log", data="{}"),
        row("debezium_signal", id="a", type="log", data="{}", more=1),
        {"ts_ms": 1, "__op": "c", "__table": "t", "__db": "public"},
        {"type": "log", "data": "x", "__op": "c", "__table": "t", "__db": "public"},
    ],
)
def test_rows_with_such_columns_are_rows(plain_lake: Lake, tmp_path: Path, value: dict[str, Any]) -> None:
    landed = land(plain_lake, spec(deliver(tmp_path / "in", value)))
    assert (landed.rejected, landed.skipped, len(routes(plain_lake, RAW))) == (0, {}, 1)


def test_a_table_of_signals_that_is_declared_or_known_is_a_table(plain_lake: Lake, tmp_path: Path) -> None:
    signal, name = row("debezium_signal", id="a", type="log", data="{}"), SourceTable("public", "debezium_signal")
    folder = deliver(tmp_path / "in", signal)
    assert land(plain_lake, spec(folder, signal_tables=frozenset({name}))).skipped == {}
    deliver(folder, {**signal}, name="b.jsonl")
    assert land(plain_lake, spec(folder)).skipped == {}
    assert routes(plain_lake, RAW) == [name]


def test_lines_of_wal2json_about_no_row_are_counted(plain_lake: Lake, tmp_path: Path) -> None:
    message = {"kind": "message", "transactional": True, "prefix": "p", "content": "c"}
    begin, said, commit = ({"action": a, "xid": 1} for a in "BMC")
    landed = land(plain_lake, spec(deliver(tmp_path / "in", begin, said, commit), "wal2json-v2"))
    assert landed.skipped == {"transaction markers": 2, "logical messages": 1}
    other = TableId.parse("raw.v1")
    one = RawSpec(other, deliver(tmp_path / "v1", {"change": [message]}, {"change": []}), "wal2json-v1", "p")
    assert land(plain_lake, one).skipped == {"logical messages": 1, "transactions without changes": 1}


@pytest.mark.spark
def test_a_message_within_a_transaction_leaves_its_changes_readable(spark_lake: Lake) -> None:
    message = {"kind": "message", "transactional": True, "prefix": "p", "content": "c"}
    change = {"kind": "insert", "schema": "public", "table": "t", "columnnames": ["id"], "columntypes": ["integer"],
              "columnvalues": [1]}  # fmt: skip
    line = json.dumps({"nextlsn": "0/10", "change": [message, change, message]})
    events = parse(spark_lake.spark(), event_format("wal2json-v1"), [line], Hints(SourceTable("public", "t")))
    assert [(e.op, e.row, e.bad) for e in events] == [(INSERT, {"id": 1}, None)]


def test_the_outcome_of_a_step_names_tables_that_are_not_declared(plain_lake: Lake, tmp_path: Path) -> None:
    def of(table: str) -> Any:
        value = row(id=1)
        return {**value, "source": {**value["source"], "table": table}}

    tables = ["users", "users", "_hyper_1_1_chunk", "parts", *(f"t{n}" for n in range(6))]
    folder = deliver(tmp_path / "in", *map(of, tables))
    outcome = absorb(plain_lake, spec(folder, tables=("public.parts", "public.t[0-2]", "public.t3")))
    assert outcome.details == {
        "tables_not_declared": "public._hyper_1_1_chunk: 1, public.t4: 1, public.t5: 1, public.users: 2"
    }
    many = deliver(tmp_path / "in", *(of(f"t{n}") for n in range(8)), name="b.jsonl")
    assert str(absorb(plain_lake, spec(many, tables=("public.x",))).details["tables_not_declared"]).endswith(
        " and 3 more tables"
    )

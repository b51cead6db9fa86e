"""Debezium's events in their other forms: without schemas, flattened, the value alone."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import MalformedRecordError
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import DELETE, INSERT, READ, TRUNCATE, UPDATE, Hints, Seen
from lake_assets.formats.types.inferred_types import Inferred, parse_schema, type_of
from tests.support.debezium import BIGINT, TIMESTAMP, Event, Table, decimal
from tests.support.parsing import Parsed, lines_of, parse

DEBEZIUM = event_format("debezium")
CONSUMERS = SourceTable("inventory", "consumers")
KEYED = Hints(table=CONSUMERS, key=("id",))


def envelope(op: str, after: Any, before: Any = None, lsn: int = 100) -> dict[str, Any]:
    source = {"db": "shop", "schema": "inventory", "table": "consumers", "lsn": lsn, "ts_ms": 1_700_000_000_000}
    return {"before": before, "after": after, "source": {**source, "sequence": f'["90","{lsn}"]'}, "op": op}


def flat(op: str, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Flatten an event like ExtractNewRecordState with add.fields=op,table,source.ts_ms,db and rewritten deletes."""
    return {
        **row, "__op": op, "__table": "consumers", "__source_ts_ms": 1_700_000_000_000, "__db": "inventory",
        "__deleted": "true" if op == "d" else "false", **more,
    }  # fmt: skip


def wrapped(value: Any, key: Any) -> dict[str, Any]:
    return {"destination": "shop.inventory.consumers", "key": key, "value": value}


def images(events: list[Parsed]) -> list[tuple[str | None, dict[str, Any]]]:
    return [(e.op, {n: v for n, v in e.row.items() if v is not None}) for e in events]


# --- routing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        envelope("c", {"id": 1}),
        wrapped(envelope("c", {"id": 1}), {"id": 1}),
        {"schema": {"type": "struct", "fields": []}, "payload": envelope("c", {"id": 1})},
        {"topic": "t", "partition": 0, "offset": 5, "key": None, "value": envelope("c", {"id": 1})},
        flat("c", {"id": 1}),
        wrapped(flat("c", {"id": 1}), {"id": 1}),
        wrapped({"id": 1, "__op": "c"}, {"id": 1}),  # by its topic
        {"id": 1, "__op": "c", "__source_schema": "inventory", "__source_table": "consumers"},
    ],
)
def test_every_form_is_about_its_table(record: Any) -> None:
    assert DEBEZIUM.routes(record) == (CONSUMERS,)


def test_a_flattened_row_without_a_table_belongs_to_the_declared_one() -> None:
    record = {"id": 1, "__deleted": "false"}
    assert DEBEZIUM.routes(record, CONSUMERS) == (CONSUMERS,)
    with pytest.raises(MalformedRecordError, match="does not name its table"):
        DEBEZIUM.routes(record)


def test_a_table_with_columns_called_key_value_schema_and_payload_is_a_table() -> None:
    for row in ({"key": "a", "value": "b"}, {"schema": "a", "payload": "b"}):
        assert DEBEZIUM.routes(flat("c", row)) == (CONSUMERS,)


@pytest.mark.parametrize("value", [None, {"schema": None, "payload": None}])
def test_tombstones_are_about_no_row(value: Any) -> None:
    assert DEBEZIUM.routes(wrapped(value, {"id": 1})) == ()


# --- without schemas --------------------------------------------------------------------------------------------------


EMAIL = {"type": "string", "field": "email"}
SCHEMAS = {
    "value": {"type": "struct", "fields": [
        {"type": "string", "field": "op"},
        *({"type": "struct", "field": f, "fields": [{"type": "int64", "field": "id"}, EMAIL]} for f in ("before", "after")),
        {"type": "struct", "field": "source", "fields": []},
    ]},
    "key": {"type": "struct", "fields": [{"type": "int64", "field": "id"}]},
}  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("form", ["value alone", "wrapped", "wrapped, with schemas", "value alone, with schema"])
def test_an_update_that_changes_a_declared_key_is_a_delete_and_an_insert(spark_lake: Lake, form: str) -> None:
    def put(value: dict[str, Any]) -> dict[str, Any]:
        key = {"id": (value["after"] or value["before"])["id"]}
        match form:
            case "value alone":
                return value
            case "wrapped":
                return wrapped(value, key)
            case "value alone, with schema":
                return {"schema": SCHEMAS["value"], "payload": value}
            case _:
                return wrapped(
                    {"schema": SCHEMAS["value"], "payload": value}, {"schema": SCHEMAS["key"], "payload": key}
                )

    one, two, three = {"id": 1, "email": "a"}, {"id": 1, "email": "b"}, {"id": 2, "email": "b"}
    records = [
        envelope("c", one),
        envelope("u", one, one, 101),
        envelope("u", two, one, 102),
        envelope("u", three, two, 103),
        envelope("u", one, None, 104),  # without the old row
        envelope("u", one, {"id": 5, "email": None}, 105),
        envelope("d", None, one, 106),
    ]
    hints = Hints(table=CONSUMERS, key=("email",))
    events = parse(spark_lake.spark(), DEBEZIUM, lines_of(*map(put, records)), hints)
    assert [(e.position, e.index, *e.image) for e in events] == [
        (0, 0, INSERT, one), (1, 0, UPDATE, one), (2, 0, DELETE, one), (2, 1, INSERT, two), (3, 0, UPDATE, three),
        (4, 0, UPDATE, one), (5, 0, UPDATE, one), (6, 0, DELETE, one),
    ]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("form", ["wrapped", "value alone", "key with a schema"])
def test_types_are_inferred_over_the_whole_batch(spark_lake: Lake, form: str) -> None:
    def put(value: dict[str, Any]) -> dict[str, Any]:
        key = {"id": (value["after"] or value["before"])["id"]}
        if form == "value alone":
            return value
        key_schema = {"type": "struct", "fields": [{"type": "int64", "field": "id"}]}
        return wrapped(value, key if form == "wrapped" else {"schema": key_schema, "payload": key})

    records = [
        envelope("r", {"id": 1, "n": None, "f": 1, "s": "x", "b": None, "tags": [], "empty": None}),
        envelope("u", {"id": 1, "n": 2**53 + 1, "f": 0.1, "s": "", "b": True, "tags": ["a", None], "empty": None}),
        envelope("d", None, {"id": 1, "n": None, "f": None, "s": None, "b": None, "tags": None, "empty": None}),
    ]
    hints = KEYED if form == "value alone" else Hints(table=CONSUMERS)
    events = parse(spark_lake.spark(), DEBEZIUM, lines_of(*map(put, records)), hints)
    assert images(events) == [
        (READ, {"id": 1, "f": 1.0, "s": "x", "tags": []}),
        (UPDATE, {"id": 1, "n": 2**53 + 1, "f": 0.1, "s": "", "b": True, "tags": ["a", None]}),
        (DELETE, {"id": 1}),
    ]
    assert all("empty" not in e.row for e in events)


@pytest.mark.spark
def test_numbers_too_precise_for_a_double_stay_exact(spark_lake: Lake) -> None:
    after = '{"id":12345678901234567890123,"amount":"1234567890123456789012345678.0123456789"}'
    line = json.dumps(envelope("c", "X")).replace('"X"', after)
    hints = Hints(table=CONSUMERS, types={"amount": "decimal(38,10)"})
    (event,) = parse(spark_lake.spark(), DEBEZIUM, [line], hints)
    assert event.row == {
        "id": Decimal("12345678901234567890123"),
        "amount": Decimal("1234567890123456789012345678.0123456789"),
    }


@pytest.mark.spark
def test_a_declared_type_neither_rounds_nor_truncates(spark_lake: Lake) -> None:
    table = Table({"id": BIGINT, "n": decimal(6, 2), "at": TIMESTAMP})
    day = dt.datetime(2024, 1, 2)  # noqa: DTZ001
    rows = [("5.00", day), ("5.50", day), ("5.00", day.replace(hour=12))]
    events = [Event(table, "c", (i, i), {"id": i, "n": n, "at": at}) for i, (n, at) in enumerate(rows)]
    hints = Hints(table=SourceTable("public", "t"), types={"n": "bigint", "at": "date"})
    parsed = parse(spark_lake.spark(), DEBEZIUM, [json.dumps(r) for e in events for r in e.records()], hints)
    assert (parsed[0].row["n"], parsed[0].row["at"], parsed[0].bad) == (5, day.date(), None)
    assert [(e.bad or "").split(":")[0] for e in parsed[1:]] == ["n does not fit bigint", "at does not fit date"]


@pytest.mark.spark
def test_nested_values_and_names_of_any_kind(spark_lake: Lake) -> None:
    after = {"id": 1, "a.b": {"x": 1.5}, "q`\"'": "'); --", "SELECT": [[1]], "ü": "ö", "Id2": 1}
    (event,) = parse(spark_lake.spark(), DEBEZIUM, lines_of(envelope("c", after)), KEYED)
    assert event.row == {"id": 1, "a.b": '{"x":1.5}', "q`\"'": "'); --", "SELECT": "[[1]]", "ü": "ö", "Id2": 1}


@pytest.mark.spark
def test_records_that_spark_cannot_parse_as_objects_have_no_op(spark_lake: Lake) -> None:
    # Python uses the last of two equal names, Spark's variants reject them.
    broken = json.dumps(envelope("c", {"id": 2})).replace('"op": "c"', '"op": "c", "op": "c"')
    events = parse(spark_lake.spark(), DEBEZIUM, [*lines_of(envelope("c", {"id": 1})), broken], KEYED)
    assert [e.bad for e in events] == [None, "no such op"]


# --- flattened --------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_the_configuration_of_the_article(spark_lake: Lake) -> None:
    # "Debezium Server Iceberg": unwrap with add.fields=op,table,source.ts_ms,db, delete.handling.mode=rewrite.
    customers = [
        flat("r", {"id": 1, "first_name": "Sally", "balance": "10.50"}),
        flat("c", {"id": 2, "first_name": "George", "balance": None}, __source_ts_ms=1_700_000_001_000),
        flat("u", {"id": 1, "first_name": "Anne", "balance": "7"}, __source_ts_ms=1_700_000_002_000),
        flat("d", {"id": 2, "first_name": None, "balance": None}, __source_ts_ms=1_700_000_003_000),
    ]
    lines = lines_of(*(wrapped(r, {"id": r["id"]}) for r in customers), wrapped(None, {"id": 2}))
    hints = Hints(table=CONSUMERS, types={"balance": "decimal(10,2)"})
    events = parse(spark_lake.spark(), DEBEZIUM, lines, hints)
    assert images(events) == [
        (READ, {"id": 1, "first_name": "Sally", "balance": Decimal("10.50")}),
        (INSERT, {"id": 2, "first_name": "George"}),
        (UPDATE, {"id": 1, "first_name": "Anne", "balance": Decimal(7)}),
        (DELETE, {"id": 2}),
    ]
    assert [e.sequence for e in events] == sorted(e.sequence for e in events)
    assert events[0].event_time is not None
    assert set(events[0].row) == {"id", "first_name", "balance"}


@pytest.mark.spark
def test_without_op_an_event_is_an_upsert_or_a_delete(spark_lake: Lake) -> None:
    rows = [{"id": 1, "__deleted": "false", "__lsn": 1}, {"id": 1, "__deleted": "true", "__lsn": 2}]
    assert [e.op for e in parse(spark_lake.spark(), DEBEZIUM, lines_of(*rows), KEYED)] == [UPDATE, DELETE]


@pytest.mark.spark
def test_flattened_rows_are_ordered_by_lsn_where_they_have_one(spark_lake: Lake) -> None:
    for name in ("__lsn", "__source_lsn"):
        rows = [flat("c", {"id": i}, **{name: lsn}) for i, lsn in enumerate((1000, 99, 2))]
        events = parse(spark_lake.spark(), DEBEZIUM, lines_of(*rows), KEYED)
        assert [e.row["id"] for e in sorted(events, key=lambda e: e.sequence)] == [2, 1, 0]


@pytest.mark.spark
def test_a_truncate_differs_from_an_unknown_op(spark_lake: Lake) -> None:
    records = [envelope("t", None), envelope("x", {"id": 1}), envelope("c", {"id": 1}), envelope("u", None)]
    events = parse(spark_lake.spark(), DEBEZIUM, lines_of(*records), KEYED)
    assert [(e.op, e.bad) for e in events] == [
        (TRUNCATE, None),
        (None, "no such op"),
        (INSERT, None),
        (None, "no such op"),
    ]


def test_a_key_column_that_no_row_has_is_read_from_the_key() -> None:
    shape = "OBJECT<key: OBJECT<other: BIGINT>, value: OBJECT<__op: STRING, __lsn: BIGINT, id: BIGINT>>"
    plan = DEBEZIUM.plans([Seen("", shape)], Hints())[0].plan
    assert plan.key == ("other",)  # the key's own column is read from the key


def test_two_spellings_in_records_without_schemas_are_one_column() -> None:
    """Each record has one spelling; a record with both is rejected (tests/ingest/test_missing_columns.py)."""
    plan = DEBEZIUM.plans([Seen("", "OBJECT<__op: STRING, __lsn: BIGINT, id: BIGINT, ID: BIGINT>")], Hints())[0].plan
    assert [c.name for c in plan.columns] == ["id"]


# --- inferred types ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Inferred("VOID")),
        ("BIGINT", Inferred("BIGINT")),
        ("DECIMAL(20,3)", Inferred("DECIMAL", 20, 3)),
        ("ARRAY<ARRAY<STRING>>", Inferred("ARRAY", items=Inferred("ARRAY", items=Inferred("STRING")))),
        (
            "OBJECT<a: OBJECT<>, `b``.c>`: VOID>",
            Inferred("OBJECT", fields={"a": Inferred("OBJECT"), "b`.c>": Inferred("VOID")}),
        ),
    ],
)
def test_the_text_of_a_schema_is_read(text: str | None, expected: Inferred) -> None:
    assert parse_schema(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("VOID", None), ("BIGINT", "bigint"), ("DECIMAL(1,0)", "double"), ("DECIMAL(20,0)", "decimal(38,0)"),
        ("DECIMAL(5,2)", "double"), ("DOUBLE", "double"), ("BOOLEAN", "boolean"), ("STRING", "string"),
        ("VARIANT", "string"), ("OBJECT<a: BIGINT>", "string"), ("ARRAY<BIGINT>", "array<bigint>"),
        ("ARRAY<VOID>", "array<string>"), ("ARRAY<ARRAY<BIGINT>>", "string"),
    ],
)  # fmt: skip
def test_inferred_types_are_ones_that_keep_the_values(text: str, expected: str | None) -> None:
    assert type_of(parse_schema(text)) == expected


def test_a_batch_may_hold_all_forms(spark_lake: Lake) -> None:
    """A connector gets another transform, and the records of one batch are wrapped or bare, enveloped or flattened."""
    forms = [
        wrapped(envelope("c", {"id": 1, "op": "x", "v": "a"}, lsn=10), {"id": 1}),
        envelope("u", {"id": 2, "v": 1.5}, {"id": 2, "v": 1}, lsn=20),
        flat("c", {"id": 3, "op": "y", "source": "z", "v": "c"}, __lsn=30),
        wrapped(flat("d", {"id": 4}, __lsn=40), {"id": 4}),
    ]
    hints = Hints(table=CONSUMERS, key=("id",), existing_columns={"op": "string"})
    for lines in (forms, forms[::-1]):
        found = parse(spark_lake.spark(), DEBEZIUM, lines_of(*lines), hints)
        assert [(e.op, e.row["id"], e.row.get("op"), e.bad) for e in sorted(found, key=lambda e: e.row["id"])] == [
            (INSERT, 1, "x", None),
            (UPDATE, 2, None, None),
            (INSERT, 3, "y", None),
            (DELETE, 4, None, None),
        ]
        assert [e.row.get("v") for e in sorted(found, key=lambda e: e.row["id"])][:3] == ["a", 1.5, "c"]

"""Values in Avro become Connect's JSON with its schema, or plain rows, without losing a digit."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.sources.avro_values import AvroReader
from lake_assets.sources.connect_nodes import SchemaError, ValueProblem, single


def read(schema: Any, value: Any, *, is_plain: bool = False, references: Mapping[str, Any] | None = None) -> Any:
    """Return what a reader makes of a value that fastavro has written."""
    named: dict[str, Any] = {}
    for other in (references or {}).values():
        fastavro.parse_schema(other, named_schemas=named)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=named), value)
    texts = {n: json.dumps(s) for n, s in (references or {}).items()}
    return AvroReader(json.dumps(schema), texts, is_plain=is_plain).read(b"\0\0\0\0\1" + out.getvalue(), 5)


def of_connect(schema: Any) -> Any:
    return json.loads(AvroReader(json.dumps(schema), {}, is_plain=False).schema)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}


@given(st.decimals(min_value=-(10**9), max_value=10**9, places=2))
def test_decimals_keep_their_bytes_and_their_digits(number: Decimal) -> None:
    raw = base64.b64decode(read(DECIMAL, number))
    assert Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-2) == number
    assert Decimal(read(DECIMAL, number, is_plain=True)) == number
    assert len(read(DECIMAL, number, is_plain=True).partition(".")[2]) == 2


@given(
    st.integers(-62_135_510_400, 253_402_128_000).map(
        lambda s: EPOCH + timedelta(seconds=s, microseconds=abs(s) % 999_983)
    )
)
def test_timestamps_keep_microseconds(moment: datetime) -> None:
    schema = {"type": "long", "logicalType": "timestamp-micros"}
    assert read(schema, moment) == (moment - EPOCH) // timedelta(microseconds=1)
    assert datetime.fromisoformat(read(schema, moment, is_plain=True)).replace(tzinfo=UTC) == moment


@given(st.floats(width=32))
def test_small_floats_are_written_short_and_read_as_the_same(number: float) -> None:
    text = single(number)
    if math.isfinite(number):
        digits, of_double = (Decimal(repr(n)).normalize().as_tuple().digits for n in (text, number))
        assert len(digits) <= len(of_double)
        import struct

        assert struct.pack("<f", float(text)) == struct.pack("<f", number)
    else:
        assert text in ("NaN", "Infinity", "-Infinity")


@given(st.dictionaries(st.text(min_size=1), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))))
def test_maps_of_text(values: dict[str, int | None]) -> None:
    assert read({"type": "map", "values": ["null", "long"]}, values) == values


def test_maps_with_other_keys_are_pairs() -> None:
    entry = {
        "type": "record",
        "name": "MapEntry",
        "connect.internal.type": "MapEntry",
        "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": ["null", "bytes"], "default": None}],
    }
    schema = {"type": "array", "items": entry}
    assert read(schema, [{"key": 1, "value": b"a"}, {"key": 2, "value": None}]) == [[1, "YQ=="], [2, None]]
    assert of_connect(schema)["type"] == "map"


def test_what_the_schema_says_for_connect_is_kept() -> None:
    schema = {
        "type": "record",
        "name": "Value",
        "namespace": "shop.orders",
        "connect.name": "shop.orders.Value",
        "fields": [
            {"name": "small", "type": {"type": "int", "connect.type": "int16"}},
            {
                "name": "amount",
                "type": ["null", {**DECIMAL, "connect.name": "org.apache.kafka.connect.data.Decimal", "connect.version": 1,
                                  "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"},
                                  "connect.default": "\x00\xff"}],
                "default": None,
            },
            {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
            {"name": "state", "type": {"type": "string", "connect.default": "new"}, "default": "new"},
            {"name": "other", "type": "int", "default": 7},
        ],
    }  # fmt: skip
    small, amount, at, state, other = of_connect(schema)["fields"]
    assert small == {"type": "int16", "optional": False, "field": "small"}
    assert amount == {
        "type": "bytes", "optional": True, "name": "org.apache.kafka.connect.data.Decimal", "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "12"}, "default": "AP8=", "field": "amount",
    }  # fmt: skip
    assert at["name"] == "io.debezium.time.MicroTimestamp"
    assert (state["default"], other["default"]) == ("new", 7)


def test_schemas_in_other_schemas() -> None:
    address = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "zip", "type": "bytes"}]}
    person = {
        "type": "record",
        "name": "Person",
        "namespace": "shop",
        "fields": [{"name": "home", "type": "Address"}, {"name": "work", "type": ["null", "shop.Address"]}],
    }
    value = {"home": {"zip": b"1"}, "work": {"zip": b"2"}}
    assert read(person, value, references={"address": address}) == {"home": {"zip": "MQ=="}, "work": {"zip": "Mg=="}}


def test_enums_fixed_and_uuids() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
            {
                "name": "d",
                "type": {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 3},
            },
            {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        ],
    }
    value = {"e": "B", "f": b"\x00\x01\x02", "d": Decimal("-1.234"), "u": "7c9e6679-7425-40de-944b-e07fc1f90ae7"}
    assert read(schema, value) == {
        **value,
        "f": "AAEC",
        "d": base64.b64encode((-1234).to_bytes(4, "big", signed=True)).decode(),
    }
    assert read(schema, value, is_plain=True)["d"] == "-1.234"
    assert [f["name"] for f in of_connect(schema)["fields"] if "name" in f][::2] == [
        "io.debezium.data.Enum",
        "io.debezium.data.Uuid",
    ]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (["null", "int", "string"], "is a union of 2 types besides null"),
        ({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}, "which contains itself"),
        ("nothing known", "cannot be read"),
    ],
)
def test_schemas_that_no_column_can_hold(schema: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        AvroReader(json.dumps(schema), {}, is_plain=False)


def test_a_schema_that_is_no_json() -> None:
    with pytest.raises(SchemaError, match="cannot be read"):
        AvroReader("message Orders {}", {}, is_plain=False)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_a_named_problem(raw: bytes) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": ["null", "string"]},
            {"name": "b", "type": {"type": "array", "items": "double"}},
        ],
    }
    reader = AvroReader(json.dumps(schema), {}, is_plain=False)
    try:
        value = reader.read(raw, 0)
    except ValueProblem:
        return
    assert set(value) == {"a", "b"}


def test_bytes_after_a_value_are_a_problem() -> None:
    with pytest.raises(ValueProblem, match="2 bytes are left"):
        AvroReader('"int"', {}, is_plain=False).read(b"\x02zz", 0)


def test_a_day_that_no_text_holds_is_a_problem() -> None:
    with pytest.raises(ValueProblem, match="not in the years 1 to 9999"):
        AvroReader('{"type":"int","logicalType":"date"}', {}, is_plain=True).read(b"\xfe\xff\xff\xff\x0f", 0)

"""How every Connect and Debezium type is read by Spark, with values computed by hand."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

from lake_assets import Lake
from lake_assets.formats.types.connect_types import read_as_text, read_value
from lake_assets.formats.types.placeholders import placeholders
from lake_assets.formats.types.text_types import Reading


def b64(number: int, size: int | None = None) -> str:
    """Return a big-endian two's complement in base64."""
    length = size or ((number if number >= 0 else ~number).bit_length() // 8 + 1)
    return base64.b64encode(number.to_bytes(length, "big", signed=True)).decode()


def decimal(precision: int | None, scale: int) -> dict[str, Any]:
    parameters = {"scale": str(scale)} | ({"connect.decimal.precision": str(precision)} if precision else {})
    return {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": parameters}


def logical(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "name": name if "." in name[2:] else f"io.debezium.time.{name}"}


VARIABLE = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}
DAY_US = 86_400_000_000
BIG = 10**38 - 1
ODD = 12345678901234567890123456789012345678

LARGE = [sign * n for sign in (1, -1) for n in (10**38, 2**128 - 1, 2**128, 10**300, int("123456789" * 40))]
KAFKA = "org.apache.kafka.connect.data"
# schema, value in JSON, type in Spark, the value as Spark's text (so that no time zone of Python comes in between)
CASES: list[tuple[dict[str, Any], Any, str, str]] = [
    ({"type": "boolean"}, True, "boolean", "true"),
    ({"type": "boolean"}, False, "boolean", "false"),
    ({"type": "int8"}, -128, "int", "-128"),
    ({"type": "int16"}, 32767, "int", "32767"),
    ({"type": "int32"}, -(2**31), "int", "-2147483648"),
    ({"type": "int64"}, 2**63 - 1, "bigint", "9223372036854775807"),
    ({"type": "int64"}, 2**53 + 1, "bigint", "9007199254740993"),
    ({"type": "float"}, 1.5, "float", "1.5"),
    ({"type": "double"}, 0.1, "double", "0.1"),
    ({"type": "double"}, 1.7976931348623157e308, "double", "1.7976931348623157E308"),
    ({"type": "double"}, 5e-324, "double", "4.9E-324"),
    ({"type": "double"}, "NaN", "double", "NaN"),
    ({"type": "double"}, "Infinity", "double", "Infinity"),
    ({"type": "float"}, "-Infinity", "float", "-Infinity"),
    ({"type": "string"}, "", "string", ""),
    ({"type": "string"}, 'q"\\\n\t é😀 \u2028 $.x', "string", 'q"\\\n\t é😀 \u2028 $.x'),
    ({"type": "string"}, "null", "string", "null"),
    ({"type": "string", "name": "io.debezium.data.Json"}, '{"a": [1, 2]}', "string", '{"a": [1, 2]}'),
    ({"type": "string", "name": "io.debezium.data.Uuid"}, "0-1", "string", "0-1"),
    # Decimals: an unscaled integer in two's complement.
    (decimal(12, 2), b64(-1234), "decimal(12,2)", "-12.34"),
    (decimal(12, 2), b64(0), "decimal(12,2)", "0.00"),
    (decimal(12, 2), b64(-1), "decimal(12,2)", "-0.01"),
    (decimal(12, 2), b64(127), "decimal(12,2)", "1.27"),
    (decimal(12, 2), b64(128), "decimal(12,2)", "1.28"),
    (decimal(12, 2), b64(-128), "decimal(12,2)", "-1.28"),
    (decimal(12, 2), b64(-129), "decimal(12,2)", "-1.29"),
    (decimal(12, 2), b64(999_999_999_999), "decimal(12,2)", "9999999999.99"),
    (decimal(12, 2), b64(5, 8), "decimal(12,2)", "0.05"),
    (decimal(18, 0), b64(-999_999_999_999_999_999), "decimal(18,0)", "-999999999999999999"),
    (decimal(18, 18), b64(-1), "decimal(18,18)", "-0.000000000000000001"),
    (decimal(19, 1), b64(2**63), "decimal(19,1)", "922337203685477580.8"),
    (decimal(19, 1), b64(-(2**63)), "decimal(19,1)", "-922337203685477580.8"),
    (decimal(20, 0), b64(2**64), "decimal(20,0)", "18446744073709551616"),
    (decimal(20, 0), b64(-(2**64) - 1), "decimal(20,0)", "-18446744073709551617"),
    (decimal(38, 0), b64(BIG), "decimal(38,0)", "9" * 38),
    (decimal(38, 0), b64(-(2**64)), "decimal(38,0)", str(-(2**64))),
    (decimal(38, 0), b64(-(2**65) + 1), "decimal(38,0)", str(-(2**65) + 1)),
    (decimal(38, 0), b64(-BIG), "decimal(38,0)", "-" + "9" * 38),
    (decimal(38, 10), b64(-BIG), "decimal(38,10)", "-" + "9" * 28 + "." + "9" * 10),
    (decimal(38, 10), b64(-ODD), "decimal(38,10)", "-1234567890123456789012345678.9012345678"),
    (decimal(38, 38), b64(BIG), "decimal(38,38)", "0." + "9" * 38),
    (decimal(38, 38), b64(7), "decimal(38,38)", "0." + "0" * 37 + "7"),
    (decimal(None, 0), b64(12), "decimal(38,0)", "12"),
    # numeric(3,5) holds 0.00999 at most; numeric(2,-3) holds 99000 at most.
    (decimal(3, 5), b64(-999), "decimal(5,5)", "-0.00999"),
    (decimal(2, -3), b64(-99), "decimal(5,0)", "-99000"),
    (decimal(2, -3), b64(0), "decimal(5,0)", "0"),
    # Values too large for Spark's decimals stay exact as text.
    (decimal(40, 2), b64(-12345), "string", "-123.45"),
    (decimal(100, 50), b64(3), "string", "0." + "0" * 49 + "3"),
    (decimal(30, -20), b64(-12), "string", "-12" + "0" * 20),
    (VARIABLE, {"scale": 0, "value": b64(7)}, "string", "7"),
    (VARIABLE, {"scale": 3, "value": b64(-7)}, "string", "-0.007"),
    (VARIABLE, {"scale": 5, "value": b64(BIG)}, "string", "9" * 33 + "." + "9" * 5),
    (VARIABLE, {"scale": 10, "value": b64(-ODD)}, "string", "-1234567890123456789012345678.9012345678"),
    (VARIABLE, {"scale": -2, "value": b64(3)}, "string", "300"),
    *((VARIABLE, {"scale": 4, "value": b64(n)}, "string", f"{'-' if n < 0 else ''}{str(abs(n))[:-4]}.{str(abs(n))[-4:]}")
      for n in LARGE),
    *((decimal(400, 0), b64(n, size), "string", str(n)) for n in LARGE for size in (None, 162)),
    # Days since 1970.
    (logical("int32", "Date"), 0, "date", "1970-01-01"),
    (logical("int32", "Date"), -1, "date", "1969-12-31"),
    (logical("int32", "Date"), -25_567, "date", "1900-01-01"),
    (logical("int32", "Date"), -719_162, "date", "0001-01-01"),
    (logical("int32", "Date"), 2_932_896, "date", "9999-12-31"),
    # Infinite dates: in a stream, in a stream since Debezium 3.6, in a snapshot, in a snapshot read east of Greenwich.
    *((logical("int32", "Date"), day, "date", "9999-12-31") for day in (-2147472692, 2146033979, -622191234, -622191233)),
    *((logical("int32", "Date"), day, "date", "0001-01-01") for day in (-2147472691, -625821272, -625821271)),
    ({"type": "int32", "name": "org.apache.kafka.connect.data.Date"}, 19_723, "date", "2024-01-01"),
    (logical("int64", "Timestamp"), -1, "timestamp_ntz", "1969-12-31 23:59:59.999"),
    ({"type": "int64", "name": f"{KAFKA}.Timestamp"}, 1, "timestamp_ntz", "1970-01-01 00:00:00.001"),
    (logical("int64", "MicroTimestamp"), -1, "timestamp_ntz", "1969-12-31 23:59:59.999999"),
    (logical("int64", "MicroTimestamp"), 1_704_067_200_123_456, "timestamp_ntz", "2024-01-01 00:00:00.123456"),
    (logical("int64", "MicroTimestamp"), -62_135_596_800_000_000, "timestamp_ntz", "0001-01-01 00:00:00"),
    (logical("int64", "MicroTimestamp"), 253_402_300_799_999_999, "timestamp_ntz", "9999-12-31 23:59:59.999999"),
    (logical("int64", "NanoTimestamp"), 1_704_067_200_123_456_000, "timestamp_ntz", "2024-01-01 00:00:00.123456"),
    (logical("int64", "NanoTimestamp"), -1_000, "timestamp_ntz", "1969-12-31 23:59:59.999999"),
    (logical("string", "ZonedTimestamp"), "2024-01-01T00:00:00.5Z", "timestamp", "2024-01-01 00:00:00.5"),
    (logical("string", "ZonedTimestamp"), "2024-01-01T01:30:00.01+05:30", "timestamp", "2023-12-31 20:00:00.01"),
    (logical("string", "ZonedTimestamp"), "1883-11-18T12:03:58Z", "timestamp", "1883-11-18 12:03:58"),
    (logical("int32", "Time"), 1, "string", "00:00:00.001000"),
    ({"type": "int32", "name": "org.apache.kafka.connect.data.Time"}, 86_399_999, "string", "23:59:59.999000"),
    (logical("int64", "MicroTime"), 0, "string", "00:00:00.000000"),
    (logical("int64", "MicroTime"), DAY_US - 1, "string", "23:59:59.999999"),
    (logical("int64", "MicroTime"), DAY_US, "string", "24:00:00.000000"),
    (logical("int64", "NanoTime"), 1_000, "string", "00:00:00.000001"),
    (logical("string", "ZonedTime"), "12:00:00Z", "string", "12:00:00Z"),
    (logical("int64", "MicroDuration"), -(2**63), "bigint", "-9223372036854775808"),
    ({"type": "bytes"}, base64.b64encode(b"\x00\xff\x7f").decode(), "binary", "00FF7F"),
    ({"type": "bytes"}, "", "binary", ""),
    ({"type": "array", "items": {"type": "int32"}}, [1, None, -3], "array<int>", "[1, null, -3]"),
    ({"type": "array", "items": {"type": "string"}}, ["a,b", None, "", "x"], "array<string>", "[a,b, null, , x]"),
    ({"type": "array", "items": {"type": "int32"}}, [], "array<int>", "[]"),
    ({"type": "array", "items": decimal(6, 2)}, [b64(-150), b64(7)], "array<decimal(6,2)>", "[-1.50, 0.07]"),
    ({"type": "array", "items": logical("int32", "Date")}, [0, -1], "array<date>", "[1970-01-01, 1969-12-31]"),
    (
        {"type": "array", "items": {"type": "array", "items": {"type": "int64"}}},
        [[1, 2], [], [3]],
        "array<array<bigint>>",
        "[[1, 2], [], [3]]",
    ),
    ({"type": "struct", "name": "io.debezium.data.Point"}, {"x": 1.0, "y": [1]}, "string", '{"x":1.0,"y":[1]}'),
    ({"type": "map"}, {"k": None}, "string", '{"k":null}'),
]  # fmt: skip

# Values that do not fit are NULL here; the step that reads them names the record.
MISFITS: list[tuple[dict[str, Any], Any]] = [
    ({"type": "boolean"}, "maybe"),
    ({"type": "int32"}, 2**31),
    ({"type": "int32"}, "x"),
    ({"type": "int64"}, 2**63),
    ({"type": "int64"}, 1.5),
    ({"type": "double"}, "many"),
    (decimal(4, 2), b64(10_000)),
    (decimal(12, 2), b64(1, 9)),
    (decimal(12, 2), "not base64!"),
    (decimal(12, 2), ""),
    (decimal(38, 0), b64(10**38)),
    (decimal(38, 0), b64(-(2**127))),
    (decimal(38, 0), b64(1, 17)),
    (decimal(2, -3), b64(100)),
    (VARIABLE, {"scale": 1}),
    (VARIABLE, {"value": b64(1)}),
    (VARIABLE, {"scale": 1, "value": b64(10**1300)}),
    (logical("int32", "Date"), "today"),
    (logical("int32", "Date"), 2_932_897),
    (logical("int32", "Date"), -719_163),
    (logical("int32", "Date"), 2**31 - 1),
    ({"type": "int32", "name": f"{KAFKA}.Date"}, -(2**31)),
    (logical("int64", "Timestamp"), 2**63 - 1),
    ({"type": "int64", "name": f"{KAFKA}.Timestamp"}, -(2**63)),
    (logical("int64", "MicroTimestamp"), 253_402_300_800_000_000),
    (logical("int64", "MicroTimestamp"), 2**63 - 1),
    (logical("string", "ZonedTimestamp"), "+10000-01-01T00:00:00Z"),
    ({"type": "array", "items": logical("int32", "Date")}, [0, 2**31 - 1]),
    (logical("int64", "MicroTimestamp"), "now"),
    (logical("string", "ZonedTimestamp"), "yesterday"),
    ({"type": "bytes"}, "not base64!"),
    ({"type": "array", "items": {"type": "int32"}}, {"a": 1}),
    ({"type": "array", "items": {"type": "int32"}}, [1, "x"]),
    ({"type": "array", "items": decimal(4, 2)}, [b64(10_000)]),
]


# In a column declared as text.
TEXTS: list[tuple[dict[str, Any], Any, str]] = [
    (logical("int32", "Date"), 19_723, "2024-01-01"),
    (logical("int32", "Date"), 2_932_897, "+10000-01-01"),
    (logical("int32", "Date"), -719_529, "-0001-12-31"),
    (logical("int32", "Date"), -2147472692, "infinity"),
    (logical("int32", "Date"), -625821272, "-infinity"),
    (logical("int64", "Timestamp"), 1_704_067_200_500, "2024-01-01 00:00:00.5"),
    (logical("int64", "MicroTimestamp"), 9223372036825200000, "infinity"),
    (logical("int64", "MicroTimestamp"), 253_402_300_800_000_000, "+10000-01-01 00:00:00"),
    (logical("int64", "NanoTimestamp"), 1_704_067_200_000_000_001, "2024-01-01 00:00:00.000000001"),
    (logical("int64", "NanoTimestamp"), 1_704_067_200_500_000_000, "2024-01-01 00:00:00.5"),
    (logical("string", "ZonedTimestamp"), "2024-01-01T00:00:00.5Z", "2024-01-01 00:00:00.5"),
    (logical("string", "ZonedTimestamp"), "infinity", "infinity"),
    (decimal(12, 2), b64(-1234), "-12.34"),
    (decimal(12, 2), b64(10**40), str(10**38) + ".00"),
    ({"type": "double"}, "NaN", "NaN"),
    ({"type": "int64"}, 10**40, str(10**40)),
]


def test_a_text_column_accepts_values_that_the_sources_type_cannot_hold_here(spark_lake: Lake) -> None:
    row, _ = read(spark_lake, [(schema, value) for schema, value, _ in TEXTS], read_as_text)
    assert list(row) == [text for *_, text in TEXTS]


def read(
    lake: Lake, cases: list[tuple[dict[str, Any], Any]], reader: Callable[[dict[str, Any]], Reading] = read_value
) -> tuple[Row, list[str]]:
    """Read all values like staging: from the row image's JSON, by their fields' expressions, as text."""
    image = json.dumps({f"c{i}": value for i, (_, value) in enumerate(cases)})
    rows = lake.spark().createDataFrame([(image,)], "image STRING")
    parsed = rows.select(F.from_json("image", "MAP<STRING, STRING>").alias("m"))
    readings = [reader(schema) for schema, _ in cases]
    read_ = parsed.select(*(F.expr(r.inline(f"m['c{i}']")).alias(f"c{i}") for i, r in enumerate(readings)))
    columns = [F.hex(f"c{i}") if r.type == "binary" else F.col(f"c{i}").cast("string") for i, r in enumerate(readings)]
    kinds = [f.dataType.simpleString() for f in read_.schema.fields]
    assert kinds == [r.type for r in readings], "what is promised is not what Spark gives"
    return read_.select(*(s.alias(f"c{i}") for i, s in enumerate(columns))).collect()[0], kinds


@pytest.fixture(scope="module")
def values(spark_lake: Lake) -> tuple[Row, list[str]]:
    return read(spark_lake, [(schema, value) for schema, value, _, _ in CASES])


def _name(case: tuple[Any, ...]) -> str:
    schema = case[0]
    return f"{schema.get('name', schema['type']).rsplit('.', 1)[-1]} {case[3] if len(case) > 3 else case[1]}"[:60]


@pytest.mark.parametrize("i", range(len(CASES)), ids=[_name(c) for c in CASES])
def test_a_value_is_read_exactly(values: tuple[Row, list[str]], i: int) -> None:
    row, kinds = values
    assert (kinds[i], row[i]) == CASES[i][2:]


@pytest.mark.long
def test_null_is_null_in_every_type(spark_lake: Lake) -> None:
    row, _ = read(spark_lake, [(schema, None) for schema, *_ in CASES])
    assert [v for v in row if v is not None] == []


def test_a_value_that_does_not_fit_is_null_without_an_error(spark_lake: Lake) -> None:
    row, _ = read(spark_lake, MISFITS)
    assert {_name(m): v for m, v in zip(MISFITS, row, strict=True) if v is not None} == {}


TOASTED = base64.b64encode(b"__debezium_unavailable_value").decode()


@pytest.mark.parametrize(
    ("schema", "mark"),
    [
        ({"type": "string"}, "__debezium_unavailable_value"),
        ({"type": "string", "name": "io.debezium.data.Json"}, "__debezium_unavailable_value"),
        ({"type": "bytes"}, TOASTED),
        ({"type": "array", "items": {"type": "string"}}, '["__debezium_unavailable_value"]'),
        ({"type": "array", "items": {"type": "bytes"}}, f'["{TOASTED}"]'),
        (
            {"type": "array", "items": {"type": "int32"}},
            "[95,95,100,101,98,101,122,105,117,109,95,117,110,97,118,97,105,108,97,98,108,101,95,118,97,108,117,101]",
        ),
        ({"type": "int32"}, None),
        ({"type": "boolean"}, None),
        (decimal(12, 2), None),
        (logical("string", "ZonedTimestamp"), None),
    ],
)
def test_an_unchanged_toast_value_has_a_placeholder_in_its_columns_type(
    schema: dict[str, Any], mark: str | None
) -> None:
    assert mark in placeholders(schema) if mark else not placeholders(schema)

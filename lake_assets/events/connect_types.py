"""Kafka Connect's types, as Debezium uses them, as Spark SQL types and expressions.

A value arrives as the text of its JSON (`t` below); the expressions give NULL, and never fail, where the text does not
fit the type.

Source: Debezium's documentation of the PostgreSQL connector, data type mappings.
"""

from __future__ import annotations

import base64
from typing import Any

from lake_assets.events.types import FIRST, FIRST_DAY, LAST, LAST_DAY, Reading, finite, items

UNAVAILABLE_VALUE = "__debezium_unavailable_value"

_SIMPLE = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "string": "string",
}
_DATE = "date_add(DATE'1970-01-01', try_cast({t} AS INT))"
_NTZ = "CAST(%s AS TIMESTAMP_NTZ)"
# 24:00:00 is a time of day in Postgres; as a moment it would be the next day's midnight.
_TIME = "CASE WHEN %s = TIMESTAMP'1970-01-02' THEN '24:00:00.000000' ELSE date_format(%s, 'HH:mm:ss.SSSSSS') END"
_MILLIS, _MICROS = "timestamp_millis(try_cast({t} AS BIGINT))", "timestamp_micros(try_cast({t} AS BIGINT))"
_NANOS = "timestamp_micros(try_cast({t} AS BIGINT) div 1000)"
_INT = "try_cast({t} AS BIGINT)"


def _ntz(low: str, high: str, moment: str) -> Reading:
    """A timestamp without a zone; `low` and `high` are what the connector makes of Postgres's infinities."""
    return Reading("timestamp_ntz", (finite(low, high, FIRST % ("_NTZ", ""), LAST % ("_NTZ", ""), _NTZ % moment),))


# Days since 1970 of the integers that Postgres itself keeps for its infinities, overflown.
_INFINITE_DAYS, _INFINITE_MICROS = ("-2147472691", "-2147472692"), ("-9223372036832400000", "9223372036825200000")
_INFINITE_MILLIS = ("-9223372036832400", "9223372036825200")
_ZONED = finite("-infinity", "infinity", FIRST % ("", "Z"), LAST % ("", "Z"), "try_cast({t} AS TIMESTAMP)")
_LOGICAL = {
    "io.debezium.time.Date": Reading("date", (finite(*_INFINITE_DAYS, FIRST_DAY, LAST_DAY, _DATE),)),
    "org.apache.kafka.connect.data.Date": Reading("date", (_DATE,)),
    "io.debezium.time.Timestamp": _ntz(*_INFINITE_MILLIS, _MILLIS),
    "org.apache.kafka.connect.data.Timestamp": Reading("timestamp_ntz", (_NTZ % _MILLIS,)),
    "io.debezium.time.MicroTimestamp": _ntz(*_INFINITE_MICROS, _MICROS),
    "io.debezium.time.NanoTimestamp": Reading("timestamp_ntz", (_NTZ % _NANOS,)),
    "io.debezium.time.ZonedTimestamp": Reading("timestamp", (_ZONED,)),
    # Neither Iceberg in Spark nor Parquet readers agree on a time type yet: kept as ISO text, which sorts.
    "io.debezium.time.Time": Reading("string", (_TIME % (_MILLIS, _MILLIS),)),
    "org.apache.kafka.connect.data.Time": Reading("string", (_TIME % (_MILLIS, _MILLIS),)),
    "io.debezium.time.MicroTime": Reading("string", (_TIME % (_MICROS, _MICROS),)),
    "io.debezium.time.NanoTime": Reading("string", (_TIME % (_NANOS, _NANOS),)),
    "io.debezium.time.ZonedTime": Reading("string"),
    "io.debezium.time.MicroDuration": Reading("bigint", (_INT,)),
    "io.debezium.time.NanoDuration": Reading("bigint", (_INT,)),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"


def read_value(field: dict[str, Any], depth: int = 0) -> Reading:
    """How the text of a Connect field is read.

    Args:
        field: the field's schema.
        depth: how deep inside arrays this is (names the lambda's variable).
    """
    name, kind = field.get("name"), field["type"]
    if name in _LOGICAL:
        return _LOGICAL[name]
    if name == _DECIMAL:
        return _decimal(field.get("parameters", {}))
    if name == _VARIABLE_DECIMAL:
        # {"scale": 2, "value": base64}: the scale differs by row, so the number stays text.
        scale = "try_cast(get_json_object({t}, '$.scale') AS INT)"
        number = _WIDE[0].replace("{t}", "get_json_object({t}, '$.value')")
        pair = f"named_struct('hex', {number}, 'scale', {scale})"
        unscaled = f"named_struct('u', {_WIDE[1].replace('{t}', '{t}.hex')}, 'scale', {{t}}.scale)"
        return Reading("string", (pair, unscaled, _text("{t}.u", "{t}.scale")))
    if kind == "bytes":
        return Reading("binary", ("try_to_binary({t}, 'base64')",))
    if kind == "array":
        return items("from_json({t}, 'ARRAY<STRING>')", read_value(field["items"], depth + 1), depth)
    if kind in _SIMPLE:
        sql_type = _SIMPLE[kind]
        return Reading(sql_type, () if sql_type == "string" else (f"try_cast({{t}} AS {sql_type})",))
    # A struct or map without a meaning of its own (a geometry, a composite type): its JSON.
    return Reading("string")


def placeholder(field: dict[str, Any]) -> str | None:
    """The JSON text that stands for an unchanged TOAST value of this type; None for types that are never TOASTed."""
    kind = field["type"]
    if kind == "array":
        items = field["items"]["type"]
        if items in ("int16", "int32", "int64"):
            return "[" + ",".join(str(ord(c)) for c in UNAVAILABLE_VALUE) + "]"
        mark = base64.b64encode(UNAVAILABLE_VALUE.encode()).decode() if items == "bytes" else UNAVAILABLE_VALUE
        return f'["{mark}"]'
    if kind == "bytes" and field.get("name") != _DECIMAL:
        return base64.b64encode(UNAVAILABLE_VALUE.encode()).decode()
    return UNAVAILABLE_VALUE if kind == "string" and field.get("name") not in _LOGICAL else None


def _decimal(parameters: dict[str, str]) -> Reading:
    scale, precision = int(parameters.get("scale", 0)), int(parameters.get("connect.decimal.precision", 38))
    if max(precision, precision - scale, scale) > 38:
        return Reading("string", (*_WIDE, _text("{t}", str(scale))))
    if scale < 0:
        # numeric(5,-2) holds whole hundreds: a decimal of scale 0 with more digits.
        return Reading(
            f"decimal({precision - scale},0)",
            (*_WIDE, f"try_cast({_text('{t}', str(scale))} AS DECIMAL({precision - scale},0))"),
        )
    precision = max(precision, scale)  # numeric(3,5) holds 0.00999 at most
    kind = f"decimal({precision},{scale})"
    if precision <= 18 and scale:
        unit = "0." + "0" * (scale - 1) + "1"
        return Reading(kind, (*_NARROW, f"try_cast({{t}} * CAST('{unit}' AS DECIMAL({scale},{scale})) AS {kind})"))
    if scale:
        return Reading(kind, (*_WIDE, _text("{t}", str(scale)), f"try_cast({{t}} AS {kind})"))
    return Reading(kind, (*_WIDE, f"try_cast({{t}} AS {kind})"))


# An integer in base64 (big-endian, two's complement), in Spark SQL: a Python function a row would cost more than all
# the rest of the parsing. Up to 8 bytes in one piece; up to 16 as two halves, the upper one signed. Of a negative
# number 2^64 is taken from the lower half to the upper one, so that both have its sign: the upper half alone could be
# less than a decimal holds.
_HEX = "hex(try_to_binary({t}, 'base64'))"
_FILL = "CASE WHEN substr({t}, 1, 1) >= '8' THEN 'F' ELSE '0' END"
_NARROW = (
    _HEX,
    f"CASE WHEN length({{t}}) BETWEEN 2 AND 16 THEN CAST(conv(lpad({{t}}, 16, {_FILL}), 16, -10) AS DECIMAL(19,0)) END",
)
_D20 = "CAST(%s AS DECIMAL(20,0))"
_PADDED, _SIGN, _HALF = (
    f"lpad({{t}}, 32, {_FILL})",
    "CAST(substr({t}, 1, 1) >= '8' AS INT)",
    _D20 % "18446744073709551616",
)
_UPPER = _D20 % f"CAST(conv(substr({_PADDED}, 1, 16), 16, -10) AS DECIMAL(20,0)) + {_SIGN}"
_LOWER = _D20 % f"CAST(conv(substr({_PADDED}, 17, 16), 16, 10) AS DECIMAL(20,0)) - {_SIGN} * {_HALF}"
_WIDE = (
    _HEX,
    f"CASE WHEN length({{t}}) BETWEEN 2 AND 32 THEN try_add(try_multiply({_UPPER}, {_HALF}), {_LOWER}) END",
)


def _text(unscaled: str, scale: str) -> str:
    """SQL of the decimal text of an unscaled integer: -1234 with scale 2 -> -12.34. Text keeps every digit."""
    # Not abs(): it rounds a decimal to 34 digits.
    size = f"ltrim('-', CAST({unscaled} AS STRING))"
    digits = f"lpad({size}, greatest({scale} + 1, length({size})), '0')"
    sign = f"CASE WHEN {unscaled} < 0 THEN '-' ELSE '' END"
    whole, fraction = f"left({digits}, length({digits}) - ({scale}))", f"right({digits}, {scale})"
    dotted = f"concat({sign}, {whole}, CASE WHEN {scale} > 0 THEN concat('.', {fraction}) ELSE '' END)"
    zeros = f"concat({sign}, {size}, repeat('0', -({scale})))"
    return f"CASE WHEN {scale} >= 0 THEN {dotted} ELSE {zeros} END"

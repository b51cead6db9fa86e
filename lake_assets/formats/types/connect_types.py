"""Spark SQL types and expressions for Kafka Connect's types, as used by Debezium.

A value arrives as the text of its JSON (`t` below). If the text does not fit the type, the expressions return NULL and
never fail.

Source: Debezium's documentation of the PostgreSQL connector, data type mappings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lake_assets.formats.types.postgres_types import read_postgres
from lake_assets.formats.types.text_types import (
    BEYOND_MICROS,
    DAY_IN_RANGE,
    FIRST,
    FIRST_DAY,
    FLOATING,
    ITEM_TEXTS,
    LAST,
    LAST_DAY,
    MOMENT_IN_RANGE,
    NTZ_IN_RANGE,
    WHOLE,
    Reading,
    finite,
    floating_number,
    items,
    let,
    read_text,
    whole_number,
)

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
# Not timestamp_millis: it fails the whole query if the number is too large.
_MILLIS = "timestamp_micros(try_multiply(try_cast({t} AS BIGINT), 1000L))"
_MICROS = "timestamp_micros(try_cast({t} AS BIGINT))"
_INT = "try_cast({t} AS BIGINT)"
_FINER = f"pmod({_INT}, 1000)"
_NANOS = f"timestamp_micros({_INT} div 1000 - CASE WHEN {_INT} % 1000 < 0 THEN 1 ELSE 0 END)"


def _clock(digits: int) -> Reading:
    """Return the reading of a duration or time of day as text: HH:MM:SS.ffffff, with as many hours as it has.

    Neither Spark's nor Iceberg's types hold them: 24:00:00 is a time of day in Postgres, and MySQL's TIME runs from
    -838:59:59 to 838:59:59. The texts of 0 to 99 hours sort.

    Args:
        digits: digits of a second that the number counts: 3, 6 or 9.
    """
    # Not abs() of the number, which the least one does not have.
    part = "lpad(abs({t} div %dL %% %d), 2, '0')"
    hours = f"abs({{t}} div {3600 * 10**digits}L)"
    fraction = f"lpad(abs({{t}} % {10**digits}L), {digits}, '0')"
    if digits < 6:
        fraction = f"rpad({fraction}, 6, '0')"
    if digits > 6:
        fraction = f"left({fraction}, CASE WHEN {{t}} % {10 ** (digits - 6)}L = 0 THEN 6 ELSE {digits} END)"
    text = (
        f"concat(CASE WHEN {{t}} < 0 THEN '-' ELSE '' END, lpad({hours}, greatest(2, length({hours})), '0'), ':', "
        f"{part % (60 * 10**digits, 60)}, ':', {part % (10**digits, 60)}, '.', {fraction})"
    )
    return Reading("string", (_INT, text))


def _ntz(lows: Sequence[str], highs: Sequence[str], moment: str) -> Reading:
    """Return the reading of a timestamp without zone; `lows` and `highs` are the connector's values for infinities."""
    value = finite(lows, highs, FIRST % ("_NTZ", ""), LAST % ("_NTZ", ""), _NTZ % moment)
    return Reading("timestamp_ntz", (value, NTZ_IN_RANGE))


# Days since 1970 that Debezium sends for infinite dates. In a stream: Postgres's own integers, overflowed (the greater
# one differs since Debezium 3.6). In a snapshot: the days of `java.sql.Date` in 32 bits, one day more if the connector
# runs east of Greenwich.
_INFINITE_DAYS = (
    ("-2147472691", "-625821272", "-625821271"),
    ("-2147472692", "2146033979", "-622191234", "-622191233"),
)
_INFINITE_MICROS = (("-9223372036832400000",), ("9223372036825200000",))
_INFINITE_MILLIS = (("-9223372036832400",), ("9223372036825200",))
_INFINITE = (("-infinity",), ("infinity",))
# Spark would read 12:00:00Z as a time of the current day, and 2024 as a year.
_MOMENT = "CASE WHEN {t} LIKE '____-__-__%' THEN try_cast({t} AS TIMESTAMP) END"
_ZONED = finite(*_INFINITE, FIRST % ("", "Z"), LAST % ("", "Z"), _MOMENT)
LOGICAL = {
    "io.debezium.time.Date": Reading("date", (finite(*_INFINITE_DAYS, FIRST_DAY, LAST_DAY, _DATE), DAY_IN_RANGE)),
    "org.apache.kafka.connect.data.Date": Reading("date", (_DATE, DAY_IN_RANGE)),
    "io.debezium.time.Timestamp": _ntz(*_INFINITE_MILLIS, _MILLIS),
    "org.apache.kafka.connect.data.Timestamp": Reading("timestamp_ntz", (_NTZ % _MILLIS, NTZ_IN_RANGE)),
    "io.debezium.time.MicroTimestamp": _ntz(*_INFINITE_MICROS, _MICROS),
    "io.debezium.time.NanoTimestamp": Reading("timestamp_ntz", (_NTZ % _NANOS, NTZ_IN_RANGE), f"{_FINER} <> 0"),
    "io.debezium.time.ZonedTimestamp": Reading("timestamp", (_ZONED, MOMENT_IN_RANGE), BEYOND_MICROS),
    "io.debezium.time.Time": _clock(3),
    "org.apache.kafka.connect.data.Time": _clock(3),
    "io.debezium.time.MicroTime": _clock(6),
    "io.debezium.time.NanoTime": _clock(9),
    "io.debezium.time.ZonedTime": Reading("string"),
    # Intervals of more than 292,271 years (292 as nanoseconds) arrive as the limits of 64 bits.
    "io.debezium.time.MicroDuration": Reading("bigint", (_INT,), saturates=True),
    "io.debezium.time.NanoDuration": Reading("bigint", (_INT,), saturates=True),
}
DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
# The product's own: Postgres's text of a value whose type is the parameter `type`.
POSTGRES = "lake_assets.postgres"


def read_value(field: dict[str, Any], depth: int = 0) -> Reading:
    """Return how the text of a Connect field is read.

    Args:
        depth: nesting depth in arrays (names the lambda's variable).
    """
    name, kind = field.get("name"), field["type"]
    if name in LOGICAL:
        return LOGICAL[name]
    if name == POSTGRES:
        return read_postgres(field["parameters"]["type"])
    if name == DECIMAL:
        return _decimal(field.get("parameters", {}))
    if name == VARIABLE_DECIMAL:
        # {"scale": 2, "value": base64}: the scale differs between rows, so the number becomes text.
        scale = "try_cast(get_json_object({t}, '$.scale') AS INT)"
        number = _HEX.replace("{t}", "get_json_object({t}, '$.value')")
        pair = f"named_struct('hex', {number}, 'scale', {scale})"
        unscaled = f"named_struct('u', {_ANY.replace('{t}', '{t}.hex')}, 'scale', {{t}}.scale)"
        return Reading("string", (pair, unscaled, _text("{t}.u", "{t}.scale")))
    if kind == "bytes":
        return Reading("binary", ("try_to_binary({t}, 'base64')",))
    if kind == "array":
        return items(ITEM_TEXTS, read_value(field["items"], depth + 1), depth)
    if kind in _SIMPLE:
        return Reading(_SIMPLE[kind], _steps(_SIMPLE[kind]))
    # A struct or map without logical type (a geometry, a composite type): its JSON.
    return Reading("string")


def _steps(kind: str) -> tuple[str, ...]:
    if kind == "string":
        return ()
    if kind == "boolean":
        return ("try_cast({t} AS BOOLEAN)",)
    # Spark's parser of JSON reads numbers with a point or an exponent as doubles.
    return (floating_number(kind) if kind in FLOATING else whole_number(kind, of_double=True),)


def _decimal(parameters: dict[str, str]) -> Reading:
    scale, precision = int(parameters.get("scale", 0)), int(parameters.get("connect.decimal.precision", 38))
    if scale <= 0:
        return replace(_decimal_of_bytes(precision, scale), is_base64=True)
    return _decimal_of_bytes(precision, scale)


def _decimal_of_bytes(precision: int, scale: int) -> Reading:
    if max(precision, precision - scale, scale) > 38:
        return Reading("string", (_HEX, _ANY, _text("{t}", str(scale))))
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


# Decode an integer in base64 (big-endian, two's complement) in Spark SQL: calling Python per row would take longer than
# the rest of the parsing. Up to 8 bytes are read at once; up to 16 as two halves, the upper one signed. For a negative
# number, 2^64 is moved from the lower to the upper half, so that both have its sign: otherwise the upper half might be
# too small for a decimal.
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


# The text of an integer of any length, since numbers of more than 38 digits fit no type of Spark. Computed in base
# 10^9, lowest digits first: for each 32 bits of the number, the result so far is multiplied by 2^32, and the bits are
# added. The absolute value of a negative number is its inverted bits plus one.
_IS_NEGATIVE = "h_ >= '8'"
_BITS = f"lpad(h_, 8 * CAST(ceil(length(h_) / 8) AS INT), CASE WHEN {_IS_NEGATIVE} THEN 'F' ELSE '0' END)"
_SIZE = f"CASE WHEN {_IS_NEGATIVE} THEN translate({_BITS}, '0123456789ABCDEF', 'FEDCBA9876543210') ELSE {_BITS} END"
_WORDS = (
    f"transform(regexp_extract_all({_SIZE}, '[0-9A-F]{{8}}', 0), (w_, i_) -> CAST(conv(w_, 16, 10) AS BIGINT) "
    f"+ CAST({_IS_NEGATIVE} AND i_ = CAST(ceil(length(h_) / 8) AS INT) - 1 AS INT))"
)
_BILLION = "1000000000L"
_STEP = (
    f"named_struct('carry', (d_ * 4294967296L + a_.carry) div {_BILLION}, "
    f"'digits', array_append(a_.digits, (d_ * 4294967296L + a_.carry) % {_BILLION}))"
)
_TIMES = (
    "aggregate(n_, named_struct('carry', w_, 'digits', CAST(array() AS ARRAY<BIGINT>)), "
    f"(a_, d_) -> {_STEP}, a_ -> concat(a_.digits, array(a_.carry % {_BILLION}, a_.carry div {_BILLION})))"
)
_DIGITS = (
    f"ltrim('0', concat_ws('', transform(reverse(aggregate({_WORDS}, CAST(array() AS ARRAY<BIGINT>), "
    f"(n_, w_) -> {_TIMES})), d_ -> lpad(CAST(d_ AS STRING), 9, '0'))))"
)
# Limited to about 1,200 digits, since the work grows with the square of the length.
_ANY = let(
    "{t}",
    "h_",
    f"CASE WHEN length(h_) <= 30 THEN CAST({_WIDE[1].replace('{t}', 'h_')} AS STRING) WHEN length(h_) <= 1000 "
    f"THEN concat(CASE WHEN {_IS_NEGATIVE} THEN '-' ELSE '' END, {_DIGITS}) END",
)


def _text(unscaled: str, scale: str) -> str:
    """Return SQL of the decimal text of an unscaled integer (text or a decimal): -1234 with scale 2 -> -12.34."""
    # Not abs(): it rounds a decimal to 34 digits.
    size = "ltrim('-', u_)"
    digits = f"lpad({size}, greatest({scale} + 1, length({size})), '0')"
    sign = "CASE WHEN u_ LIKE '-%' THEN '-' ELSE '' END"
    whole, fraction = f"left({digits}, length({digits}) - ({scale}))", f"right({digits}, {scale})"
    dotted = f"concat({sign}, {whole}, CASE WHEN {scale} > 0 THEN concat('.', {fraction}) ELSE '' END)"
    zeros = f"concat({sign}, {size}, CASE WHEN {size} = '0' THEN '' ELSE repeat('0', -({scale})) END)"
    return let(f"CAST({unscaled} AS STRING)", "u_", f"CASE WHEN {scale} >= 0 THEN {dotted} ELSE {zeros} END")


def read_as_text(field: dict[str, Any]) -> Reading:
    """Return how a Connect field is read into a text column, including values that its own type cannot represent.

    Dates and timestamps are ISO 8601; infinite ones are `infinity` and `-infinity`, as in Postgres.
    """
    name = field.get("name")
    if name in _AS_TEXT:
        return Reading("string", (_AS_TEXT[name],))
    if name == DECIMAL:
        scale = int(field.get("parameters", {}).get("scale", 0))
        return Reading("string", (_HEX, _ANY, _text("{t}", str(scale))), is_base64=scale <= 0)
    typed = read_value(field)
    if name == POSTGRES and typed.type == "binary":
        return Reading("string", (*typed.steps, "base64({t})"))
    if name == POSTGRES and typed.type.startswith("array"):
        return Reading("string", (*typed.steps, "to_json({t})"))
    if not name or typed.type.startswith("array"):
        return Reading("string")
    if typed.type == "string":
        return typed
    return Reading("string", (*typed.steps, "try_cast({t} AS STRING)"))


def read_declared(field: dict[str, Any], declared: str) -> Reading:
    """Return how a Connect field is read into a column of a declared type other than text."""
    reading, text = read_value(field), read_text(declared)
    is_number = text.type in (*WHOLE, *FLOATING) or text.type.startswith("decimal")
    # Days, microseconds and so on are numbers in the record.
    if not reading.steps or not field.get("name") or (is_number and field["type"] in ("int32", "int64")):
        return text
    if reading.type == "string":
        return Reading(text.type, (*reading.steps, *text.steps))
    if is_number:
        return Reading(text.type, (*reading.steps, "CAST({t} AS STRING)", *text.steps), is_base64=reading.is_base64)
    cast = f"try_cast({{t}} AS {text.type})"
    if reading.type.startswith("timestamp") and text.type == "date":
        cast = f"CASE WHEN {cast} = {{t}} THEN {cast} END"  # with another time than midnight, it would be dropped
    return Reading(text.type, (*reading.steps, cast), reading.loses_digits)


def _as_text(value: str, lows: Sequence[str] = (), highs: Sequence[str] = ()) -> str:
    text = f"CAST({value} AS STRING)"
    return finite(lows, highs, "'-infinity'", "'infinity'", text) if lows else text


_NANOS_TEXT = (
    f"CASE WHEN {_FINER} = 0 THEN CAST({_NTZ % _NANOS} AS STRING) ELSE concat("
    f"date_format({_NTZ % _NANOS}, 'yyyy-MM-dd HH:mm:ss.SSSSSS'), lpad(CAST({_FINER} AS STRING), 3, '0')) END"
)
_AS_TEXT = {
    "io.debezium.time.Date": _as_text(_DATE, *_INFINITE_DAYS),
    "org.apache.kafka.connect.data.Date": _as_text(_DATE),
    "io.debezium.time.Timestamp": _as_text(_NTZ % _MILLIS, *_INFINITE_MILLIS),
    "org.apache.kafka.connect.data.Timestamp": _as_text(_NTZ % _MILLIS),
    "io.debezium.time.MicroTimestamp": _as_text(_NTZ % _MICROS, *_INFINITE_MICROS),
    "io.debezium.time.NanoTimestamp": _NANOS_TEXT,
    "io.debezium.time.ZonedTimestamp": (
        f"coalesce(CAST(CASE WHEN NOT {BEYOND_MICROS} THEN {_MOMENT} END AS STRING), {{t}})"
    ),
}

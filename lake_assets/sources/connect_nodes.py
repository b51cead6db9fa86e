"""Schemas of Kafka Connect for decoded values, and how values are written as Connect's JSON, or as plain rows.

Connect's JSON has types in its schema, and values as its JSON converter writes them (decimals as base64 of the unscaled
number, days as a number, ...): `format: debezium` reads exactly these. Plain rows have no schema, so values whose type
JSON lacks are written as text: 12.30, 2024-02-29, 2024-02-29T12:00:00.000001.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

DECIMAL = "org.apache.kafka.connect.data.Decimal"
DATE = "org.apache.kafka.connect.data.Date"
TIME = "org.apache.kafka.connect.data.Time"
TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"
MICRO_TIME, MICRO_TIMESTAMP = "io.debezium.time.MicroTime", "io.debezium.time.MicroTimestamp"
NANO_TIMESTAMP, ZONED_TIMESTAMP = "io.debezium.time.NanoTimestamp", "io.debezium.time.ZonedTimestamp"
UUID = "io.debezium.data.Uuid"
ENUM = "io.debezium.data.Enum"

# Makes a value of JSON of a decoded value; None: it is one already.
Convert = Callable[[Any], Any] | None


class SchemaError(Exception):
    """A schema says something that cannot be written exactly."""


class ValueProblem(Exception):
    """A value cannot be written exactly."""


class Node(NamedTuple):
    """A type of values.

    Attributes:
        schema: the schema as Connect's JSON has it.
        convert: how its values are written.
    """

    schema: dict[str, Any]
    convert: Convert = None


def optional(node: Node) -> Node:
    """Return a type whose values may be null."""
    convert = node.convert
    schema = {**node.schema, "optional": True}
    return Node(schema, None if convert is None else lambda v: None if v is None else convert(v))


def base64_text(value: bytes) -> str:
    """Return bytes as Connect's JSON has them."""
    return base64.b64encode(value).decode("ascii")


def double(value: float) -> float | str:
    """Return a number as Connect's JSON has it: those that JSON lacks as text."""
    return value if math.isfinite(value) else _unusual(value)


def single(value: float) -> float | str:
    """Return a number of 32 bits with as few digits as Java writes."""
    if not math.isfinite(value):
        return _unusual(value)
    # The smallest ones have fewer digits; Java writes two at least.
    for digits in range(6 if abs(value) > 1.2e-38 else 2, 9):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", short))[0] == value:
                return short
        except OverflowError:
            continue
    return float(f"{value:.9g}")


def _unusual(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def items(node: Node) -> Convert:
    """Return how an array of a type is written."""
    convert = node.convert
    return None if convert is None else lambda values: [convert(v) for v in values]


def entries(key: Node, value: Node) -> Callable[[Any], Any]:
    """Return how pairs of a map are written: an object if the keys are text, else a list of pairs."""
    of_key, of_value = key.convert or _same, value.convert or _same
    if key.schema["type"] == "string":
        return lambda pairs: {of_key(k): of_value(v) for k, v in pairs}
    return lambda pairs: [[of_key(k), of_value(v)] for k, v in pairs]


def _same(value: Any) -> Any:
    return value


# --- plain rows --------------------------------------------------------------------------------------------------


def plain_convert(node: Node) -> Convert:
    """Return how values of a type are written into a row without a schema."""
    name, kind = node.schema.get("name"), node.schema["type"]
    if name == DECIMAL:
        scale = int(node.schema["parameters"]["scale"])
        return lambda v: decimal_text(int.from_bytes(v, "big", signed=True), scale)
    of_number = _PLAIN.get(str(name)) if kind in ("int32", "int64") else None
    return of_number or node.convert


def decimal_text(unscaled: int, scale: int) -> str:
    """Return a decimal as text with all of its digits."""
    if scale <= 0:
        return str(unscaled * 10**-scale)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _day(value: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    except OverflowError:
        raise ValueProblem(f"day {value} since 1970 is not in the years 1 to 9999") from None


def moment_text(seconds: int, fraction: int, digits: int) -> str:
    """Return a moment as ISO 8601 without a zone.

    Args:
        seconds: since 1970.
        fraction: of a second, as a number of so many `digits`.
        digits: 3, 6 or 9.
    """
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        raise ValueProblem(f"second {seconds} since 1970 is not in the years 1 to 9999") from None
    return f"{moment.replace(tzinfo=None).isoformat()}.{fraction:0{digits}}"


def _moment(digits: int) -> Callable[[int], str]:
    unit = 10**digits
    return lambda v: moment_text(v // unit, v % unit, digits)


def _clock(digits: int) -> Callable[[int], str]:
    unit = 10**digits

    def text(value: int) -> str:
        seconds, fraction = divmod(abs(value), unit)
        sign = "-" if value < 0 else ""
        return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:0{digits}}"

    return text


_PLAIN: Mapping[str, Callable[[int], str]] = {
    DATE: _day,
    "io.debezium.time.Date": _day,
    TIMESTAMP: _moment(3),
    "io.debezium.time.Timestamp": _moment(3),
    MICRO_TIMESTAMP: _moment(6),
    NANO_TIMESTAMP: _moment(9),
    TIME: _clock(3),
    "io.debezium.time.Time": _clock(3),
    MICRO_TIME: _clock(6),
    "io.debezium.time.NanoTime": _clock(9),
}

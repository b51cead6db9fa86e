"""Spark SQL types and expressions for Postgres's types, by their names in `format_type`.

Values are in Postgres's text output (ISO dates, hex bytea), as written by wal2json: numbers and booleans bare, all
others as JSON strings. The types equal those in `connect_types` for Debezium's events of the same columns.

Sources: PostgreSQL's documentation, 8.5 (dates and times), 8.14 (arrays: input and output syntax); wal2json's source.
"""

from __future__ import annotations

import re

from lake_assets.formats.types.text_types import (
    DATE,
    DAY_IN_RANGE,
    FIRST,
    FIRST_DAY,
    LAST,
    LAST_DAY,
    MOMENT_IN_RANGE,
    NTZ_IN_RANGE,
    Reading,
    finite,
    floating_number,
    items,
    whole_number,
)
from lake_assets.lake.names import literal

_INFINITE = (("-infinity",), ("infinity",))
_DATE = finite(*_INFINITE, FIRST_DAY, LAST_DAY, DATE)
_NTZ = finite(*_INFINITE, FIRST % ("_NTZ", ""), LAST % ("_NTZ", ""), "try_cast({t} AS TIMESTAMP_NTZ)")
_MOMENT = finite(*_INFINITE, FIRST % ("", "Z"), LAST % ("", "Z"), "try_cast({t} AS TIMESTAMP)")
_TIME_SHAPE = literal(r"^[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?$")
_TIME = (
    f"CASE WHEN {{t}} RLIKE {_TIME_SHAPE} "
    "THEN rpad(concat({t}, CASE WHEN contains({t}, '.') THEN '' ELSE '.' END), 15, '0') END"
)
_HEX = f"try_to_binary(regexp_replace({{t}}, {literal('^' + chr(92) * 2 + 'x')}, ''), 'hex')"

_READINGS = {
    "boolean": Reading("boolean", ("try_cast({t} AS BOOLEAN)",)),
    "smallint": Reading("int", (whole_number("int"),)),
    "integer": Reading("int", (whole_number("int"),)),
    "bigint": Reading("bigint", (whole_number("bigint"),)),
    "oid": Reading("bigint", (whole_number("bigint"),)),
    "real": Reading("float", (floating_number("float"),)),
    "double precision": Reading("double", (floating_number("double"),)),
    "date": Reading("date", (_DATE, DAY_IN_RANGE)),
    "timestamp without time zone": Reading("timestamp_ntz", (_NTZ, NTZ_IN_RANGE)),
    "timestamp with time zone": Reading("timestamp", (_MOMENT, MOMENT_IN_RANGE)),
    "time without time zone": Reading("string", (_TIME,)),
    "bytea": Reading("binary", (_HEX,)),
}
_ALIASES = {
    "bool": "boolean", "int2": "smallint", "int4": "integer", "int": "integer", "int8": "bigint", "float4": "real",
    "float8": "double precision", "timestamp": "timestamp without time zone", "decimal": "numeric",
    "timestamptz": "timestamp with time zone", "time": "time without time zone",
}  # fmt: skip
_NUMERIC = re.compile(r"numeric\((\d+)(?:,(-?\d+))?\)")

_BOUNDS, _BODY = literal(r"^(\[-?[0-9]+:-?[0-9]+\])+="), literal(r"(?s)^\{.*\}$")
_ITEM, _ESCAPED = r'(?s)"(?:[^"\\]++|\\.)*+"|[^%s]+', literal(r"(?s)\\(.)")


def read_postgres(name: str, depth: int = 0) -> Reading:
    """Return how the text of a value of the Postgres type `name` is read; types without a counterpart stay text.

    Numerics without precision stay text, with every digit; so do intervals, and times of day (padded, so that they
    sort). Arrays with several dimensions are rejected, since a Postgres array type does not tell the number.
    """
    name = " ".join(name.split())
    if '"' not in name:
        name = name.replace(" (", "(").replace(", ", ",")
    if name.endswith("[]"):
        # Boxes contain commas: theirs is the only type with another delimiter.
        delimiter = ";" if name.removeprefix("pg_catalog.") == "box[]" else ","
        return _array(read_postgres(name[:-2], depth + 1), depth, delimiter)
    base = _ALIASES.get(name) or _ALIASES.get(re.sub(r"\(\d+\)", "", name)) or re.sub(r"\(\d+\)", "", name)
    if base in _READINGS:
        return _READINGS[base]
    match = _NUMERIC.fullmatch(_ALIASES.get(name, name).replace("decimal(", "numeric("))
    return _numeric(int(match[1]), int(match[2] or 0)) if match else Reading("string")


def _numeric(precision: int, scale: int) -> Reading:
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    if precision > 38:
        return Reading("string")
    kind = f"decimal({precision},{scale})"
    return Reading(kind, (f"try_cast({{t}} AS {kind})",))


def _array(inner: Reading, depth: int, delimiter: str) -> Reading:
    """Return the reading of one-dimensional arrays: {1,NULL,"a, b"}, possibly with bounds: [0:1]={1,2}."""
    bare = f"regexp_replace({{t}}, {_BOUNDS}, '')"
    body = f"CASE WHEN {bare} RLIKE {_BODY} THEN substr({bare}, 2, length({bare}) - 2) END"
    found = f"regexp_extract_all({{t}}, {literal(_ITEM % delimiter)}, 0)"
    parts = f"CASE WHEN {{t}} = '' THEN CAST(array() AS ARRAY<STRING>) ELSE {found} END"
    item = f"i{depth}"
    text = (
        f"CASE WHEN {item} LIKE '\"%' THEN regexp_replace(substr({item}, 2, length({item}) - 2), {_ESCAPED}, '$1') "
        f"WHEN upper({item}) <> 'NULL' THEN {item} END"
    )
    flat = f"CASE WHEN NOT exists({{t}}, {item} -> {item} LIKE '{{%') THEN transform({{t}}, {item} -> {text}) END"
    rest = items("{t}", inner, depth)
    return Reading(rest.type, (body, parts, flat, *(s for s in rest.steps if s != "{t}")))

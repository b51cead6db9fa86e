"""Rows of Arrow as texts that are equal exactly if the rows are: JSON objects without nulls, with sorted names.

    {"amount":"12.5","at":"2026-11-01 08:00:00.000000Z","id":"1","tags":["a"]}

Every value but a nested one is a string, in one notation for all types that may hold it: 1 as an int, a bigint, a
decimal(10,2) and a double is "1". So a widened type changes no row, and neither do columns in another order, or a new
one without values. Staging reads the values by the dump's types, as it reads rows of Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute

from lake_assets.formats.files.parquet_files import json_text

# Arrow's functions have no types.
pc: Any = pyarrow.compute
# What JSON escapes in a string.
_ESCAPED = r'["\\\x00-\x1f]'
_MICROS = "us"
_EMPTY = pa.scalar("")


def row_texts(batch: pa.RecordBatch) -> pa.Array:
    """Return each row as a JSON object.

    Raises:
        pa.ArrowInvalid: a text is not UTF-8.
        ValueError: a nested value cannot be represented.
    """
    # Not `skip`, which leaves out whole rows if all of their values are null.
    options = pc.JoinOptions(null_handling="replace", null_replacement="")
    members = [
        _joined(f",{orjson.dumps(name).decode()}:", _json_values(batch.column(name)))
        for name in sorted(batch.schema.names)
    ]
    if not members:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    joined = pc.call_function("binary_join_element_wise", [pa.scalar("{"), *members, _EMPTY], options)
    return _joined("", pc.utf8_replace_slice(joined, start=1, stop=2, replacement=""), "}")


def key_texts(batch: pa.RecordBatch, key: Sequence[str]) -> pa.Array:
    """Return the key of each row as a JSON array; null if one of its values is null."""
    parts = [_without_minus_zero(batch.column(k)) for k in key]
    return _joined("[", pc.binary_join_element_wise(*parts, ","), "]")


def longest(texts: pa.Array) -> int:
    """Return the greatest number of bytes of some texts."""
    return pc.max(pc.binary_length(texts)).as_py() or 0


def _joined(before: str, texts: pa.Array, after: str = "") -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(before), texts, pa.scalar(after), _EMPTY)


def _without_minus_zero(column: pa.Array) -> pa.Array:
    """Return the values of a key column: zeros of both signs are one key to every engine."""
    texts = _json_values(column)
    if not pa.types.is_floating(column.type):
        return texts
    return pc.if_else(pc.equal(texts, '"-0"'), '"0"', texts)


def _json_values(column: pa.Array) -> pa.Array:
    """Return the values of a column in JSON; null for null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _json_values(column.cast(kind.value_type))
    if isinstance(column, pa.ExtensionArray):
        return _json_values(column.storage)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        texts = column.cast(pa.string())
        texts.validate(full=True)
        return _quoted(texts)
    plain = next((text for is_kind, text in _PLAIN if is_kind(kind)), None)
    if plain is None:
        return pa.array([None if v is None else json_text(v) for v in column.to_pylist()], pa.string())
    return _joined('"', plain(column), '"')


def _quoted(texts: pa.Array) -> pa.Array:
    special = pc.fill_null(pc.match_substring_regex(texts, _ESCAPED), False)
    quoted = _joined('"', texts, '"')
    if not pc.any(special).as_py():
        return quoted
    escaped = [orjson.dumps(t).decode() for t in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, pa.string()))


def _text(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _of_float(column: pa.Array) -> pa.Array:
    texts = _text(column.cast(pa.float32()) if pa.types.is_float16(column.type) else column)
    for found, name in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        texts = pc.if_else(pc.equal(texts, found), name, texts)
    return texts


def _of_decimal(column: pa.Array) -> pa.Array:
    """Return decimals without zeros at the end, so that their scale does not matter."""
    texts = pc.replace_substring_regex(_text(column), r"(\.[0-9]*?)0+(E.*)?$", r"\1\2")
    texts = pc.replace_substring_regex(texts, r"\.(E.*)?$", r"\1")
    return pc.replace_substring_regex(texts, r"^-?0(E.*)?$", "0")


def _of_timestamp(column: pa.Array) -> pa.Array:
    """Return timestamps with six digits of a second, and more only if they are not zero."""
    zone = "UTC" if column.type.tz else None
    if column.type.unit in ("s", "ms"):
        column = pc.cast(column, pa.timestamp(_MICROS, column.type.tz), safe=False)
    texts = _text(column.cast(pa.timestamp(column.type.unit, zone)))
    if column.type.unit == "ns":
        texts = pc.replace_substring_regex(texts, r"(\.[0-9]{6})000(Z?)$", r"\1\2")
    beyond = pc.fill_null(pc.starts_with(texts, "<"), False)
    if not pc.any(beyond).as_py():
        return texts
    # Arrow has no text for years of more than four digits; staging rejects the value, and quotes this.
    return pc.if_else(beyond, _joined("", _text(column.cast(pa.int64())), " microseconds since 1970"), texts)


def _of_time(column: pa.Array) -> pa.Array:
    if column.type in (pa.time32("s"), pa.time32("ms")):
        column = column.cast(pa.time64(_MICROS))
    return pc.replace_substring_regex(_text(column), r"(\.[0-9]{6})000$", r"\1")


def _of_duration(column: pa.Array) -> pa.Array:
    return _text(column.cast(pa.duration(_MICROS), safe=False).cast(pa.int64()))


# Types whose values Arrow converts to text, by test. Others are converted one by one.
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_boolean, _text),
    (pa.types.is_integer, _text),
    (pa.types.is_floating, _of_float),
    (pa.types.is_decimal, _of_decimal),
    (pa.types.is_timestamp, _of_timestamp),
    (pa.types.is_date64, lambda c: _text(c.cast(pa.date32()))),
    (pa.types.is_date, _text),
    (pa.types.is_time, _of_time),
    (pa.types.is_duration, _of_duration),
)

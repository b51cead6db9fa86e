"""The order of changes by declared columns (`order_by`), for sources without an order, or with a coarse one.

`order_by: _position` is the order in which the events arrived. Otherwise the values are encoded as one text that sorts
in their order: numerically for numbers, by time for dates and timestamps, whatever their text form, and whatever wider
type a column gets later. Events with equal values keep the order of the stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lake_assets.formats.event_model import POSITION

_DIGITS = "0123456789"
_MOMENTS = {
    "timestamp": "unix_micros({c})",
    # Both are read as UTC, whatever the session's time zone.
    "timestamp_ntz": "timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', {c})",
    "date": "CAST(unix_date({c}) AS BIGINT) * 86400000000",
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def columns_of_order(order_by: Sequence[str]) -> list[str]:
    """Return the columns of a declared order: without `_position`, by which ties are ordered anyway."""
    return [c for c in order_by if c != POSITION]


def kind_of(type_: str) -> str | None:
    """Return how values of a type sort: `number`, `moment` or `text`; None: the type cannot be used for ordering.

    Floating-point numbers cannot, since their texts are not exact.
    """
    if type_ in ("tinyint", "smallint", "int", "bigint", "boolean") or _DECIMAL.fullmatch(type_):
        return "number"
    if type_ in _MOMENTS:
        return "moment"
    return "text" if type_ == "string" else None


def sequence_of(columns: Sequence[tuple[str, str]]) -> str:
    """Return SQL of a text that sorts like the values of columns, given by SQL and type; NULL if one is NULL."""
    if not columns:
        return "''"
    # A space sorts before all characters of the texts, so a shorter text sorts before its extensions.
    texts = ", ' ', ".join(_sortable(sql, kind) for sql, kind in columns)
    return f"concat({texts})"


def _sortable(sql: str, type_: str) -> str:
    match kind_of(type_):
        case "text":
            # Hexadecimal digits sort like the bytes and contain no separator.
            return f"hex({sql})"
        case "moment":
            return _number(f"CAST({_MOMENTS[type_].format(c=sql)} AS DECIMAL(20, 0))", 0)
        case "number":
            if decimal := _DECIMAL.fullmatch(type_):
                return _number(sql, int(decimal[2]))
            return _number(f"CAST(CAST({sql} AS BIGINT) AS DECIMAL(20, 0))", 0)
        case _:
            raise ValueError(f"values of type {type_} do not sort")


def _number(sql: str, scale: int) -> str:
    """Return SQL of sign, length of the integer part, integer part, fraction; with 9 minus each digit if negative."""
    # Not a CAST, which writes small numbers with an exponent.
    text = f"format_number(abs({sql}), '{'0.' + '0' * scale if scale else '0'}')"
    whole, fraction = f"split_part({text}, '.', 1)", f"rtrim('0', split_part({text}, '.', 2))"
    body = f"concat(lpad(CAST(length({whole}) AS STRING), 2, '0'), {whole}, '.', {fraction})"
    # The tilde is greater than any digit: -1.5 is less than -1.
    negative = f"concat('0', translate({body}, '{_DIGITS}', '{_DIGITS[::-1]}'), '~')"
    return f"CASE WHEN {sql} < 0 THEN {negative} ELSE concat('1', {body}) END"

"""The order of changes by columns that the owner declares (`order_by`), for formats that say none, or a coarse one.

Their values become one text that sorts as they do: numbers as numbers and moments as moments, whatever their texts look
like, and whatever wider type a column gets later. Events with the same values stay in the order of the stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_DIGITS = "0123456789"
_MOMENTS = {
    "timestamp": "unix_micros({c})",
    # Both as if they were UTC's, whatever the session's time zone is.
    "timestamp_ntz": "timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', {c})",
    "date": "CAST(unix_date({c}) AS BIGINT) * 86400000000",
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def kind_of(type_: str) -> str | None:
    """What values of a type sort as: `number`, `moment`, `text`; None: they cannot be an order.

    Floating-point numbers cannot: their texts are not exact.
    """
    if type_ in ("tinyint", "smallint", "int", "bigint", "boolean") or _DECIMAL.fullmatch(type_):
        return "number"
    if type_ in _MOMENTS:
        return "moment"
    return "text" if type_ == "string" else None


def sequence_of(columns: Sequence[tuple[str, str]]) -> str:
    """SQL of a text that sorts as the values of all columns do, the first first; NULL where one of them is.

    Args:
        columns: SQL and type of each.
    """
    # A space is less than whatever stands in the texts, so that none is cut off by the one after it.
    texts = ", ' ', ".join(_sortable(sql, kind) for sql, kind in columns)
    return f"concat({texts})"


def _sortable(sql: str, type_: str) -> str:
    match kind_of(type_):
        case "text":
            # Any text, without characters that the text of the next column could be taken for.
            return f"hex({sql})"
        case "moment":
            return _number(f"CAST({_MOMENTS[type_].format(c=sql)} AS DECIMAL(20, 0))", 0)
        case "number":
            found = _DECIMAL.fullmatch(type_)
            if found:
                return _number(sql, int(found[2]))
            return _number(f"CAST(CAST({sql} AS BIGINT) AS DECIMAL(20, 0))", 0)
        case _:
            raise ValueError(f"values of type {type_} do not sort")


def _number(sql: str, scale: int) -> str:
    """Sign, length of the whole part, whole part, fraction; of a negative one every digit is what it lacks of 9."""
    # Not as a CAST has it: that writes small numbers with an exponent.
    text = f"format_number(abs({sql}), '{'0.' + '0' * scale if scale else '0'}')"
    whole, fraction = f"split_part({text}, '.', 1)", f"rtrim('0', split_part({text}, '.', 2))"
    body = f"concat(lpad(CAST(length({whole}) AS STRING), 2, '0'), {whole}, '.', {fraction})"
    # The tilde is greater than any digit: -1.5 is less than -1.
    negative = f"concat('0', translate({body}, '{_DIGITS}', '{_DIGITS[::-1]}'), '~')"
    return f"CASE WHEN {sql} < 0 THEN {negative} ELSE concat('1', {body}) END"

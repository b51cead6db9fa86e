"""The keys of partitions by value: the text of a value, with Dagster's special characters escaped."""

from __future__ import annotations

import re
from datetime import date
from typing import Any
from urllib.parse import unquote

# The partition of values outside of a list, and the partition of nulls without a list.
OTHER, NULL = "__other__", "__null__"

WHOLE = ("tinyint", "smallint", "int", "bigint")
# Characters with a special meaning to Dagster, in keys or in selections of keys.
_SPECIAL = re.compile(r"[%\x00-\x1f\x7f,\[\]\"]|\.(?=\.\.)|^_(?=_)")


def key_of_text(text: str) -> str:
    """Return the key of a value: the value with special characters escaped."""
    return _SPECIAL.sub(lambda m: f"%{ord(m[0]):02X}", text) or "%"


def text_of_key(key: str) -> str:
    """Return the value of a key; the inverse of `key_of_text`."""
    return "" if key == "%" else unquote(key)


def text_of(value: Any) -> str:
    """Return a value's text."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


def as_value(text: str, kind: str) -> Any:
    """Parse a text as a value of a type; None: not valid, or not in canonical form."""
    if kind in WHOLE:
        return int(text) if re.fullmatch(r"-?(0|[1-9]\d*)", text) and text != "-0" else None
    if kind == "boolean":
        return {"true": True, "false": False}.get(text)
    if kind == "date":
        try:
            day = date.fromisoformat(text)
        except ValueError:
            return None
        return day if day.isoformat() == text else None
    return text

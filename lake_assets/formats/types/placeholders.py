"""Placeholders: what Debezium's connector for Postgres sends instead of an unchanged TOAST value.

It is a text, which the connector can be told to replace (`unavailable.value.placeholder`), in the form of the column's
type.
Source: the chapter on TOAST of the connector's documentation, and the changes that introduced the forms of arrays.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from lake_assets.formats.types.connect_types import DECIMAL, LOGICAL, UNAVAILABLE_VALUE, VARIABLE_DECIMAL


def placeholders(field: Mapping[str, Any], text: str | None = None) -> tuple[str, ...]:
    """Return the texts of placeholders in a Connect field; empty for types without TOAST.

    Args:
        text: the connector's setting; None: its default.
    """
    text = text or UNAVAILABLE_VALUE
    kind, name = field["type"], field.get("name")
    if kind == "array":
        return _of_array(field["items"], text)
    if kind == "map":
        return (_of_map(text),)
    if kind == "bytes":
        return () if name == DECIMAL else (_base64(text),)
    if kind != "string" or name in LOGICAL:
        return ()
    # Bytes may be text (`binary.handling.mode`), and so may be maps (`hstore.handling.mode`).
    return (text, _of_map(text)) if name else (text, _hex(text), _base64(text))


def any_placeholder(kind: str, text: str | None = None) -> tuple[str, ...]:
    """Return the texts of placeholders among values without a schema; empty for types without TOAST.

    Args:
        kind: the inferred kind: STRING, ARRAY, OBJECT, VARIANT (values of several kinds) or another one.
        text: the connector's setting; None: its default.
    """
    text = text or UNAVAILABLE_VALUE
    items = [{"type": kind} for kind in ("string", "bytes", "int32", "double")]
    items += [{"type": "bytes", "name": DECIMAL}, {"type": "struct", "name": VARIABLE_DECIMAL}]
    forms = {
        "STRING": (text, _hex(text), _base64(text), _of_map(text)),
        "ARRAY": tuple(dict.fromkeys(form for i in items for form in _of_array(i, text))),
        "OBJECT": (_of_map(text),),
    }
    return tuple(dict.fromkeys(f for of in forms.values() for f in of)) if kind == "VARIANT" else forms.get(kind, ())


def _of_array(items: Mapping[str, Any], text: str) -> tuple[str, ...]:
    """Return the forms of an array: one item, or one for each byte of the text if its items are numbers."""
    kind, code = items["type"], text.encode()
    if kind == "string":
        return tuple(_list([form]) for form in (text, _uuid(text), _hex(text), _base64(text)))
    if kind in ("int8", "int16", "int32", "int64"):
        return (_list([*code]),)
    if kind in ("float", "float32", "float64", "double"):
        # Spark's parser writes such numbers with or without a fraction.
        return _list([*map(float, code)]), _list([*code])
    if items.get("name") == VARIABLE_DECIMAL:
        return (_list([{"scale": 0, "value": _unscaled(b, 0)} for b in code]),)
    if items.get("name") == DECIMAL:
        scale = int(items.get("parameters", {}).get("scale", 0))
        return (_list([_unscaled(b, scale) for b in code]),)
    return (_list([_base64(text)]),) if kind == "bytes" else ()


def _list(values: list[Any]) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def _of_map(text: str) -> str:
    return json.dumps({text: text}, separators=(",", ":"), ensure_ascii=False)


def _hex(text: str) -> str:
    return text.encode().hex()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _uuid(text: str) -> str:
    return str(uuid.UUID(bytes=hashlib.md5(text.encode(), usedforsecurity=False).digest(), version=3))


def _unscaled(number: int, scale: int) -> str:
    unscaled = number * 10 ** max(scale, 0)
    return base64.b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()

"""Records with JSON text inside JSON: a record, key, value or payload that was encoded twice.

    {"key": "{\\"id\\": 1}", "value": "{\\"before\\": null, ...}"}

Converters between a connector and a sink produce them (StringConverter in front of JsonConverter). The text is put in
place of the string, so that numbers keep every digit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable

import orjson

# Numbers as text: their digits do not matter here, and Python refuses to parse thousands of them.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_SPACE = re.compile(r"[ \t\r\n]*")
_PARTS = {"schema", "payload"}


def without_nested_text(text: str, wrapper: Collection[str] = ()) -> str:
    """Return a record in which each JSON object that is given as a string is an object.

    Args:
        wrapper: the fields of a record around key and value. Key, value and payload are looked into; empty: only the
            record as a whole is.
    """
    text = _object_in(text)
    if not wrapper or not text.startswith("{"):
        return text
    members = dict(_members(text))
    if "value" not in members or not set(members) <= set(wrapper):
        return _part(text)
    plain = {name: _part(v) if name in ("key", "value") else v for name, v in members.items()}
    return text if plain == members else _joined(plain.items())


def _part(text: str) -> str:
    """Return a key or value with its payload as an object; without its schema if that is the schema of a string."""
    text = _object_in(text)
    members = dict(_members(text)) if text.startswith("{") else {}
    if set(members) != _PARTS or not members["payload"].startswith('"'):
        return text
    payload = _part(members["payload"])
    if payload.startswith('"'):
        return text
    schema = orjson.loads(members["schema"])
    is_of_struct = isinstance(schema, dict) and "fields" in schema
    return _joined({"schema": members["schema"], "payload": payload}.items()) if is_of_struct else payload


def _object_in(text: str) -> str:
    """Return the object (or null) that a JSON string contains, however often it was encoded; else the text itself."""
    inner = text.strip()
    while inner.startswith('"'):
        inner = orjson.loads(inner).strip()
        try:
            orjson.loads(inner)
        except orjson.JSONDecodeError:
            return text
    return inner if inner.startswith("{") or inner == "null" else text


def _members(text: str) -> Iterable[tuple[str, str]]:
    """Yield the names of an object's members, and the text of their values."""
    at = _after_space(text, 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        begin = _after_space(text, _after_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        yield name, text[begin:end]
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _joined(members: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in members) + "}"

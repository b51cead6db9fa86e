"""Debezium records with JSON text inside JSON, in the forms in which connectors and bridges write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

# More digits than a double has.
LONG = "12345678901234567890123"
ROW = f'{{"id": 1, "n": {LONG}, "s": "a \\"b\\" \\u00e4 {{"}}'
SOURCE = '{"schema": "public", "table": "users", "sequence": "[\\"1\\",\\"2\\"]", "lsn": 2}'
ENVELOPE = f'{{"before": null, "after": {ROW}, "source": {SOURCE}, "op": "c"}}'
FLAT = f'{ROW[:-1]}, "__op": "c", "__table": "users", "__source_schema": "public", "__lsn": 2}}'
FIELDS = [{"type": "int64", "field": "id"}, {"type": "string", "field": "n"}, {"type": "string", "field": "s"}]
STRUCT = {"type": "struct", "fields": [
    {"type": "string", "field": "op"},
    *({"type": "struct", "field": f, "fields": FIELDS} for f in ("before", "after")),
    {"type": "struct", "field": "source", "fields": []},
]}  # fmt: skip
KEY = {"type": "struct", "fields": FIELDS[:1]}
TEXT = '{"type": "string", "optional": false}'


def with_schema(payload: str, schema: Any = None) -> str:
    return f'{{"schema": {json.dumps(schema) if schema else TEXT}, "payload": {payload}}}'


def wrapped(key: str, value: str) -> str:
    return f'{{"topic": "shop.public.users", "key": {key}, "value": {value}, "offset": 5}}'


q: Callable[[str], str] = json.dumps
FORMS: Mapping[str, str] = {
    "both": wrapped(q('{"id": 1}'), q(ENVELOPE)),
    "value": wrapped('{"id": 1}', q(ENVELOPE)),
    "key": wrapped(q('{"id": 1}'), ENVELOPE),
    "twice": wrapped(q(q('{"id": 1}')), q(q(f" {ENVELOPE} "))),
    "record": q(wrapped(q('{"id": 1}'), q(ENVELOPE))),
    "record, of objects": q(wrapped('{"id": 1}', ENVELOPE)),
    "flattened": wrapped(q('{"id": 1}'), q(FLAT)),
    "payload": wrapped(with_schema(q('{"id": 1}')), with_schema(q(ENVELOPE))),
    "payload, schema null": wrapped('{"id": 1}', f'{{"schema": null, "payload": {q(ENVELOPE)}}}'),
    "payload, flattened": wrapped('{"id": 1}', with_schema(q(FLAT))),
    "schemas": wrapped(q(with_schema('{"id": 1}', KEY)), q(with_schema(ENVELOPE, STRUCT))),
    "schemas in a payload": wrapped(
        with_schema(q(with_schema('{"id": 1}', KEY))), with_schema(q(with_schema(ENVELOPE, STRUCT)))
    ),
    "schemas, payload": wrapped(with_schema(q('{"id": 1}'), KEY), with_schema(q(ENVELOPE), STRUCT)),
}
# Without a key beside the value.
ALONE: Mapping[str, str] = {
    "alone": q(ENVELOPE),
    "alone, flattened": q(FLAT),
    "alone, payload": with_schema(q(ENVELOPE)),
    "alone, schema": q(with_schema(ENVELOPE, STRUCT)),
}

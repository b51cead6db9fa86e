"""Hostile values, lines, files and names, and ways to put them into records."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

INJECTIONS = (
    "'); DROP TABLE lake.final.others; --",
    "`; DROP TABLE lake.final.others; --",
    '" OR 1=1 --',
    "${spark.sql.catalog.lake.uri}",
    "{{ 7 * 7 }}",
    "$(touch /tmp/owned)",
    "\\'; --",
)
NAMES = (
    "",
    " ",
    ".",
    "..",
    "../../../../x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a`b",
    "a.b.c",
    "tab\tnew\nline",
    "nul\u0000here",
    "n" * 300,
    "ü" * 150,
    "\u202egpj.exe",
    "\ud800",
    "?#%2e%2e/*",
    "SELECT",
    "__lake_sign",
    "_position",
    *INJECTIONS,
)
NUMBERS = (-1, 0, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 1e308, -0.0, 1.5)
SCALARS: tuple[Any, ...] = (None, True, False, "", "NaN", "Infinity", "x" * 100_000, *NUMBERS, *NAMES)


def nested(depth: int, kind: str = "{") -> str:
    """JSON so deep."""
    return '{"a":' * depth + "1" + "}" * depth if kind == "{" else "[" * depth + "]" * depth


LINES: tuple[bytes, ...] = (
    b"null", b"true", b"0", b'""', b"[]", b"{}", b"[[]]", b"[{}]", b"NaN", b"-Infinity", b"{", b"}", b'{"a"', b"'a'", b"{}{}", b"{} {}",
    b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"\x00", b"\x00" * 1000, b"\x1f\x8b\x08\x00", b"PAR1", b"\xc3\x28",
    b'{"a":1,"a":2}', b'{"":""}', b'{"__proto__":{"x":1}}', b'{"a":1e999}', b'{"a":' + b"9" * 5000 + b"}",
    b'"\\ud800"', b'{"\\u0000":"\\u0000"}', b"x" * 100_000, b" " * 1000 + b"{}", b"{}//", b"#", b"<xml/>", b"\r", b"\x0b",
    *(nested(d, k).encode() for d in (100, 199, 200, 201, 980, 1_100, 20_000) for k in "{["),
    json.dumps({f"k{i}": i for i in range(5_000)}).encode(),
    json.dumps([{"a": i} for i in range(5_000)]).encode(),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value within a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def spoiled(record: Any, choose: random.Random) -> str:
    """A record of which one thing is otherwise: a value, a name, something left out or added."""
    record = copy.deepcopy(record)
    *_, path = choose.choices([p for p in places(record) if p], k=1)
    parent = record
    for key in path[:-1]:
        parent = parent[key]
    last = path[-1]
    match choose.randrange(8):
        case 0 if isinstance(parent, dict):
            parent[choose.choice(NAMES)] = parent.pop(last)
        case 1 if isinstance(parent, dict):
            del parent[last]
        case 2:
            parent[last] = [parent[last]]
        case 3:
            parent[last] = {choose.choice(NAMES): parent[last]}
        case 4:
            parent[last] = json.loads(nested(choose.choice([50, 150]), choose.choice("{[")))
        case 5 if isinstance(parent, dict):
            parent[choose.choice(NAMES)] = choose.choice(SCALARS)
        case _:
            parent[last] = choose.choice(SCALARS)
    # Lone surrogates and NaN come out as a lenient writer would send them.
    return json.dumps(record, separators=(",", ":"))

"""Whether the text of a record mentions a key, whatever its wire format.

Staging tells which records became events of a key. It does not tell of tombstones that only repeat a delete, of
rejected records, and of records before `start_position`: their text does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from lake_assets.erase.key_values import Key

# Lists of names and values beside each other, as wal2json has them.
_PAIRS = (("columnnames", "columnvalues"), ("keynames", "keyvalues"), ("names", "values"))


@dataclass(frozen=True)
class Mentions:
    """Looks for keys in records.

    Attributes:
        names: the names of each key column in the source, in lower case.
        keys: the keys.
    """

    names: Sequence[Collection[str]]
    keys: Collection[Key]

    @cached_property
    def pattern(self) -> str:
        """A regular expression, as Java reads it, that every record with one of the keys matches, and others too."""
        values = {v for key in self.keys for v in key[:1]}
        texts = {t for v in values for t in (v, json.dumps(v)[1:-1], json.dumps(v, ensure_ascii=False)[1:-1])}
        return f"(?<![0-9A-Za-z])({'|'.join(sorted(map(_escaped, texts)))})(?![0-9A-Za-z])"

    def are_in(self, text: str | None) -> bool:
        """Whether a record mentions one of the keys, as values of the key's columns."""
        if not text:
            return False
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return bool(self._broken.search(text))
        return any(self._matches(row) for row in _rows(value))

    def _matches(self, row: Mapping[str, Any]) -> bool:
        values = [next((v for n, v in row.items() if n in names), None) for names in self.names]
        return None not in values and tuple(map(_text, values)) in self._texts

    @cached_property
    def _texts(self) -> frozenset[Key]:
        return frozenset(self.keys)

    @cached_property
    def _broken(self) -> re.Pattern[str]:
        """The first column of a key, and soon after it its value: in a text that is no JSON."""
        columns = "|".join(re.escape(n) for n in self.names[0])
        values = "|".join(re.escape(key[0]) for key in self.keys)
        return re.compile(rf"(?<![0-9A-Za-z_])(?:{columns})\W{{1,6}}(?:{values})(?![0-9A-Za-z])", re.IGNORECASE)


def _escaped(text: str) -> str:
    return re.sub(r"([^0-9A-Za-z])", lambda m: f"\\x{{{ord(m[1]):x}}}" if ord(m[1]) > 126 else f"\\{m[1]}", text)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _rows(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object of a JSON value, with names in lower case; and named values in other forms as objects."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return
    if isinstance(value, list):
        named = [v for v in value if isinstance(v, dict) and isinstance(v.get("name"), str) and "value" in v]
        if named:
            yield {v["name"].lower(): v["value"] for v in named}
        for item in value:
            yield from _rows(item)
    elif isinstance(value, dict):
        row = {str(n).lower(): v for n, v in value.items()}
        yield row
        for names, values in _PAIRS:
            if isinstance(row.get(names), list) and isinstance(row.get(values), list):
                yield {str(n).lower(): v for n, v in zip(row[names], row[values], strict=False)}
        for item in row.values():
            yield from _rows(item)

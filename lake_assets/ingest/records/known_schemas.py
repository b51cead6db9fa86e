"""Schemas that records repeat, known by their text: such a record is decoded without them.

A schema is most of a Debezium record, and decoding it takes most of the time. The text of a schema that was decoded
once is replaced by a short string, its stand-in, before the record is decoded.
"""

from __future__ import annotations

import json
from uuid import uuid4

from lake_assets.formats.format_base import is_deep

_FIELD = '"schema":'
_OBJECT = '"schema":{'
# Records with others are decoded in full.
_MOST = 200
# Numbers as text: Python refuses to parse thousands of digits.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


class KnownSchemas:
    """The schemas of a stream.

    Attributes:
        depth: deepest nesting of a schema; one that is deeper is not learned.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        # No record contains it.
        self._mark = uuid4().hex
        # Text and stand-in of each schema, the last ones that occurred first.
        self._known: list[tuple[str, str]] = []

    def shorten(self, text: str) -> list[str] | None:
        """Return the pieces of a record, of which every second one is the stand-in of a schema; None: one is unknown.

        Since quotes inside of strings are escaped, what follows `"schema":` in JSON is the value of a field.
        """
        pieces: list[str] = []
        known, at = self._known, 0
        while (found := text.find(_OBJECT, at)) >= 0:
            begin, i = found + len(_FIELD), 0
            while i < len(known) and not text.startswith(known[i][0], begin):
                i += 1
            if i == len(known):
                return None
            schema, stand_in = known[i]
            if i > 1:
                known.insert(0, known.pop(i))
            pieces.append(text[at:begin])
            pieces.append(stand_in)
            at = begin + len(schema)
        pieces.append(text[at:])
        return pieces

    def learn(self, text: str) -> None:
        """Take the schemas of a record into account that can be decoded."""
        if len(self._known) >= _MOST:
            return
        at, known = 0, {schema for schema, _ in self._known}
        while len(known) < _MOST and (found := text.find(_OBJECT, at)) >= 0:
            begin = found + len(_FIELD)
            decoded, at = _DECODER.raw_decode(text, begin)
            if (schema := text[begin:at]) not in known and not is_deep(decoded, self.depth):
                known.add(schema)
                self._known.insert(0, (schema, f'"{self._mark}{len(known)}"'))

"""Rows without a key (`key: "*"`): a hash of all values, and the number of a copy."""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot

from lake_assets.final.column_selection import Item
from lake_assets.lake.names import literal, quote
from lake_assets.lake.sql_text import DIALECT

# A hash of all values of a row, where that is its key.
ROW = "__row"


# The number of a row among those with the same values, from 1.
COPY = "__copy"


FIRST_COPY = Item(COPY, sqlglot.parse_one("1L", dialect=DIALECT), (), False)
"""What an event says of the number: it is about one copy, whichever."""


# Moments are the same whatever the session's time zone. By default JSON has neither their microseconds nor the era.
_WHOLE_MOMENTS = {
    "timeZone": "UTC",
    "dateFormat": "G yyyy-MM-dd",
    "timestampFormat": "G yyyy-MM-dd HH:mm:ss.SSSSSS",
    "timestampNTZFormat": "G yyyy-MM-dd HH:mm:ss.SSSSSS",
}


def hash_of_row(columns: Sequence[str]) -> Item:
    """A column that is the same for two rows with the same values, and for no others that anyone will meet.

    A null is left out, so that a column that is added changes nothing of the rows before it.
    """
    fields = (f"{literal('c_' + c)}, {quote(c)}" for c in columns)
    options = ", ".join(f"{literal(k)}, {literal(v)}" for k, v in _WHOLE_MOMENTS.items())
    text = f"md5(to_json(named_struct({', '.join(fields)}), map({options})))"
    return Item(ROW, sqlglot.parse_one(text, dialect=DIALECT), tuple(columns), False)

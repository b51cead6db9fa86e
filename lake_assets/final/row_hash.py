"""Rows without a key (`key: "*"`): a hash of all values, and a number per copy."""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot

from lake_assets.final.column_selection import Item
from lake_assets.lake.names import literal, quote
from lake_assets.lake.sql_text import DIALECT

# A hash of all values of a row: its key, together with the copy number.
ROW = "__row"
# The number of a row among the rows with the same values, from 1.
COPY = "__copy"

FIRST_COPY = Item(COPY, sqlglot.parse_one("1L", dialect=DIALECT), ())
"""The copy number in events: an event is about one copy, no matter which."""


# Timestamps must not depend on the session's time zone. By default, JSON omits their microseconds and their era.
_WHOLE_MOMENTS = {
    "timeZone": "UTC",
    "dateFormat": "G yyyy-MM-dd",
    "timestampFormat": "G yyyy-MM-dd HH:mm:ss.SSSSSS",
    "timestampNTZFormat": "G yyyy-MM-dd HH:mm:ss.SSSSSS",
}


def hash_of_row(columns: Sequence[str]) -> Item:
    """Return a column with a hash of all values: equal rows have equal hashes, different rows practically never do.

    Nulls are left out, so adding a column does not change the hashes of existing rows.
    """
    fields = (f"{literal('c_' + c)}, {quote(c)}" for c in columns)
    options = ", ".join(f"{literal(k)}, {literal(v)}" for k, v in _WHOLE_MOMENTS.items())
    text = f"md5(to_json(named_struct({', '.join(fields)}), map({options})))"
    return Item(ROW, sqlglot.parse_one(text, dialect=DIALECT), tuple(columns))

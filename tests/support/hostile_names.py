"""Names that a source may give its tables and columns, and streams in which a table or a column has each of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lake_assets.examples.event_generator import KEY, Change, Transaction, Workload
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.formats.event_model import INSERT

# Of one name in two spellings both are here: composed and not (NFC, NFD), in capitals and not.
SPELLINGS = ("caf\u00e9", "cafe\u0301", "ORDERS", "orders", "stra\u00dfe", "STRASSE", "\u0130d", "i\u0307d")
NAMES = (
    "tab\tname",
    "new\nline",
    "what?",
    "a#b",
    "it's",
    'say "hi"',
    "back`tick",
    "..",
    ".",
    "a.b",
    "../../x",
    "a/b",
    "back\\slash",
    "%2e%2e",
    "n" * 300,
    "\U0001f6b2",
    "\x1b[31mred\x07",
    "[/red]",
    "\x9b2J",
    "\u202egpj",
    " ",
    "SELECT",
    "null",
    "${x}",
    "*",
)
# What staging tables, captures and Iceberg call columns of their own: a source's are refused, with advice.
TAKEN = (
    "_op", "_sequence", "_position", "_unavailable", "_change_type", "_commit_version", "__lake_sign", "_file", "_pos",
    "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_deleted",
)  # fmt: skip
# Other columns, and tables of metadata, that have such names.
COLUMN_NAMES = (
    "__deleted",
    "valid_from",
    "valid_to",
    "metadata",
    "record",
    "table",
    "order",
    "files",
    "snapshots",
    "_id",
)
_TIME = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
Row = Mapping[str, Any]


def lines(form: str, inserts: Iterable[tuple[str, Row]]) -> Iterator[str]:
    """One transaction an insert, each of a row (`id` beside texts) of a table of the schema `public`."""
    for n, (table, row) in enumerate(inserts, 1):
        columns = {c: "bigint" if c == KEY else "text" for c in row}
        change = Change(INSERT, n * 100, columns, None, row)
        transaction = Transaction(700 + n, n * 100 + 10, n * 100 - 90, _TIME + dt.timedelta(seconds=n), (change,))
        yield from ENCODERS[form](transaction, Workload(table=("public", table)))

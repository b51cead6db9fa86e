"""The one model that every wire format is turned into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from lake_assets.errors import InvalidNameError
from lake_assets.lake.names import TableId

# Columns of every staging table beside those of its source table.
OP = "_op"
SEQUENCE = "_sequence"
POSITION = "_position"
EVENT_TIME = "_event_time"
ARRIVED_AT = "_arrived_at"
UNAVAILABLE = "_unavailable"
TECHNICAL: dict[str, str] = {
    OP: "string",
    SEQUENCE: "string",
    POSITION: "bigint",
    EVENT_TIME: "timestamp",
    ARRIVED_AT: "timestamp",
    UNAVAILABLE: "array<string>",
}

# What `_op` holds. `read` is a row of an initial snapshot: an upsert like `insert`.
INSERT, READ, UPDATE, DELETE, TRUNCATE = "insert", "read", "update", "delete", "truncate"


@dataclass(frozen=True, order=True)
class SourceTable:
    """A table of the source database: schema (or database) and name, as the source spells them."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`public.users`; parts with dots in backticks."""
        table = TableId.parse(text)
        if len(table.parts) != 2:
            raise InvalidNameError(f"{text!r} is no source table: write schema.table, for example public.users")
        return cls(table.parts[0], table.parts[1])

    def __str__(self) -> str:
        return str(TableId((self.schema,), self.name))


@dataclass(frozen=True)
class EventColumn:
    """One column of the source table, and the SQL that reads it from a parsed event `e`.

    Attributes:
        name: the column's name in the lake.
        type: its Spark SQL type.
        text: SQL of the value as it came (a string), NULL for null.
        steps: SQL expressions over `{t}`, from that text to the typed value, each over what the one before gave;
            NULL where the text does not fit the type. None: the text is the value.
        unavailable: SQL of a boolean: the event does not carry the value (an unchanged TOAST value); None if the
            format never leaves this column out.
    """

    name: str
    type: str
    text: str
    steps: tuple[str, ...] = ()
    unavailable: str | None = None


@dataclass(frozen=True)
class EventPlan:
    """How all records with one schema become typed change events.

    Attributes:
        parsed: SQL over `record` giving the struct `e` that all other expressions read.
        op: SQL giving one of insert, read, update, delete, truncate, or NULL where the record's op is none of them.
        sequence: SQL of a string whose order is the source's own order of changes (ties: position in the stream).
        event_time: SQL of the time of the change at the source.
        columns: the source table's columns.
        key: names (in the lake) of the source table's key; empty where it has none.
    """

    parsed: str
    op: str
    sequence: str
    event_time: str
    columns: tuple[EventColumn, ...]
    key: tuple[str, ...]

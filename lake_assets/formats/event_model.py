"""The model of a change event, common to all wire formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from lake_assets.errors import InvalidNameError
from lake_assets.lake.names import TableId, literal

# Columns of every staging table besides the columns of its source table.
OP = "_op"
SEQUENCE = "_sequence"
POSITION = "_position"
EVENT_TIME = "_event_time"
ARRIVED_AT = "_arrived_at"
UNAVAILABLE = "_unavailable"
# Values that do not fit the type of their column and are null instead, with reasons. Only if that is declared.
MISFITS = "_misfits"
# The position of an event in its record, if a record may hold several.
INDEX = "_index"
TECHNICAL: dict[str, str] = {
    OP: "string",
    SEQUENCE: "string",
    POSITION: "bigint",
    INDEX: "int",
    EVENT_TIME: "timestamp",
    ARRIVED_AT: "timestamp",
    UNAVAILABLE: "array<string>",
    MISFITS: "array<string>",
}

# Field that staging adds to a record: its transaction, if the lines around the record tell it.
TRANSACTION = "@transaction"

# Replaces the source table of a record about several tables.
MANY = "*"

# Values of `_op`. `read` is a row of an initial snapshot: an upsert like `insert`.
INSERT, READ, UPDATE, DELETE, TRUNCATE = "insert", "read", "update", "delete", "truncate"


@dataclass(frozen=True, order=True)
class SourceTable:
    """A table of the source database: schema (or database) and name, as the source spells them."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `public.users`; parts with dots are in backticks."""
        wrong = f"{text!r} is not a source table: write schema.table, for example public.users"
        try:
            table = TableId.parse(text)
        except InvalidNameError as e:
            raise InvalidNameError(wrong if "backtick" not in str(e) else str(e)) from None
        if len(table.parts) != 2:
            raise InvalidNameError(wrong)
        return cls(table.parts[0], table.parts[1])

    def __str__(self) -> str:
        return str(TableId((self.schema,), self.name))


class Boundary(NamedTuple):
    """What a record says about its transaction.

    Attributes:
        kind: whether it begins the transaction, ends it, or is one of its changes.
        lsn: LSN of the change; for a begin, LSN of the commit.
        xid: number of the transaction.
    """

    kind: Literal["begin", "commit", "change"]
    lsn: str | None = None
    xid: str | None = None


class SnapshotRow(NamedTuple):
    """What a record says about the snapshot of a whole table that its row is part of.

    Attributes:
        place: the place in the source's log that all rows of the snapshot have.
        is_last: whether no other row of the table follows.
    """

    place: str
    is_last: bool


class Keyed(NamedTuple):
    """What a record says about the row of its key, in formats with tombstones.

    Attributes:
        kind: whether the row is written or deleted, or the record is a tombstone: a key without a value.
        topic: the topic of the record; empty if it does not name one.
        key: the decoded key; None if it has none.
    """

    kind: Literal["write", "delete", "tombstone"]
    topic: str = ""
    key: Any = None


@dataclass(frozen=True)
class EventColumn:
    """One column of the source table, and the SQL that reads it from a parsed event `e`.

    Attributes:
        name: the column's name in the lake.
        type: its Spark SQL type.
        text: SQL of the value's text as received; NULL for null.
        steps: SQL expressions over `{t}` that turn the text into the typed value, each applied to the result of the
            one before; NULL if the text does not fit the type. Empty: the text is the value.
        unavailable: SQL of a boolean: the event lacks the value (an unchanged TOAST value, a column that is left out),
            so the text is ignored; None if that never happens.
        left_out: like `unavailable`, but evaluated only if the text is NULL: for formats in which finding a column is
            slow.
        has_default: whether the source fills existing rows when the column is added.
        default: the value that it fills them with, as an SQL literal; None: unknown.
        is_required: whether the source allows no null.
        may_be_null: whether a value that does not fit the type becomes null, with a reason in the row; otherwise the
            event is rejected.
        is_conflict: whether the existing column has an incompatible type, so no value fits.
        loses_digits: SQL over `{t}`, the value's text, of a boolean: another text may give the same value, so it does
            not fit a key; None if that never happens.
        record_names: names of the value in the record's JSON, if its parser spells numbers in another way (1.50 as
            1.5); empty if the text is the record's own.
        is_base64: whether the text is a number's bytes in base64, so that a number in the JSON does not fit.
        saturates: whether the greatest and the smallest value of the type may stand for values beyond them.
        is_named: SQL of a boolean: the event names the column, so that a value that is not there is null; NULL if that
            is unknown. For key columns; None: unknown.
    """

    name: str
    type: str
    text: str
    steps: tuple[str, ...] = ()
    unavailable: str | None = None
    left_out: str | None = None
    has_default: bool = False
    default: str | None = None
    is_required: bool = False
    may_be_null: bool = False
    is_conflict: bool = False
    loses_digits: str | None = None
    record_names: tuple[str, ...] = ()
    is_base64: bool = False
    saturates: bool = False
    is_named: str | None = None

    @property
    def may_be_unavailable(self) -> bool:
        """Whether an event may lack the value."""
        return self.unavailable is not None or self.left_out is not None

    def is_unavailable(self, text: str) -> str:
        """Return SQL of a boolean: the event lacks the value; `text` is SQL of its text."""
        left_out = f"({text}) IS NULL AND ({self.left_out})" if self.left_out else "false"
        return f"({self.unavailable or 'false'} OR {left_out})"


NO_PLACE = "the record does not say, as a number, where it belongs in the order of changes"
NO_OP = "no such op, no row after it, or two columns whose names differ in case only"
NO_OLD_ROW = (
    "an update or delete without the whole old row: which row it means cannot be told by `key: '*'` (let the source "
    "log whole rows, as REPLICA IDENTITY FULL, or declare a key)"
)


@dataclass(frozen=True)
class EventPlan:
    """How all records with one schema become typed change events.

    Attributes:
        parsed: SQL over `record` and the values of `before` that returns the struct `e`, over which all other
            expressions are written.
        op: SQL of insert, read, update, delete or truncate; NULL if the record's op is none of them.
        sequence: SQL of a string that sorts in the source's order of changes (ties: position in the stream); empty if
            the record does not tell, NULL if its value cannot be sorted.
        event_time: SQL of the time of the change at the source.
        columns: the source table's columns.
        key: the source table's key (names in the lake); empty if it has none.
        split: SQL over `e` of an array with one item per event, which is `e` in the expressions above. An empty array:
            the record holds no event of the table; NULL: it cannot be read. None: each record is one event.
        where: SQL over an item of `split`: whether this plan reads the event. Plans for the same records have the same
            `split`, and each of its items (NULL included) belongs to exactly one plan. None: all events.
        index: SQL of the event's position in its record; independent of the batch in which the record is read.
        no_op: reason for rejecting an event without op.
        forms: the sets of columns that occur together in a row; empty: every row has all columns.
        no_place: SQL of the reason for rejecting an event whose sequence is NULL; None: such events are valid, since
            something else orders them.
        is_by_time: whether a time is all that orders the events.
        before: names and SQL of values computed from a record first, in this order, because several expressions use
            them.
        records: SQL over the values of `before`: whether this plan reads the record. Each record belongs to exactly one
            of the plans that share its schema. None: all records.
        is_tombstone: whether the records are keys of deleted rows, without a position of their own.
    """

    parsed: str
    op: str
    sequence: str
    event_time: str
    columns: tuple[EventColumn, ...]
    key: tuple[str, ...]
    split: str | None = None
    where: str | None = None
    index: str = "0"
    no_op: str = NO_OP
    forms: tuple[frozenset[str], ...] = ()
    no_place: str | None = literal(NO_PLACE)
    is_by_time: bool = False
    before: tuple[tuple[str, str], ...] = ()
    records: str | None = None
    is_tombstone: bool = False


@dataclass(frozen=True)
class Hints:
    """What is known about a source table besides its records.

    Attributes:
        table: the source table; of a record about several tables, only its events are read.
        rename: names in the lake by source name of a column: declared, or existing names that differ only in case.
        types: declared Spark SQL types of columns (names in the lake): they override the records' types.
        key: the declared key (names in the lake), for formats whose events have none.
        existing_columns: types of the staging table's columns (names in the lake). A column that no record of a batch
            contains may have been left out, and values without a type keep the existing type.
        by_row: whether rows are identified by all of their values: then each update is a delete and an insert.
        existing_key: the staging table's key (names in the lake), for batches whose events do not tell it.
        is_ordered: whether the declaration orders the events (`order_by`).
        placeholder: what stands for values that the source's log does not contain; None: the format's own.
    """

    table: SourceTable | None = None
    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    key: tuple[str, ...] = ()
    existing_columns: Mapping[str, str] = field(default_factory=dict[str, str])
    existing_key: tuple[str, ...] = ()
    by_row: bool = False
    is_ordered: bool = False
    placeholder: str | None = None


@dataclass(frozen=True)
class Seen:
    """One schema that occurs in a batch.

    Attributes:
        schema: the result of the format's `schema_of` for its records.
        shape: the result of the format's `shape` over all of its records.
    """

    schema: str
    shape: str | None = None


@dataclass(frozen=True)
class Planned:
    """A plan, and the schemas of the records that it reads.

    If plans share schemas, `where` divides the events, or `records` the records.
    """

    schemas: tuple[str, ...]
    plan: EventPlan

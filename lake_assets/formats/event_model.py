"""The one model that every wire format is turned into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from lake_assets.errors import InvalidNameError
from lake_assets.lake.names import TableId, literal

# Columns of every staging table beside those of its source table.
OP = "_op"
SEQUENCE = "_sequence"
POSITION = "_position"
EVENT_TIME = "_event_time"
ARRIVED_AT = "_arrived_at"
UNAVAILABLE = "_unavailable"
# Of values that did not fit their columns' types and are null instead: which, and why. Only where that is declared.
MISFITS = "_misfits"
# The place of an event among those of its record, where a record may hold several.
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

# In a record as staging reads it: its transaction, where lines around it say that.
TRANSACTION = "@transaction"

# What stands in place of a source table for a record about several of them.
MANY = "*"

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
class Boundary:
    """What a record says of the transaction around it.

    Attributes:
        kind: it begins one, ends one, or is one of its changes.
        lsn: of the change; of a begin, that of the commit.
        xid: number of the transaction.
    """

    kind: Literal["begin", "commit", "change"]
    lsn: str | None = None
    xid: str | None = None


@dataclass(frozen=True)
class EventColumn:
    """One column of the source table, and the SQL that reads it from a parsed event `e`.

    Attributes:
        name: the column's name in the lake.
        type: its Spark SQL type.
        text: SQL of the value as it came (a string), NULL for null.
        steps: SQL expressions over `{t}`, from that text to the typed value, each over what the one before gave;
            NULL where the text does not fit the type. None: the text is the value.
        unavailable: SQL of a boolean: the event does not carry the value (an unchanged TOAST value, a column that it
            leaves out), and the text is to be NULL; None if that never happens.
        left_out: the same, where the text is NULL anyway and nothing else has to be asked: for formats in which finding
            a column takes long.
        has_default: whether the source fills the rows that are there when the column is added.
        may_be_null: whether a value that does not fit the type becomes null, with a reason beside the row; else it
            makes the event a reject.
        is_conflict: whether the column has another type, which cannot become this one: no value fits.
    """

    name: str
    type: str
    text: str
    steps: tuple[str, ...] = ()
    unavailable: str | None = None
    left_out: str | None = None
    has_default: bool = False
    may_be_null: bool = False
    is_conflict: bool = False

    @property
    def may_be_unavailable(self) -> bool:
        """Whether an event may lack the value."""
        return self.unavailable is not None or self.left_out is not None

    def is_unavailable(self, text: str) -> str:
        """SQL of a boolean: the event lacks the value, whose `text` is given as SQL."""
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
        parsed: SQL over `record`, and what comes `before`, giving the struct `e` that all other expressions read.
        op: SQL giving one of insert, read, update, delete, truncate, or NULL where the record's op is none of them.
        sequence: SQL of a string whose order is the source's own order of changes (ties: position in the stream); empty
            where the record says none, NULL where what it says cannot be placed.
        event_time: SQL of the time of the change at the source.
        columns: the source table's columns.
        key: names (in the lake) of the source table's key; empty where it has none.
        split: SQL over `e` giving an array, each item of which is one event, and `e` in the expressions above. An
            empty array: the record holds no event of the table; NULL: it cannot be read. None: a record is one event.
        where: SQL over `e` as `split` gives it: whether the event is read by this plan. Plans for the same records have
            the same `split`, and each of its events (NULL included) belongs to exactly one of them. None: all events.
        index: SQL of the event's place in its record: the same in whatever batch the record is read.
        no_op: what is wrong with an event without op.
        forms: which columns stand together in an event's row, each form once; empty: all of them.
        no_place: SQL of what is wrong with an event whose sequence is NULL; None: nothing, something else orders them.
        before: names and SQL of what is computed of a record first, one after the other, since more than one place
            reads it.
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
    before: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Hints:
    """What is known of a source table beside its records.

    Attributes:
        table: the source table: a record about several tables is read for this one.
        rename: source names of columns to names in the lake, as the owner declared (or as the lake spells them already,
            where only case differs).
        types: Spark SQL types of columns (names in the lake) that the owner declared: they win over what the records
            say.
        key: the key that the owner declared (names in the lake), for formats that carry none.
        known: columns that the staging table has, with their types: a column that no record of a batch holds may be
            one that they leave out, and values without a type are read as what they were before.
        by_row: whether rows are told apart by all of their values: an update is a delete and an insert then.
        known_key: the key that the staging table has (names in the lake), for batches in which no event says it.
    """

    table: SourceTable | None = None
    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    key: tuple[str, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict[str, str])
    known_key: tuple[str, ...] = ()
    by_row: bool = False


@dataclass(frozen=True)
class Seen:
    """One schema that occurs in a batch.

    Attributes:
        schema: the text that the format's `schema_of` gives for its records.
        shape: the text that the format's `shape` gives for all of its records together.
    """

    schema: str
    shape: str | None = None


@dataclass(frozen=True)
class Planned:
    """A plan, and the schemas whose records it is for. Two plans may share schemas: their `where` then parts events."""

    schemas: tuple[str, ...]
    plan: EventPlan

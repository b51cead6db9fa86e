"""The wire formats by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lake_assets.errors import PipelineError
from lake_assets.formats.debezium import Debezium
from lake_assets.formats.event_model import Boundary, EventPlan, Hints, Keyed, Planned, Seen, SnapshotRow, SourceTable
from lake_assets.formats.flat_rows import CHANGE_FEED, CHANGE_SET, change_set
from lake_assets.formats.format_base import DEPTH, decode
from lake_assets.formats.row_layouts import RowLayout
from lake_assets.formats.simplified import Simplified
from lake_assets.formats.wal2json import Wal2JsonV1, Wal2JsonV2


class EventFormat(Protocol):
    """A wire format of change events."""

    def schema_of(self, record: Any) -> str:
        """Return the schema of a decoded record as text; records with equal text are read by the same plan."""
        ...

    def without_schema(self, text: str, schema: str) -> str | None:
        """Return an equivalent record without its schema; None if it has none that can simply be removed.

        Args:
            text: the record as received.
            schema: the record's `schema_of`.
        """
        ...

    def boundary(self, record: Any) -> Boundary | None:
        """Return what a decoded record says about its transaction, in formats with lines around one; otherwise None."""
        ...

    def snapshot_row(self, record: Any) -> SnapshotRow | None:
        """Return what a decoded record says about the snapshot of a whole table that it is part of; otherwise None."""
        ...

    def control_kind(self, record: Any) -> str | None:
        """Return what a decoded record is that says nothing about a row (`heartbeats`, `signals`, ...).

        None: it is about rows, or a tombstone.
        """
        ...

    def without_nested_text(self, text: str, record: Any) -> str | None:
        """Return the record with objects where it has JSON text inside JSON; None if it has none.

        Args:
            text: the record as received.
            record: the decoded record.
        """
        ...

    def keyed(self, record: Any) -> Keyed | None:
        """Return what a decoded record says about the row of its key, in formats with tombstones; otherwise None."""
        ...

    def database(self, record: Any) -> str | None:
        """Return the database that a decoded record names, besides the schema of its table; None if it names none."""
        ...

    @property
    def tombstone(self) -> str | None:
        """SQL over `record`: whether it may be a tombstone with a key; None if the format has none."""
        ...

    def says_all(self, schema: str) -> bool:
        """Whether the result of `schema_of` suffices to read the records, without the aggregate `shape`."""
        ...

    @property
    def shape(self) -> str | None:
        """SQL aggregate over `record` that describes all records of one schema together.

        None if no plan of the format needs it.
        """
        ...

    @property
    def whole(self) -> bool:
        """Whether a column that a row lacks is null; otherwise it is unchanged."""
        ...

    @property
    def numbered(self) -> str:
        """SQL over `_sequence`: whether it identifies a single change.

        Then events with the same sequence, key and op are the same event delivered again, and a delete and an insert
        with the same sequence are the two halves of a key change.
        """
        ...

    @property
    def same_again(self) -> str:
        """SQL over `_sequence`: whether equal events with the same sequence are one change that was delivered again.

        Consecutive ones are not: they are equal rows of one commit.
        """
        ...

    @property
    def transaction(self) -> str:
        """SQL over `_sequence` of the part that all changes of a transaction share; NULL if it has no such part."""
        ...

    @property
    def identity(self) -> str:
        """SQL over `_sequence` of the part that identifies a numbered change."""
        ...

    @property
    def stored(self) -> str:
        """SQL that converts `_sequence` in staging tables, possibly from earlier versions, to today's sortable form."""
        ...

    def upgraded(self, sequence: str) -> str:
        """Return a `_sequence` of an earlier version, in a watermark, in today's form: what `stored` is for tables."""
        ...

    @property
    def log(self) -> str | None:
        """SQL over `_sequence` of the log that it is a position in; NULL if it is none.

        Positions in different logs cannot be compared. None if the events of a stream are always of one log.
        """
        ...

    @property
    def kind(self) -> str | None:
        """SQL over `_sequence` of its kind (numbers, moments), if a stream might mix kinds that cannot be compared.

        None if the format has only one kind.
        """
        ...

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """Return the source tables of a decoded JSON record; empty if it does not concern rows (a tombstone).

        Args:
            record: the decoded record.
            table: the declared table of the stream, folder or file, for records that do not name one.

        Raises:
            MalformedRecordError: the record is not a change event of this format.
        """
        ...

    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """Return the plans that together read all records of a batch.

        Raises:
            UnsupportedEventError: a schema contains something that cannot be read exactly.
        """
        ...

    def route(self, record: Any) -> SourceTable | None:
        """Return the table of a record that concerns at most one; see `routes`."""
        ...

    def plan(self, schema: str, rename: Mapping[str, str]) -> EventPlan:
        """Return the plan of one schema that suffices to read its records; see `plans`."""
        ...


FORMATS: dict[str, EventFormat] = {
    "debezium": Debezium(),
    "wal2json-v1": Wal2JsonV1(),
    "wal2json-v2": Wal2JsonV2(),
    "simplified": Simplified(),
    "change-set": CHANGE_SET,
    "change-feed": CHANGE_FEED,
}


def event_format(name: str, layout: RowLayout | None = None) -> EventFormat:
    """Return the format called `name`.

    Args:
        name: the format.
        layout: the declared columns of a change set.

    Raises:
        PipelineError: it is unknown.
    """
    if layout is not None:
        return change_set(layout)
    try:
        return FORMATS[name]
    except KeyError:
        raise PipelineError(f"no change event format {name!r}; known: {', '.join(sorted(FORMATS))}") from None


def read_record(reader: EventFormat, text: str, depth: int = DEPTH) -> tuple[Any, str | None]:
    """Decode a record; the second value is its text with objects for JSON text inside JSON, None if it has none.

    Args:
        reader: its format.
        text: the record as received.
        depth: the deepest nesting allowed.

    Raises:
        MalformedRecordError: it is not JSON, or nested too deeply.
    """
    record = decode(text, depth)
    plain = reader.without_nested_text(text, record)
    return (record, None) if plain is None else (decode(plain, depth), plain)

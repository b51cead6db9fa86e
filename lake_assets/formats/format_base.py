"""What all wire formats share: their interface with its defaults, checks of names, decoding of JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from lake_assets.errors import MalformedRecordError
from lake_assets.formats.event_model import SEQUENCE, Boundary, Hints, Keyed, Planned, Seen, SnapshotRow, SourceTable
from lake_assets.formats.nested_text import without_nested_text

# Spark's parsers recurse per level, and overflow their stack before level 1,000.
DEPTH = 200


class EventFormat(ABC):
    """A wire format of change events.

    Attributes:
        shape: SQL aggregate over `record` that describes all records of one schema together; None if no plan of the
            format needs it.
        whole: whether a column that a row lacks is null; otherwise it is unchanged.
        numbered: SQL over `_sequence`: whether it identifies a single change. Then events with the same sequence, key
            and op are the same event delivered again, and a delete and an insert with the same sequence are the two
            halves of a key change.
        transaction: SQL over `_sequence` of the part that all changes of a transaction share; NULL if it has none.
        identity: SQL over `_sequence` of the part that identifies a numbered change.
        stored: SQL that converts `_sequence` in staging tables, possibly from earlier versions, to today's sortable
            form.
        kind: SQL over `_sequence` of its kind (numbers, moments), if a stream might mix kinds that cannot be compared;
            None if the format has only one kind.
        log: SQL over `_sequence` of the log that it is a position in, NULL if it is none: positions in different logs
            cannot be compared. None if the events of a stream are always of one log.
        tombstone: SQL over `record`: whether it may be a tombstone with a key; None if the format has none.
        embeds_schemas: whether a record may repeat its schema, as the field `schema` of an object.
    """

    shape: str | None = None
    whole: bool = False
    numbered: str = "false"
    transaction: str = "CAST(NULL AS STRING)"
    identity: str = SEQUENCE
    stored: str = SEQUENCE
    kind: str | None = None
    log: str | None = None
    tombstone: str | None = None
    embeds_schemas: bool = False

    @property
    def same_again(self) -> str:
        """SQL over `_sequence`: whether equal events with the same sequence are one change that was delivered again.

        Consecutive ones are not: they are equal rows of one commit.
        """
        return self.numbered

    def upgraded(self, sequence: str) -> str:
        """Return a `_sequence` of an earlier version, in a watermark, in today's form: what `stored` is for tables."""
        return sequence

    def alike(self, record: Any) -> tuple[Hashable, Any] | None:
        """Return a value that a decoded record shares with others which are routed alike, and its key; None: unknown.

        Such records are about the same tables, and all methods of this class give the same for them, except `boundary`,
        and `keyed`, which differs in the key. The value is not necessarily hashable.
        """
        return None

    def schema_of(self, record: Any) -> str:
        """Return the schema of a decoded record as text; records with equal text are read by the same plan."""
        return ""

    def says_all(self, schema: str) -> bool:
        """Whether the result of `schema_of` suffices to read the records, without the aggregate `shape`."""
        return bool(schema)

    def without_schema(self, text: str, schema: str) -> str | None:
        """Return a record as received without its schema (`schema_of`); None if it has none that can be removed."""
        return None

    def without_nested_text(self, text: str, record: Any) -> str | None:
        """Return a record as received with objects where it has JSON text inside JSON; None if it has none."""
        plain = without_nested_text(text) if isinstance(record, str) else text
        return plain if plain != text else None

    def boundary(self, record: Any) -> Boundary | None:
        """Return what a decoded record says about its transaction, in formats with lines around one; otherwise None."""
        return None

    def control_kind(self, record: Any) -> str | None:
        """Return what a decoded record is that says nothing about a row (`heartbeats`, `signals`, ...).

        None: it is about rows, or a tombstone.
        """
        return None

    def snapshot_row(self, record: Any) -> SnapshotRow | None:
        """Return what a decoded record says about the snapshot of a whole table that it is part of; otherwise None."""
        return None

    def keyed(self, record: Any) -> Keyed | None:
        """Return what a decoded record says about the row of its key, in formats with tombstones; otherwise None."""
        return None

    def database(self, record: Any) -> str | None:
        """Return the database that a decoded record names, besides the schema of its table; None if it names none."""
        return None

    @abstractmethod
    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """Return the source tables of a decoded JSON record; empty if it does not concern rows (a tombstone).

        Args:
            table: the declared table of the stream, folder or file, for records that do not name one.

        Raises:
            MalformedRecordError: the record is not a change event of this format.
        """

    @abstractmethod
    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """Return the plans that together read all records of a batch.

        Raises:
            UnsupportedEventError: a schema contains something that cannot be read exactly.
        """


def schema_key(schema: str) -> str:
    """Return the short key that is stored with each record instead of its schema: the schema itself, or its hash."""
    return schema if len(schema) <= 32 else blake2b(schema.encode(), digest_size=16).hexdigest()


def decode(line: bytes | str, depth: int = DEPTH) -> Any:
    """Decode one line of a stream as JSON.

    Args:
        depth: the deepest nesting allowed, at most `DEPTH`.

    Raises:
        MalformedRecordError: it is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as e:
        reason = f"nested deeper than {depth} levels" if is_too_deep(e) else f"not JSON ({e})"
        raise MalformedRecordError(reason) from e
    brackets = line.count(b"{") + line.count(b"[") if isinstance(line, bytes) else line.count("{") + line.count("[")
    # Counting brackets first is cheap, and few records have that many.
    if brackets > depth and is_deep(record, depth):
        raise MalformedRecordError(f"nested deeper than {depth} levels")
    return record


def is_too_deep(error: orjson.JSONDecodeError) -> bool:
    """Whether a text may be JSON, but is nested deeper than orjson supports: 1,024 levels."""
    return "depth limit" in str(error)


def is_deep(record: Any, depth: int) -> bool:
    """Whether a decoded value is nested deeper than so many levels."""
    level = [record] if isinstance(record, dict | list) else []
    for _ in range(depth):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def named(value: Any, what: str) -> str:
    """Return `value` if it is a name.

    Raises:
        MalformedRecordError: it is not a name.
    """
    if not isinstance(value, str) or not value or "\x00" in value:
        raise MalformedRecordError(f"{what} is {value!r}, expected a name")
    return value

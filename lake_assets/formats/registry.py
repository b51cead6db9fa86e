"""The wire formats by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lake_assets.errors import PipelineError
from lake_assets.formats.debezium import Debezium
from lake_assets.formats.event_model import Boundary, EventPlan, Hints, Planned, Seen, SourceTable
from lake_assets.formats.flat_rows import CHANGE_FEED, CHANGE_SET
from lake_assets.formats.simplified import Simplified
from lake_assets.formats.wal2json import Wal2JsonV1, Wal2JsonV2


class EventFormat(Protocol):
    """What a module of this package offers."""

    def schema_of(self, record: Any) -> str:
        """Text that is the same for decoded records that are read alike; it says how, where a record says that."""
        ...

    def without_schema(self, text: str, schema: str) -> str | None:
        """The record without its schema, where it says one; reads like the record. None: it is not that simple.

        Args:
            text: the record as it came.
            schema: what `schema_of` says of it.
        """
        ...

    def boundary(self, record: Any) -> Boundary | None:
        """What a decoded record says of the transaction around it, where others say more; None: nothing."""
        ...

    def says_all(self, schema: str) -> bool:
        """Whether that text says how to read the records; else `shape` has to be asked as well."""
        ...

    @property
    def shape(self) -> str | None:
        """SQL aggregate over `record`, of the records of one schema: what is to be known of them all together.

        None: there is nothing to be asked.
        """
        ...

    @property
    def whole(self) -> bool:
        """Whether a row without a column says that it is null there (else it says nothing of it)."""
        ...

    @property
    def numbered(self) -> str:
        """SQL over `_sequence`: whether it is that of one change alone, so that an event with the same one, key and
        op is the same event again, and a delete and an insert with the same one are two halves of a key change."""
        ...

    @property
    def same_again(self) -> str:
        """SQL over `_sequence`: whether equal events with it are one change that was delivered again, but for those
        that came one after the other (rows of one commit)."""
        ...

    @property
    def transaction(self) -> str:
        """SQL over `_sequence` giving its part that all changes of a transaction share; NULL where it has none."""
        ...

    @property
    def identity(self) -> str:
        """SQL over `_sequence` giving its part that tells a numbered change from all others."""
        ...

    @property
    def stored(self) -> str:
        """SQL over `_sequence` as staging tables hold it, those of earlier versions too, giving one that sorts."""
        ...

    @property
    def kind(self) -> str | None:
        """SQL over `_sequence` giving what it is (numbers, moments), where a stream might mix what cannot be compared;
        None: it cannot."""
        ...

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """The source tables of a decoded JSON record; none for one that says nothing about a row (a tombstone).

        Args:
            record: what JSON decoding gave.
            table: the table that the stream, folder or file is declared to be about, for records that do not name one.

        Raises:
            MalformedRecordError: the record is no change event of this format.
        """
        ...

    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """The plans that together read all records of a batch.

        Raises:
            UnsupportedEventError: a schema holds something that cannot be read exactly.
        """
        ...

    def route(self, record: Any) -> SourceTable | None:
        """`routes` of a record that is about one table at most."""
        ...

    def plan(self, schema: str, rename: Mapping[str, str]) -> EventPlan:
        """`plans` of one schema, where the schema says everything."""
        ...


FORMATS: dict[str, EventFormat] = {
    "debezium": Debezium(),
    "wal2json-v1": Wal2JsonV1(),
    "wal2json-v2": Wal2JsonV2(),
    "simplified": Simplified(),
    "change-set": CHANGE_SET,
    "change-feed": CHANGE_FEED,
}


def event_format(name: str) -> EventFormat:
    """The format called `name`.

    Raises:
        PipelineError: there is none.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise PipelineError(f"no change event format {name!r}; known: {', '.join(sorted(FORMATS))}") from None

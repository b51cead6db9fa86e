"""The order of a stream's events: what their sequences tell, as SQL."""

from __future__ import annotations

from dataclasses import dataclass

from lake_assets.formats import EventFormat
from lake_assets.formats.event_model import POSITION, SEQUENCE
from lake_assets.lake.names import literal


@dataclass(frozen=True)
class Ordering:
    """Properties of the sequences of a stream, as SQL over `_sequence` (see `EventFormat`)."""

    numbered: str
    transaction: str
    identity: str = SEQUENCE

    @classmethod
    def of(cls, reader: EventFormat) -> Ordering:
        """Return the properties of a format's sequences."""
        return cls(reader.numbered, reader.transaction, reader.identity)

    @classmethod
    def declared(cls) -> Ordering:
        """Return the properties of sequences made of declared columns: they identify no change."""
        return cls("false", EventFormat.transaction)

    @property
    def has_transactions(self) -> bool:
        """Whether events have a transaction number."""
        return self.transaction != EventFormat.transaction

    def is_late(self, sequence: str, position: int) -> str:
        """Return SQL: an event is not strictly after the given one, but before it, in the same transaction, or part of
        the same change."""
        other = literal(sequence)
        after = f"({SEQUENCE} > {other} OR {SEQUENCE} = {other} AND {POSITION} > {position})"
        same = f"coalesce(({self.transaction}) = ({self.transaction.replace(SEQUENCE, other)}), false)"
        half = f"({self.numbered}) AND {SEQUENCE} = {other}"
        return f"NOT {after} OR {same} OR {half}"

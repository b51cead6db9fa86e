"""Routing of a stream's records: what records have in common is found out once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

from lake_assets.errors import MalformedRecordError
from lake_assets.formats import EventFormat, SourceTable
from lake_assets.formats.debezium_control import is_signal_table
from lake_assets.formats.event_model import Keyed
from lake_assets.formats.format_base import decode
from lake_assets.ingest.records.known_schemas import KnownSchemas
from lake_assets.ingest.records.routing import Routed, route

# Records of so many kinds are remembered.
_MOST = 10_000
# Levels around the schema of a record's key or value.
_AROUND = 2


class StreamRouter:
    """Routes the records of a stream, each as `route` does.

    Attributes:
        problem_of: returns the problem with a record about a table of a database, or None.
        event_format, about, depth, kept: see `route`.
    """

    def __init__(
        self,
        event_format: EventFormat,
        about: SourceTable | None,
        depth: int,
        kept: Collection[str],
        problem_of: Callable[[SourceTable, str | None], str | None],
    ) -> None:
        self.event_format, self.about, self.depth, self.kept = event_format, about, depth, kept
        self.problem_of = problem_of
        self._schemas = KnownSchemas(self.depth - _AROUND) if self.event_format.embeds_schemas else None
        self._alike: dict[Hashable, Routed] = {}

    def route(self, text: str) -> Routed:
        """Return the source tables and the schema of a record, or the problem with it."""
        event_format = self.event_format
        pieces = (self._schemas.shorten(text) if self._schemas else None) or [text]
        stand_ins = pieces[1::2]
        try:
            record = decode("".join(pieces) if stand_ins else text, self.depth)
        except MalformedRecordError:
            return self.route_alone(text)
        alike, key = event_format.alike(record) or (None, None)
        try:
            known = self._alike.get((alike, *stand_ins) if stand_ins else alike)
        except TypeError:  # a list or an object is in a name's place
            return self.route_alone(text)
        if known is None:
            return self._learned(text, alike, pieces, ... if stand_ins else record)
        payload = None
        if known.payload is not None:
            pieces[1::2] = ["null"] * len(stand_ins)
            payload = "".join(pieces)
        boundary = event_format.boundary(record) if known.boundary is not None else None
        keyed = Keyed(known.keyed.kind, known.keyed.topic, key) if known.keyed is not None else None
        return Routed(
            known.tables, known.source_table, None, known.key, payload, boundary, None, known.snapshot, keyed,
            known.database, True,
        )  # fmt: skip

    def route_alone(self, text: str, decoded: Any = ...) -> Routed:
        """Return the same without what earlier records say."""
        routed = route(self.event_format, text, self.about, self.depth, self.kept, decoded)
        problems = (self.problem_of(t, routed.database) for t in routed.tables)
        problem = next(filter(None, problems), None)
        return Routed(problem=problem) if problem else routed

    def _learned(self, text: str, alike: Hashable, pieces: list[str], decoded: Any) -> Routed:
        """Return how a record is routed, and remember it for records that are alike."""
        routed, stand_ins = self.route_alone(text, decoded), pieces[1::2]
        is_about_rows = routed.is_tombstone or (routed.tables and not is_signal_table(routed.tables[0]))
        if routed.problem or not is_about_rows:
            return routed
        if alike is None:
            if self._schemas:
                self._schemas.learn(text)
            return routed
        pieces[1::2] = ["null"] * len(stand_ins)
        is_as_stored = routed.payload is None or routed.payload == "".join(pieces)
        # A stand-in elsewhere than for the schema of key and value may be deeper than the schema was.
        are_schemas = not stand_ins or (isinstance(alike, tuple) and _named(alike, stand_ins))
        if is_as_stored and are_schemas:
            if len(self._alike) >= _MOST:
                self._alike.clear()
            self._alike[(alike, *stand_ins) if stand_ins else alike] = routed
        return routed


def _named(alike: tuple[object, ...], stand_ins: list[str]) -> bool:
    """Whether each of the stand-ins is one of the values on which the routing depends."""
    return sorted(f'"{value}"' for value in alike if f'"{value}"' in stand_ins) == sorted(stand_ins)

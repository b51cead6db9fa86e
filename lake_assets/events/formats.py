"""The wire formats by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lake_assets.errors import PipelineError
from lake_assets.events import debezium
from lake_assets.events.model import EventPlan, SourceTable


class EventFormat(Protocol):
    """What a module of this package offers."""

    @property
    def schema(self) -> str:
        """SQL over `record` giving text that is the same for all records that one `EventPlan` fits."""
        ...

    def route(self, record: Any) -> SourceTable | None:
        """The source table of a decoded JSON record; None for one that says nothing about a row (a tombstone).

        Raises:
            MalformedRecordError: the record is no change event of this format.
        """
        ...

    def plan(self, schema: str, rename: Mapping[str, str]) -> EventPlan:
        """The plan for records whose `schema` text is `schema`, columns renamed as the table's owner declared.

        Raises:
            UnsupportedEventError: the schema holds something that cannot be read exactly.
        """
        ...


FORMATS: dict[str, EventFormat] = {"debezium": debezium.Debezium()}


def event_format(name: str) -> EventFormat:
    """The format called `name`.

    Raises:
        PipelineError: there is none.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise PipelineError(f"no change event format {name!r}; known: {', '.join(sorted(FORMATS))}") from None

"""The wire formats by name."""

from __future__ import annotations

from typing import Any

from lake_assets.errors import PipelineError
from lake_assets.formats.debezium import Debezium
from lake_assets.formats.flat_rows import CHANGE_FEED, CHANGE_SET, change_set
from lake_assets.formats.format_base import DEPTH, EventFormat, decode
from lake_assets.formats.row_layouts import RowLayout
from lake_assets.formats.simplified import Simplified
from lake_assets.formats.wal2json import Wal2JsonV1, Wal2JsonV2

FORMATS: dict[str, EventFormat] = {
    "debezium": Debezium(),
    "wal2json-v1": Wal2JsonV1(),
    "wal2json-v2": Wal2JsonV2(),
    "simplified": Simplified(),
    "change-set": CHANGE_SET,
    "change-feed": CHANGE_FEED,
    # What differs between two dumps lands as a change feed.
    "snapshot": CHANGE_FEED,
}


def event_format(name: str, layout: RowLayout | None = None) -> EventFormat:
    """Return the format called `name`.

    Args:
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

    Raises:
        MalformedRecordError: it is not JSON, or nested too deeply.
    """
    return without_nested_text(reader, text, decode(text, depth), depth)


def without_nested_text(reader: EventFormat, text: str, record: Any, depth: int = DEPTH) -> tuple[Any, str | None]:
    """Return the same of a record that is decoded: `record`, of `text`."""
    plain = reader.without_nested_text(text, record)
    return (record, None) if plain is None else (decode(plain, depth), plain)

"""The wire formats by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lake_assets.errors import MalformedRecordError, PipelineError
from lake_assets.formats.debezium import Debezium
from lake_assets.formats.flat_rows import CHANGE_FEED, CHANGE_SET, TEXT, change_set
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


def other_format(reader: EventFormat, text: str) -> str:
    """Return a hint, in parentheses, about a record that its format cannot read: what it looks like; empty: unknown."""
    line = text.strip()
    if line in _PARTS_OF_LISTS or line[:2] in ("[{", '["'):
        return " (files have one JSON object per line, and no list around them)"
    try:
        record = decode(line)
    except MalformedRecordError:
        is_csv = isinstance(reader, type(CHANGE_SET)) and "," in line and line[:1] not in ("{", "[")
        return " (if the file is CSV, give it a name that ends in .csv)" if is_csv else ""
    if not isinstance(record, dict):
        return ""
    if set(record) == {TEXT}:
        near = "change-set, change-feed or snapshot"
        return "" if isinstance(reader, type(CHANGE_SET)) else f" (it is a row of a CSV file: declare `format: {near}`)"
    name = next((name for name, has in _SIGNS.items() if has(record)), None)
    if name is None or type(FORMATS[name]) is type(reader):
        return ""
    return f" (it looks like {name}: declare `format: {name}`)"


def _is_debezium(record: dict[str, Any]) -> bool:
    value = record.get("value", record)
    value = value.get("payload", value) if isinstance(value, dict) else value
    return isinstance(value, dict) and "op" in value and isinstance(value.get("source"), dict)


# By format, whether a record looks like it.
_SIGNS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "debezium": _is_debezium,
    "wal2json-v2": lambda r: isinstance(r.get("action"), str) and not r.keys().isdisjoint(("columns", "identity")),
    "wal2json-v1": lambda r: isinstance(r.get("change"), list),
    "simplified": lambda r: isinstance(r.get("changeType"), str),
}
# Lines of JSON that is written over several lines.
_PARTS_OF_LISTS = ("[", "]", "{", "}", "},", "[]")


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

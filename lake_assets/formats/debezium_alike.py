"""What decides how a Debezium record is routed, as a value to look up: see `EventFormat.alike`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from lake_assets.formats.debezium_layouts import META
from lake_assets.formats.debezium_wrapping import FIELDS

# Values of `source.snapshot` for the rows of a snapshot of whole tables.
LAST_ROW = ("last", "last_in_data_collection")
WHOLE_SNAPSHOT = ("true", "first", "first_in_data_collection", *LAST_ROW)
PLACE_OF_SNAPSHOT = ("lsn", "file", "pos", "commit_lsn", "scn")
_IN_ROW = ("op", *(f"{prefix}{name}" for prefix in META for name in ("op", "deleted", "table", "schema", "db")))
# A part of a record without a schema; a schema that is null is another case.
_NO_SCHEMA = False


def alike(record: Any) -> tuple[Hashable, Any] | None:
    """Return a value that all records share of which all but the key is the same, apart from the row's own values.

    The key is returned with it. None: unknown, as for JSON text inside JSON, and for schemas that are objects (see
    `KnownSchemas`).
    """
    # One function without calls: it is executed for each record that lands.
    if type(record) is not dict:
        return None
    key, topic, value, key_schema, schema = None, "", record, _NO_SCHEMA, _NO_SCHEMA
    is_wrapped = "value" in record and FIELDS.issuperset(record)
    if is_wrapped:
        key, value, topic = record.get("key"), record["value"], record.get("destination")
        topic = topic if type(topic) is str else record.get("topic")
        if type(key) is dict and len(key) == 2 and "schema" in key and "payload" in key:
            key_schema, key = key["schema"], key["payload"]
    if type(value) is dict and len(value) == 2 and "schema" in value and "payload" in value:
        schema, value = value["schema"], value["payload"]
    if type(key) is str or type(schema) is dict or type(key_schema) is dict:
        return None
    if type(value) is not dict:
        return ((is_wrapped, topic, key_schema, schema), key) if value is None else None
    source, snapshot = value.get("source"), None
    if type(source) is dict:
        if "op" not in value:
            return None
        op = value["op"]
        get = source.get
        fields = (
            op, value.get("__op"), value.get("__deleted"), get("table"), get("schema"), get("db"), get("collection"),
        )  # fmt: skip
        if op == "r":
            snapshot = _snapshot(source)
    elif "__op" in value or "__deleted" in value:
        fields = tuple(map(value.get, _IN_ROW))
        if "r" in fields:
            snapshot = _snapshot(source_of(value))
    else:
        return None
    return (is_wrapped, topic, key_schema, schema, type(source) is dict, fields, snapshot), key


def _snapshot(source: Mapping[str, Any]) -> Hashable:
    """Return what a row says about the snapshot of a whole table; None if it says nothing."""
    marker = str(source.get("snapshot")).lower()
    return (marker, place_of(source)) if marker in WHOLE_SNAPSHOT else None


def source_of(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `source` of an envelope, or the fields that ExtractNewRecordState added to a row."""
    if isinstance(value.get("source"), dict):
        return value["source"]
    return {n.removeprefix(p): v for p in reversed(META) for n, v in value.items() if n.startswith(p)}


def place_of(source: Mapping[str, Any]) -> str:
    """Return the place in the log that all rows of a snapshot share."""
    return "/".join(str(source[f]) for f in PLACE_OF_SNAPSHOT if source.get(f) is not None)

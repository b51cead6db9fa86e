"""Debezium's JSON, enveloped or flattened (ExtractNewRecordState), with and without schemas.

A record is `{"destination", "key", "value"}` (or `topic` instead of `destination`), or the value alone; with schemas,
key and value are `{"schema", "payload"}`. A flattened record needs `__op` or `__deleted` to identify deletes:
`delete.tombstone.handling.mode=rewrite`, `add.fields=op,table,source.lsn,source.ts_ms`. A tombstone (a key without a
value) repeats the delete before it, or is all that the stream says of a delete (`tombstone`, ExtractNewRecordState's
default): which of the two is known when it lands.

Source: Debezium's documentation of the PostgreSQL connector (data change events, data type mappings) and of event
flattening; recordings of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from lake_assets.errors import MalformedRecordError, UnsupportedEventError
from lake_assets.formats import debezium_wrapping
from lake_assets.formats.debezium_alike import LAST_ROW, WHOLE_SNAPSHOT, alike, place_of, source_of
from lake_assets.formats.debezium_control import MESSAGE, control_kind
from lake_assets.formats.debezium_layouts import META
from lake_assets.formats.debezium_mixed_forms import divided
from lake_assets.formats.debezium_plans import plan_inferred, plan_with_schema
from lake_assets.formats.debezium_tombstones import plan_tombstone
from lake_assets.formats.event_model import EventPlan, Hints, Keyed, Planned, Seen, SnapshotRow, SourceTable
from lake_assets.formats.format_base import EventFormat, named
from lake_assets.formats.log_positions import LOG, NUMBERED, STORED, TRANSACTION, upgraded
from lake_assets.formats.nested_text import without_nested_text
from lake_assets.formats.types.inferred_types import parse_schema


class Debezium(EventFormat):
    """See the module."""

    numbered, transaction, stored, log = NUMBERED, TRANSACTION, STORED, LOG
    embeds_schemas = True
    shape = "schema_of_variant_agg(try_parse_json(record))"
    tombstone = (
        "get_json_object(record, '$.key') IS NOT NULL AND get_json_object(record, '$.value.payload') IS NULL "
        "AND (get_json_object(record, '$.value') IS NULL OR get_json_object(record, '$.value.schema') IS NOT NULL)"
    )

    def upgraded(self, sequence: str) -> str:
        """See `EventFormat.upgraded`."""
        return upgraded(sequence)

    def alike(self, record: Any) -> tuple[Hashable, Any] | None:
        """See `EventFormat.alike`."""
        return alike(record)

    def schema_of(self, record: Any) -> str:
        """Return the schemas of value and key, separated by a line break.

        A record that consists of the value alone gives a line break and the value's schema; a tombstone gives two line
        breaks and the key's schema.
        """
        if _is_wrapped(record):
            if _payload(record["value"]) is None:
                return f"{_TOMBSTONE}{_schema(record.get('key'))}"
            value, key = _schema(record["value"]), _schema(record.get("key"))
            return f"{value}\n{key}" if value and key else value
        value = _schema(record)
        return f"\n{value}" if value else ""

    def says_all(self, schema: str) -> bool:
        """See `EventFormat.says_all`."""
        return bool(schema.strip())

    def without_schema(self, text: str, schema: str) -> str | None:
        """See `EventFormat.without_schema`."""
        short = text
        # No text value in a record can look like a schema, since its quotes are escaped.
        for part in filter(None, schema.split("\n")):
            short = short.replace(part, "null")
        return short if len(short) < len(text) else None

    def snapshot_row(self, record: Any) -> SnapshotRow | None:
        """See `EventFormat.snapshot_row`. Incremental snapshots miss no delete: the stream goes on beside them."""
        value, _ = _value_and_topic(record)
        if not isinstance(value, dict) or (value.get("op") or value.get("__op")) != "r":
            return None
        fields = source_of(value)
        marker = str(fields.get("snapshot")).lower()
        return SnapshotRow(place_of(fields), marker in LAST_ROW) if marker in WHOLE_SNAPSHOT else None

    def control_kind(self, record: Any) -> str | None:
        """See `EventFormat.control_kind`: see `debezium_control`."""
        value, topic = _value_and_topic(record)
        return control_kind(value, topic) if isinstance(value, dict) else None

    def without_nested_text(self, text: str, record: Any) -> str | None:
        """See `EventFormat.without_nested_text`: key, value and their payloads may be text."""
        parts = (record.get("key"), record["value"]) if _is_wrapped(record) else (record,)
        if not any(isinstance(part, str) or isinstance(_payload(part), str) for part in parts):
            return None
        plain = without_nested_text(text, debezium_wrapping.FIELDS)
        return plain if plain != text else None

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """See `EventFormat.routes`."""
        if record is None:
            return ()  # a tombstone of which only the value is stored
        if not isinstance(record, dict):
            raise MalformedRecordError('expected an object with "key" and "value"')
        whole = record["value"] if _is_wrapped(record) else record
        value, topic = _value_and_topic(record)
        if value is None:
            return ()  # a tombstone
        if _has_schema(whole) and not isinstance(whole["schema"], dict):
            raise MalformedRecordError('"schema" is not a schema')
        if not isinstance(value, dict):
            raise MalformedRecordError('"value" is not an object: neither an envelope nor a row')
        if "op" in value and isinstance(value.get("source"), dict):
            return () if value["op"] == MESSAGE else _of_source(value["source"])
        if "__op" in value or "__deleted" in value:
            return (_of_row(value, topic, table),)
        if control_kind(value, topic):
            return ()
        raise MalformedRecordError(
            "no Debezium envelope (payload.source.table is missing) and no flattened row with its operation: set "
            "add.fields=op,table and delete.tombstone.handling.mode=rewrite in ExtractNewRecordState"
        )

    def database(self, record: Any) -> str | None:
        """See `EventFormat.database`."""
        value, _ = _value_and_topic(record)
        if not isinstance(value, dict):
            return None
        database = source_of(value).get("db")
        return database if isinstance(database, str) and database else None

    def keyed(self, record: Any) -> Keyed | None:
        """See `EventFormat.keyed`."""
        value, topic = _value_and_topic(record)
        key = _payload(record.get("key")) if _is_wrapped(record) else None
        if value is None:
            return Keyed("tombstone", topic, key)
        if not isinstance(value, dict):
            return None
        deleted = "d" in (value.get("op"), value.get("__op")) or value.get("__deleted") in ("true", True)
        return Keyed("delete" if deleted else "write", topic, key)

    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """See `EventFormat.plans`: one per schema, since it determines the encoding of values, or per form without."""
        return tuple(Planned((s.schema,), plan) for s in seen for plan in _plans(s, hints))


# What the schema of a tombstone begins with.
_TOMBSTONE = "\n\n"


def _plans(seen: Seen, hints: Hints) -> list[EventPlan]:
    if seen.schema:
        try:
            if not seen.schema.startswith(_TOMBSTONE):
                return [_with_schema(seen.schema, hints)]
            key = seen.schema.removeprefix(_TOMBSTONE)
            return [plan_tombstone(_parsed(key)["fields"] if key else None, seen.shape, hints)]
        except (KeyError, TypeError, AttributeError) as e:
            what = f"it has no {e}" if isinstance(e, KeyError) else str(e)
            raise UnsupportedEventError(f"the record's schema is none of Kafka Connect: {what}") from e
    record = parse_schema(seen.shape)
    forms = divided(record, hints.existing_columns)
    return [replace(plan_inferred(form, hints), records=of_form) for form, of_form in forms] or [
        plan_inferred(record, hints)
    ]


def _has_schema(part: Any) -> bool:
    return isinstance(part, dict) and len(part) == 2 and "schema" in part and "payload" in part


def _payload(part: Any) -> Any:
    return part["payload"] if _has_schema(part) else part


def _is_wrapped(record: Any) -> bool:
    return isinstance(record, dict) and debezium_wrapping.is_wrapped(record.keys())


def _value_and_topic(record: Any) -> tuple[Any, str]:
    """Return the value of a record without its schema, and the topic, if it has one."""
    if not _is_wrapped(record):
        return _payload(record), ""
    topics = (record.get("destination"), record.get("topic"))
    return _payload(record["value"]), next((t for t in topics if isinstance(t, str)), "")


def _schema(part: Any) -> str:
    """Return the schema of a key or value as text; empty if it has none."""
    if _has_schema(part) and isinstance(part["schema"], dict):
        return orjson.dumps(part["schema"]).decode() if "fields" in part["schema"] else ""
    return ""


def _with_schema(text: str, hints: Hints) -> EventPlan:
    wrapped = not text.startswith("\n")
    value_text, _, key_text = text.removeprefix("\n").partition("\n")
    value, key = _parsed(value_text), _parsed(key_text) if key_text else None
    return plan_with_schema(value["fields"], key["fields"] if key else [], wrapped, hints)


def _parsed(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except ValueError as e:
        raise UnsupportedEventError(f"not a schema: {text[:120]!r} ({e})") from e
    if not isinstance(schema, dict) or not isinstance(schema.get("fields"), list):
        raise UnsupportedEventError(f"not the schema of a struct: {text[:120]!r}")
    return schema


def _of_source(source: Mapping[str, Any]) -> tuple[SourceTable, ...]:
    name = source.get("table")
    if name is None and source.get("collection"):
        raise MalformedRecordError(
            f"the record is about the collection {source['collection']} of MongoDB, which is not supported: its "
            "documents have no columns. Land them as rows (`format: change-set`), or leave them out of the stream"
        )
    if name == "":
        return ()  # a message (pg_logical_emit_message), which belongs to no table
    # Topic names are sanitised, so two tables may share one: the source fields decide.
    schema = source.get("schema") or source.get("db")
    return (SourceTable(named(schema, "source.schema"), named(name, "payload.source.table")),)


def _of_row(row: Mapping[str, Any], topic: str, table: SourceTable | None) -> SourceTable:
    def added(name: str) -> str | None:
        return next((row[f"{prefix}{name}"] for prefix in META if isinstance(row.get(f"{prefix}{name}"), str)), None)

    parts = topic.split(".")
    declared = (table.schema, table.name) if table else (None, None)
    schema = added("schema") or declared[0] or (parts[-2] if len(parts) > 2 else None) or added("db")
    name = added("table") or declared[1] or parts[-1]
    if not schema or not name:
        raise MalformedRecordError(
            "the flattened row does not name its table: set add.fields=op,table,db in ExtractNewRecordState, or "
            "declare the table of the stream"
        )
    return SourceTable(named(schema, "__schema or __db"), named(name, "__table"))

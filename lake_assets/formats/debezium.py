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
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from lake_assets.errors import MalformedRecordError, UnsupportedEventError
from lake_assets.formats.debezium_layouts import META
from lake_assets.formats.debezium_plans import FIELDS_OF_RECORD, plan_inferred, plan_with_schema
from lake_assets.formats.debezium_tombstones import plan_tombstone
from lake_assets.formats.event_model import EventPlan, Hints, Keyed, Planned, Seen, SourceTable
from lake_assets.formats.format_base import Format, named


class Debezium(Format):
    """See the module."""

    # `<last commit's LSN>/<LSN of the change>`, 20 digits each; zeros if the connector does not report an LSN.
    numbered = f"length(_sequence) = 41 AND right(_sequence, 20) <> '{'0' * 20}'"
    transaction = f"CASE WHEN {numbered} AND left(_sequence, 20) <> '{'0' * 20}' THEN left(_sequence, 20) END"
    shape = "schema_of_variant_agg(try_parse_json(record))"
    tombstone = (
        "get_json_object(record, '$.key') IS NOT NULL AND get_json_object(record, '$.value.payload') IS NULL "
        "AND (get_json_object(record, '$.value') IS NULL OR get_json_object(record, '$.value.schema') IS NOT NULL)"
    )

    def schema_of(self, record: Any) -> str:
        """Return the schemas of value and key, separated by a line break.

        A record that consists of the value alone gives a line break and the value's schema; a tombstone gives two line
        breaks and the key's schema.
        """
        if not isinstance(record, dict):
            return ""
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

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """See `EventFormat.routes`."""
        if record is None:
            return ()  # a tombstone of which only the value is stored
        if not isinstance(record, dict):
            raise MalformedRecordError('expected an object with "key" and "value"')
        wrapped = _is_wrapped(record)
        value = record["value"] if wrapped else record
        if isinstance(value, dict) and set(value) == {"schema", "payload"}:
            if value["payload"] is not None and not isinstance(value["schema"], dict):
                raise MalformedRecordError('"schema" is not a schema')
            value = value["payload"]
        if value is None:
            return ()  # a tombstone
        if not isinstance(value, dict):
            raise MalformedRecordError('"value" is not an object: neither an envelope nor a row')
        topic = _topic(record) if wrapped else ""
        if "op" in value and isinstance(value.get("source"), dict):
            return _of_source(value["source"])
        if "__op" in value or "__deleted" in value:
            return (_of_row(value, topic, table),)
        raise MalformedRecordError(
            "no Debezium envelope (payload.source.table is missing) and no flattened row with its operation: set "
            "add.fields=op,table and delete.tombstone.handling.mode=rewrite in ExtractNewRecordState"
        )

    def keyed(self, record: Any) -> Keyed | None:
        """See `EventFormat.keyed`."""
        if record is None:
            return Keyed("tombstone")
        if not isinstance(record, dict):
            return None
        wrapped = _is_wrapped(record)
        value = _payload(record["value"] if wrapped else record)
        topic, key = (_topic(record), _payload(record.get("key"))) if wrapped else ("", None)
        if value is None:
            return Keyed("tombstone", topic, key)
        if not isinstance(value, dict):
            return None
        deleted = "d" in (value.get("op"), value.get("__op")) or value.get("__deleted") in ("true", True)
        return Keyed("delete" if deleted else "write", topic, key)

    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """See `EventFormat.plans`: one per schema, since the schema determines the encoding of values."""
        return tuple(Planned((s.schema,), _plan(s, hints)) for s in seen)


# What the schema of a tombstone begins with.
_TOMBSTONE = "\n\n"


def _plan(seen: Seen, hints: Hints) -> EventPlan:
    if seen.schema.startswith(_TOMBSTONE):
        key = seen.schema.removeprefix(_TOMBSTONE)
        return plan_tombstone(_parsed(key)["fields"] if key else None, seen.shape, hints)
    return _with_schema(seen.schema, hints) if seen.schema else plan_inferred(seen.shape, hints)


def _topic(record: Mapping[str, Any]) -> str:
    return next((record[k] for k in ("destination", "topic") if isinstance(record.get(k), str)), "")


def _payload(part: Any) -> Any:
    has_schema = isinstance(part, dict) and len(part) == 2 and "schema" in part and "payload" in part
    return part["payload"] if has_schema else part


def _is_wrapped(record: dict[str, Any]) -> bool:
    return "value" in record and set(record) <= FIELDS_OF_RECORD


def _schema(part: Any) -> str:
    """Return the schema of a key or value as text; empty if it has none."""
    if isinstance(part, dict) and set(part) == {"schema", "payload"} and isinstance(part["schema"], dict):
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

"""Debezium's JSON, enveloped or flattened (ExtractNewRecordState), with and without schemas.

A record is `{"destination", "key", "value"}` (or `topic` instead of `destination`), or the value alone; with schemas,
key and value are `{"schema", "payload"}`. A flattened record needs `__op` or `__deleted`, so that deletes can be told:
`delete.tombstone.handling.mode=rewrite`, `add.fields=op,table,source.lsn,source.ts_ms`. Tombstones say
nothing in either form: the delete before them said everything.

Source: Debezium's documentation of the PostgreSQL connector (data change events, data type mappings) and of event
flattening; recordings of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lake_assets.errors import MalformedRecordError, UnsupportedEventError
from lake_assets.events.base import Format, named
from lake_assets.events.debezium_plans import FIELDS_OF_RECORD, META, plan_inferred, plan_with_schema
from lake_assets.events.model import Hints, Planned, Seen, SourceTable

# The cheap test comes first: whether a schema is there at all. Then the value's and the key's, a line break between
# them, or a line break and that of a value alone.
_SCHEMA = (
    """CASE WHEN NOT contains(record, '"fields"') THEN '' ELSE coalesce("""
    "concat(get_json_object(record, '$.value.schema'), "
    "coalesce(concat('\\n', get_json_object(record, '$.key.schema')), '')), "
    """CASE WHEN startswith(record, '{"schema"') OR startswith(record, '{"payload"') """
    "THEN concat('\\n', get_json_object(record, '$.schema')) END, '') END"
)


class Debezium(Format):
    """See the module."""

    schema = _SCHEMA
    # `<last commit's LSN>/<the change's own>`, 20 digits each; zeros stand for what a connector does not say.
    numbered = f"length(_sequence) = 41 AND right(_sequence, 20) <> '{'0' * 20}'"
    transaction = f"CASE WHEN {numbered} AND left(_sequence, 20) <> '{'0' * 20}' THEN left(_sequence, 20) END"
    shape = f"schema_of_variant_agg(CASE WHEN {_SCHEMA} = '' THEN try_parse_json(record) END)"

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """See `EventFormat.routes`."""
        if not isinstance(record, dict):
            raise MalformedRecordError('expected an object with "key" and "value"')
        wrapped = "value" in record and set(record) <= FIELDS_OF_RECORD
        value = record["value"] if wrapped else record
        if isinstance(value, dict) and set(value) == {"schema", "payload"}:
            if value["payload"] is not None and not isinstance(value["schema"], dict):
                raise MalformedRecordError('"schema" is no schema: neither an envelope nor a row')
            value = value["payload"]
        if value is None:
            return ()  # a tombstone
        if not isinstance(value, dict):
            raise MalformedRecordError('"value" is no object: neither an envelope nor a row')
        topic = next((record[k] for k in ("destination", "topic") if wrapped and isinstance(record.get(k), str)), "")
        if "op" in value and isinstance(value.get("source"), dict):
            return _of_source(value["source"])
        if "__op" in value or "__deleted" in value:
            return (_of_row(value, topic, table),)
        raise MalformedRecordError(
            "no Debezium envelope (payload.source.table is missing) and no flattened row that says what happened: set "
            "add.fields=op,table and delete.tombstone.handling.mode=rewrite in ExtractNewRecordState"
        )

    def plans(self, seen: Sequence[Seen], hints: Hints) -> tuple[Planned, ...]:
        """See `EventFormat.plans`: one for each schema, because values are encoded as their schema says."""
        return tuple(
            Planned((s.schema,), _with_schema(s.schema, hints) if s.schema else plan_inferred(s.shape, hints))
            for s in seen
        )


def _with_schema(text: str, hints: Hints) -> Any:
    wrapped = not text.startswith("\n")
    value_text, _, key_text = text.removeprefix("\n").partition("\n")
    value, key = _parsed(value_text), _parsed(key_text) if key_text else None
    return plan_with_schema(value["fields"], key["fields"] if key else [], wrapped, hints)


def _parsed(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except ValueError as e:
        raise UnsupportedEventError(f"no schema: {text[:120]!r} ({e})") from e
    if not isinstance(schema, dict) or not isinstance(schema.get("fields"), list):
        raise UnsupportedEventError(f"no schema of a struct: {text[:120]!r}")
    return schema


def _of_source(source: Mapping[str, Any]) -> tuple[SourceTable, ...]:
    name = source.get("table")
    if name == "":
        return ()  # a message (pg_logical_emit_message): about no table
    # Topic names are sanitised, so that two tables may share one: what the source says decides.
    schema = source.get("schema") or source.get("db")
    return (SourceTable(named(schema, "source.schema"), named(name, "payload.source.table")),)


def _of_row(row: Mapping[str, Any], topic: str, table: SourceTable | None) -> SourceTable:
    def said(*what: str) -> str | None:
        return next((row[f"{p}{w}"] for w in what for p in META if isinstance(row.get(f"{p}{w}"), str)), None)

    parts = topic.split(".")
    declared = (table.schema, table.name) if table else (None, None)
    schema = said("schema") or declared[0] or (parts[-2] if len(parts) > 2 else None) or said("db")
    name = said("table") or declared[1] or parts[-1]
    if not schema or not name:
        raise MalformedRecordError(
            "the flattened row does not name its table: set add.fields=op,table,db in ExtractNewRecordState, or "
            "declare which table the stream is about"
        )
    return SourceTable(named(schema, "__schema or __db"), named(name, "__table"))

"""Debezium's JSON: `{"destination", "key", "value"}` a record, key and value with their schemas.

Source: Debezium's documentation of the PostgreSQL connector (data change events, data type mappings) and recordings of
the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lake_assets.errors import MalformedRecordError, UnsupportedEventError
from lake_assets.events.connect_types import placeholder, read_value
from lake_assets.events.model import DELETE, INSERT, READ, TRUNCATE, UPDATE, EventColumn, EventPlan, SourceTable
from lake_assets.lake.names import literal

_ROW = "MAP<STRING, STRING>"
_SOURCE = "STRUCT<sequence: STRING, lsn: BIGINT, ts_us: BIGINT, ts_ms: BIGINT>"
_VALUE = f"STRUCT<op: STRING, before: {_ROW}, after: {_ROW}, source: {_SOURCE}>"
_RECORD = f"key STRUCT<payload: {_ROW}>, value STRUCT<payload: {_VALUE}>"
_OPS = {"c": INSERT, "r": READ, "u": UPDATE, "d": DELETE, "t": TRUNCATE}


class Debezium:
    """See the module."""

    # The envelope's schema names every column of the row; the key's schema says which of them are the key.
    schema = "concat_ws('\\n', get_json_object(record, '$.value.schema'), get_json_object(record, '$.key.schema'))"

    def route(self, record: Any) -> SourceTable | None:
        """See `EventFormat.route`."""
        if not isinstance(record, dict) or "value" not in record:
            raise MalformedRecordError('expected an object with "key" and "value"')
        value = record["value"]
        if value is None:
            return None  # a tombstone: for Kafka's compaction, the delete before it said everything
        payload = value.get("payload") if isinstance(value, dict) else None
        source = payload.get("source") if isinstance(payload, dict) else None
        if not isinstance(source, dict) or not isinstance(source.get("table"), str):
            raise MalformedRecordError('"value" is no Debezium envelope with schema: payload.source.table is missing')
        if not isinstance(value.get("schema"), dict):
            raise MalformedRecordError('"value" comes without its schema: set schemas.enable=true in the converter')
        if not source["table"]:
            return None  # a message (pg_logical_emit_message): about no table
        # Topic names are sanitised, so that two tables may share one: what the source says decides.
        return SourceTable(source.get("schema") or source.get("db") or "", source["table"])

    def plan(self, schema: str, rename: Mapping[str, str]) -> EventPlan:
        """See `EventFormat.plan`."""
        envelope, _, key_schema = schema.partition("\n")
        images = {f["field"]: f for f in json.loads(envelope)["fields"]}
        fields: list[dict[str, Any]] = images["after"]["fields"]
        key = [f["field"] for f in json.loads(key_schema)["fields"]] if key_schema else []
        missing = set(key) - {f["field"] for f in fields}
        if missing:
            raise UnsupportedEventError(f"the events' key has {sorted(missing)}, which the row has not")
        names = {f["field"]: rename.get(f["field"], f["field"]) for f in fields}
        if len({n.lower() for n in names.values()}) < len(names):
            raise UnsupportedEventError(f"columns {sorted(names)} become {sorted(names.values())}: two share one name")
        p = "e.value.payload"
        # An insert or update without its row would be a row of nulls.
        op = "CASE WHEN {p}.op IN ('c', 'r', 'u') AND {p}.after IS NULL THEN NULL {cases} END".format(
            p=p, cases=" ".join(f"WHEN {p}.op = {literal(k)} THEN {literal(v)}" for k, v in _OPS.items())
        )
        return EventPlan(
            parsed=f"from_json(record, {literal(_RECORD)})",
            op=op,
            sequence=_sequence(f"{p}.source"),
            event_time=f"coalesce(timestamp_micros({p}.source.ts_us), timestamp_millis({p}.source.ts_ms))",
            columns=tuple(self._column(f, names[f["field"]], f["field"] in key) for f in fields),
            key=tuple(names[k] for k in key),
        )

    @staticmethod
    def _column(field: dict[str, Any], name: str, is_key: bool) -> EventColumn:
        source = literal(field["field"])
        before, after = f"e.value.payload.before[{source}]", f"e.value.payload.after[{source}]"
        if is_key:
            before = f"coalesce(e.key.payload[{source}], {before})"
        text = f"CASE WHEN e.value.payload.op = 'd' THEN {before} ELSE {after} END"
        reading = read_value(field)
        mark = placeholder(field)
        unavailable = f"coalesce({after} = {literal(mark)}, false)" if mark and not is_key else None
        return EventColumn(name, reading.type, text, reading.steps, unavailable)


def _sequence(source: str) -> str:
    """Order of Debezium's events as text that sorts: last commit's LSN, then the change's own.

    `source.lsn` alone goes backwards between interleaved transactions, because events are delivered by commit.
    """
    parts = f"from_json({source}.sequence, 'ARRAY<STRING>')"
    commit = f"coalesce(get({parts}, 0), '0')"
    lsn = f"coalesce(get({parts}, 1), CAST({source}.lsn AS STRING), '0')"
    return f"concat(lpad({commit}, 20, '0'), '/', lpad({lsn}, 20, '0'))"

"""Records that a Debezium connector writes beside changes of rows: heartbeats, schema changes, and others.

A sink that takes all topics of a connector gets them in between. They are recognised by exactly the fields that
Debezium gives them, with and without schemas, so that a row is never taken for one. ExtractNewRecordState passes them
on as they are.

Source: Debezium's documentation of the connectors (heartbeats, schema change topics, transaction metadata, logical
decoding messages), of signals and of notifications; `SchemaFactory` in its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lake_assets.formats.debezium_layouts import is_added
from lake_assets.formats.event_model import SourceTable

HEARTBEATS, SCHEMA_CHANGES, TRANSACTIONS = "heartbeats", "schema changes", "transaction markers"
MESSAGES, NOTIFICATIONS, SIGNALS = "logical messages", "notifications", "signals"

_HEARTBEAT_TOPIC = "__debezium-heartbeat"
_SIGNAL_TABLE, _SIGNAL_COLUMNS = "debezium_signal", frozenset({"id", "type", "data"})
# Op of a message that pg_logical_emit_message writes into Postgres's log.
MESSAGE = "m"
# Fields of a record; of those in the second set, it has all.
_FIELDS = {
    HEARTBEATS: ({"ts_ms"}, {"ts_ms"}),
    SCHEMA_CHANGES: (
        {"source", "position", "ts_ms", "databaseName", "schemaName", "ddl", "tableChanges"},
        {"source", "databaseName"},
    ),
    TRANSACTIONS: ({"status", "id", "event_count", "data_collections", "ts_ms"}, {"status", "id", "event_count"}),
    NOTIFICATIONS: ({"id", "aggregate_type", "type", "additional_data", "timestamp"}, {"id", "aggregate_type", "type"}),
    SIGNALS: ({"id", "type", "data"}, {"type", "data"}),
}
_SIGNAL_TYPES = {
    "execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot", "snapshot-window-open",
    "snapshot-window-close", "log", "schema-changes", "set-binlog-position",
}  # fmt: skip


def is_signal_table(table: SourceTable) -> bool:
    """Whether a table is called like Debezium's table of signals."""
    return table.name.lower() == _SIGNAL_TABLE


def control_kind(value: Mapping[str, Any], topic: str = "") -> str | None:
    """Return what a record is that says nothing about a row; None: it is none of these."""
    if "op" in value and isinstance(value.get("source"), dict):
        if value["op"] == MESSAGE:
            return MESSAGES
        return SIGNALS if _is_signal(value.get("after") or value.get("before")) else None
    if "__op" in value or "__deleted" in value:
        return SIGNALS if _is_signal({c: v for c, v in value.items() if not is_added(c)}) else None
    if topic.startswith(_HEARTBEAT_TOPIC) and "ts_ms" in value:
        return HEARTBEATS
    names = set(value)
    return next((k for k, (known, needed) in _FIELDS.items() if needed <= names <= known and _is(k, value)), None)


def _is(kind: str, value: Mapping[str, Any]) -> bool:
    """Whether the values of a record with the fields of a kind are those of this kind."""
    if kind == SCHEMA_CHANGES:
        return isinstance(value["source"], dict) and ("ddl" in value or "tableChanges" in value)
    if kind == TRANSACTIONS:
        return value["status"] in ("BEGIN", "END")
    return kind != SIGNALS or str(value["type"]) in _SIGNAL_TYPES


def _is_signal(row: Any) -> bool:
    names = {c.lower() for c in row} if isinstance(row, dict) else set[str]()
    return "id" in names and names <= _SIGNAL_COLUMNS

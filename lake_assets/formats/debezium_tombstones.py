"""Plans for Debezium's tombstones: the key of a deleted row, without a value and without a place in the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lake_assets.errors import UnsupportedEventError
from lake_assets.formats.debezium_layouts import Texts
from lake_assets.formats.debezium_plans import source_column
from lake_assets.formats.event_model import DELETE, EventColumn, EventPlan, Hints
from lake_assets.formats.types.inferred_types import VOID, exact, parse_schema, read_fields
from lake_assets.formats.types.text_types import Reading
from lake_assets.lake.column_spelling import lake_names
from lake_assets.lake.names import literal

REWRITE = "set delete.tombstone.handling.mode=rewrite and add.fields=op,table in ExtractNewRecordState"
# Kafka's time of the record, in milliseconds since 1970.
_TIME = "timestamp_micros(try_multiply(try_cast({t} AS BIGINT), 1000L))"


def plan_tombstone(key: Sequence[Mapping[str, Any]] | None, shape: str | None, hints: Hints) -> EventPlan:
    """Return the plan of tombstones; its columns are those of their keys.

    Args:
        key: fields of the key's schema; None if the keys have none.
        shape: common type of records whose keys have no schema.

    Raises:
        UnsupportedEventError: the keys do not name their columns.
    """
    return _with_schema(key, hints) if key is not None else _inferred(shape, hints)


def _with_schema(key: Sequence[Mapping[str, Any]], hints: Hints) -> EventPlan:
    fields = {f["field"]: f for f in key}
    objects, names = Texts.of(fields), lake_names(fields, hints.rename)
    parsed = f"from_json(record, {literal(f'key STRUCT<payload: {objects.type(fields)}>, timestamp STRING')})"
    readings = {field: source_column(fields[field], hints).reading for field in names}
    return _plan(parsed, "e.timestamp", objects, "e.key.payload", names, readings)


def _inferred(shape: str | None, hints: Hints) -> EventPlan:
    record = parse_schema(shape)
    key = record.fields.get("key", VOID)
    is_nested = set(key.fields) == {"schema", "payload"}
    key = key.fields["payload"] if is_nested else key
    if not key.fields:
        raise UnsupportedEventError(
            f"a tombstone (a key without a value) whose key does not name its columns: which row was deleted is "
            f"unknown ({REWRITE})"
        )
    names = lake_names(key.fields, hints.rename)
    readings = read_fields(key.fields, hints)
    objects = Texts.of(key.fields)
    kind = objects.type(list(key.fields))
    kind = f"STRUCT<payload: {kind}>" if is_nested else kind
    of_time = ", timestamp: STRING" if "timestamp" in record.fields else ""
    at, time = "e.key.payload" if is_nested else "e.key", "e.timestamp" if of_time else "CAST(NULL AS STRING)"
    before = (
        ("v", f"try_parse_json({exact('record', key.fields, readings)})"),
        ("r", f"try_cast(v AS STRUCT<key: {kind}{of_time}>)"),
    )
    known = {field: reading for field, reading in readings.items() if reading}
    return _plan("r", time, objects, at, {f: names[f] for f in known}, known, before)


def _plan(
    parsed: str,
    time: str,
    objects: Texts,
    at: str,
    names: Mapping[str, str],
    readings: Mapping[str, Reading],
    before: tuple[tuple[str, str], ...] = (),
) -> EventPlan:
    return EventPlan(
        parsed=parsed,
        op=literal(DELETE),
        sequence="''",
        event_time=_TIME.format(t=time),
        columns=tuple(
            EventColumn(name, readings[field].type, objects.value(at, field), readings[field].steps)
            for field, name in names.items()
        ),
        key=tuple(names.values()),
        before=before,
        is_tombstone=True,
    )

"""Simplified change events: flat, with names and values as in wal2json, and a time that orders them.

    {"changeType": "update", "timestamp": "1", "columnNames": ["id", "name"], "columnValues": ["id1", "Angela"],
     "oldKeyNames": ["id"], "oldKeyValues": ["id1"]}

`columnTypes` and `oldKeyTypes` (type names of Postgres or Spark), `schema` and `table` are optional. Values without
types have the declared types, or are text. The key consists of the old key's columns. If a stream begins with inserts
only, it has to be declared.

Source: "Handling upstream data changes via change data capture" (the ChangeEvent class).
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from typing import Any

from lake_assets.errors import MalformedRecordError, UnsupportedEventError
from lake_assets.formats.event_model import SourceTable
from lake_assets.formats.format_base import named
from lake_assets.formats.named_values import OPS, NamedValues, check_lists, numbers_as_text, op_of, shape
from lake_assets.formats.sequences import KIND, STORED, not_placed, placed
from lake_assets.formats.types.text_types import MOMENT, Reading, read_text
from lake_assets.lake.names import literal

_TEXTS = "ARRAY<STRING>"
_NAMES, _OLD = ("columnNames", "columnTypes", "columnValues"), ("oldKeyNames", "oldKeyTypes", "oldKeyValues")
_FIELDS = (
    f"changeType STRING, timestamp STRING, schema STRING, `table` STRING, columnNames {_TEXTS}, columnTypes {_TEXTS}, "
    f"columnValues {_TEXTS}, oldKeyNames {_TEXTS}, oldKeyTypes {_TEXTS}, oldKeyValues {_TEXTS}"
)


class Simplified(NamedValues):
    """See the module."""

    stored, kind = STORED, KIND
    no_place = not_placed("timestamp", "e.x.timestamp")
    parsed = f"from_json({numbers_as_text('record')}, {literal(_FIELDS)})"
    events = (
        f"array(named_struct('kind', {op_of('lower(e.changeType)', OPS)}, 'schema', e.schema, 'name', e.`table`, "
        "'names', e.columnNames, 'types', e.columnTypes, 'values', e.columnValues, "
        "'old_names', e.oldKeyNames, 'old_types', e.oldKeyTypes, 'old_values', e.oldKeyValues, "
        f"'pk', e.oldKeyNames, 'sequence', {placed('e.timestamp')}, 'place', 0, "
        f"'time', {MOMENT.replace('{t}', 'e.timestamp')}, 'timestamp', e.timestamp))"
    )
    shape = shape(parsed, events)

    def read(self, kind: str | None) -> Reading:
        """See `NamedValues.read`: types of Postgres, or else of Spark."""
        reading = super().read(kind)
        if kind and reading.type.startswith("decimal"):
            # Postgres rounds values to the type; other writers may not.
            return read_text(reading.type)
        if kind and reading.type == "string":
            # A text type, or not a type of Postgres: try Spark's names.
            with contextlib.suppress(UnsupportedEventError):
                return read_text(kind)
        return reading

    def alike(self, record: Any) -> tuple[Hashable, Any] | None:
        """See `EventFormat.alike`."""
        if type(record) is not dict or type(record.get("changeType")) is not str:
            return None
        lists = [record.get(part) for part in (*_NAMES, *_OLD)]
        if any(part is not None and type(part) is not list for part in lists):
            return None
        names, old_names = (None if part is None else tuple(part) for part in (lists[0], lists[3]))
        lengths = [None if part is None else len(part) for part in lists]
        named_table = (record.get("schema"), record["table"]) if "table" in record else None
        return (record["changeType"], named_table, "schema" in record, names, old_names, *lengths), None

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """See `EventFormat.routes`."""
        if not isinstance(record, dict) or "changeType" not in record:
            raise MalformedRecordError('expected an object with "changeType"')
        kind = record["changeType"]
        if not isinstance(kind, str) or kind.lower() not in OPS:
            raise MalformedRecordError(f"no such changeType: {kind!r}")
        if kind.lower() in ("insert", "update"):
            check_lists(record, *_NAMES)
        if kind.lower() in ("update", "delete"):
            check_lists(record, *_OLD)
        if "table" in record:
            schema = record.get("schema", table.schema if table else None)
            return (SourceTable(named(schema, '"schema"'), named(record["table"], '"table"')),)
        if table is None:
            raise MalformedRecordError('the record has no "table": declare the table of the stream')
        return (table,)

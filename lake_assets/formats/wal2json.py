"""wal2json, format versions 1 (one transaction per record) and 2 (one change per record).

Recommended options: include-types, include-pk, include-lsn, include-timestamp. Without LSNs, the order of the stream
counts. A record of version 2 has the LSN of the change; the LSN of the commit is in the B line before it. Without B
lines (include-transaction off), changes of different rows are not in commit order. Changes of one row are, because a
second transaction can only change (and log) the row once the first has ended. Then include-xids identifies the
transactions.

Sources: wal2json's README and source; recordings of version 2.5.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, Literal

from lake_assets.errors import MalformedRecordError
from lake_assets.formats.event_model import DELETE, INSERT, TRANSACTION, TRUNCATE, UPDATE, Boundary, SourceTable
from lake_assets.formats.format_base import named
from lake_assets.formats.named_values import OPS, NamedValues, check_lists, is_name, numbers_as_text, op_of, shape
from lake_assets.lake.names import literal

_TEXTS = "ARRAY<STRING>"
_CHANGE = (
    f"STRUCT<kind: STRING, schema: STRING, `table`: STRING, columnnames: {_TEXTS}, columntypes: {_TEXTS}, "
    f"columnvalues: {_TEXTS}, pk: STRUCT<pknames: {_TEXTS}>, "
    f"oldkeys: STRUCT<keynames: {_TEXTS}, keytypes: {_TEXTS}, keyvalues: {_TEXTS}>>"
)
_V1 = f"nextlsn STRING, timestamp STRING, change ARRAY<{_CHANGE}>"
_COLUMNS = "ARRAY<STRUCT<name: STRING, type: STRING, value: STRING>>"
_V2 = (
    f"action STRING, schema STRING, `table` STRING, lsn STRING, timestamp STRING, xid STRING, `{TRANSACTION}` STRING, "
    f"columns {_COLUMNS}, identity {_COLUMNS}, pk {_COLUMNS}"
)
_ACTIONS = {"I": INSERT, "U": UPDATE, "D": DELETE, "T": TRUNCATE}
_LISTS = ("columns", "identity", "pk")
_MESSAGES, _MARKERS = "logical messages", "transaction markers"
_ABOUT_NO_ROW = {"B": _MARKERS, "C": _MARKERS, "M": _MESSAGES}


_LSN = "[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}"
_IS_LSN = re.compile(_LSN).fullmatch
_KINDS: dict[str, Literal["begin", "commit", "change"]] = {
    **dict.fromkeys(_ACTIONS, "change"), "B": "begin", "C": "commit"
}  # fmt: skip


def _lsn(text: str) -> str:
    """Return SQL of an LSN (0/23C8DA0) as sortable text; empty for null, NULL for invalid text."""
    parts = (f"lpad(split_part({text}, '/', {i}), 8, '0')" for i in (1, 2))
    valid = f"{text} RLIKE '^{_LSN}$'"
    return f"CASE WHEN {text} IS NULL THEN '' WHEN {valid} THEN upper(concat({', '.join(parts)})) END"


# Without LSNs the order of the stream counts. The tilde sorts after the positions that earlier versions stored.
_V1_SEQUENCE = (
    f"CASE WHEN e.nextlsn IS NULL THEN '/~' ELSE concat({_lsn('e.nextlsn')}, '/', lpad(CAST(i AS STRING), 10, '0')) END"
)


_TRANSACTION = f"e.`{TRANSACTION}`"
_V2_SEQUENCE = (
    f"CASE WHEN e.lsn IS NULL AND {_TRANSACTION} IS NULL THEN '' "
    f"WHEN e.lsn IS NULL THEN concat('/p', lpad({_TRANSACTION}, 20, '0')) "
    f"WHEN {_TRANSACTION} IS NOT NULL THEN concat({_lsn(_TRANSACTION)}, '/', {_lsn('e.lsn')}) "
    f"WHEN e.xid RLIKE '^[0-9]{{1,10}}$' THEN concat({_lsn('e.lsn')}, '/x', lpad(e.xid, 10, '0')) "
    f"ELSE {_lsn('e.lsn')} END"
)


class Wal2JsonV1(NamedValues):
    """Transactions: `{"nextlsn", "timestamp", "change": [...]}`."""

    numbered = "length(_sequence) = 27"
    transaction = "CASE WHEN length(_sequence) = 27 THEN left(_sequence, 16) END"
    parsed = f"from_json({numbers_as_text('record')}, {literal(_V1)})"
    # A message within a transaction has no table. It counts in the positions of the changes.
    events = (
        "filter(transform(e.change, (c, i) -> named_struct("
        f"'kind', {op_of('c.kind', OPS)}, 'schema', c.schema, 'name', c.`table`, "
        "'names', c.columnnames, 'types', c.columntypes, 'values', c.columnvalues, "
        "'old_names', c.oldkeys.keynames, 'old_types', c.oldkeys.keytypes, 'old_values', c.oldkeys.keyvalues, "
        "'pk', c.pk.pknames, "
        f"'sequence', {_V1_SEQUENCE}, 'place', i, "
        "'time', try_cast(e.timestamp AS TIMESTAMP))), x -> x.kind IS NOT NULL OR x.name IS NOT NULL)"
    )
    shape = shape(parsed, events)

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """See `EventFormat.routes`: all tables of the transaction."""
        changes = record.get("change") if isinstance(record, dict) else None
        if not isinstance(changes, list):
            raise MalformedRecordError('expected a transaction: an object with "change"')
        return tuple(dict.fromkeys(_checked_v1(change, table) for change in changes if not _is_message(change)))

    def control_kind(self, record: Any) -> str | None:
        """See `EventFormat.control_kind`: transactions without changes of rows."""
        changes = record.get("change") if isinstance(record, dict) else None
        if not isinstance(changes, list) or not all(map(_is_message, changes)):
            return None
        return _MESSAGES if changes else "transactions without changes"


class Wal2JsonV2(NamedValues):
    """Changes: `{"action", "schema", "table", "columns", "identity", "pk"}`; B and C lines around transactions."""

    # `<commit's LSN>/<change's LSN>` with B lines; otherwise the LSN of the change, followed by `/x<xid>` if known.
    # Without LSNs, `/p<position>` of the transaction's first line, which increases along the stream.
    numbered = "_sequence RLIKE '^[0-9A-F]{16}'"
    identity = "CASE WHEN length(_sequence) = 33 THEN right(_sequence, 16) ELSE left(_sequence, 16) END"
    transaction = (
        "CASE WHEN _sequence LIKE '/p%' THEN _sequence WHEN length(_sequence) = 33 THEN left(_sequence, 16) "
        "WHEN length(_sequence) = 28 THEN right(_sequence, 11) END"
    )
    parsed = f"from_json({numbers_as_text('record')}, {literal(_V2)})"
    events = (
        "array(named_struct("
        f"'kind', {op_of('e.action', _ACTIONS)}, 'schema', e.schema, 'name', e.`table`, "
        "'names', e.columns.name, 'types', e.columns.type, 'values', e.columns.value, "
        "'old_names', e.identity.name, 'old_types', e.identity.type, 'old_values', e.identity.value, "
        f"'pk', e.pk.name, 'sequence', {_V2_SEQUENCE}, 'place', 0, 'time', try_cast(e.timestamp AS TIMESTAMP)))"
    )
    shape = shape(parsed, events)

    def alike(self, record: Any) -> tuple[Hashable, Any] | None:
        """See `EventFormat.alike`."""
        if type(record) is not dict or type(record.get("action")) is not str:
            return None
        names: list[tuple[Any, ...] | None] = []
        for part in _LISTS:
            listed = record.get(part)
            if listed is None and part not in record:
                names.append(None)
                continue
            if type(listed) is not list:
                return None
            try:
                names.append(tuple([c["name"] for c in listed]))
            except (KeyError, TypeError):
                return None
        return (record["action"], record.get("schema"), record.get("table"), *names), None

    def boundary(self, record: Any) -> Boundary | None:
        """See `EventFormat.boundary`: B and C lines, and the numbers of transactions."""
        kind = _KINDS.get(str(record.get("action"))) if isinstance(record, dict) else None
        if kind is None:
            return None
        lsn, xid = record.get("lsn"), record.get("xid")
        lsn = lsn if isinstance(lsn, str) and _IS_LSN(lsn) else None
        xid = str(xid) if isinstance(xid, int) and not isinstance(xid, bool) else None
        return Boundary(kind, lsn, xid)

    def control_kind(self, record: Any) -> str | None:
        """See `EventFormat.control_kind`: B and C lines, and messages."""
        return _ABOUT_NO_ROW.get(str(record.get("action"))) if isinstance(record, dict) else None

    def routes(self, record: Any, table: SourceTable | None = None) -> tuple[SourceTable, ...]:
        """See `EventFormat.routes`."""
        if not isinstance(record, dict) or not isinstance(record.get("action"), str):
            raise MalformedRecordError('expected an object with "action"')
        if record["action"] in _ABOUT_NO_ROW:
            return ()
        if record["action"] not in _ACTIONS:
            raise MalformedRecordError(f"no such action: {record['action']!r}")
        for part in _LISTS:
            listed = record.get(part, [])
            if not isinstance(listed, list) or not all(isinstance(c, dict) and is_name(c.get("name")) for c in listed):
                raise MalformedRecordError(f'"{part}" is not a list of columns')
        if record["action"] in "IU" and "columns" not in record:
            raise MalformedRecordError('"columns" is missing')
        return (_table(record, table),)


def _is_message(change: Any) -> bool:
    return isinstance(change, dict) and change.get("kind") == "message"


def _table(change: Mapping[str, Any], table: SourceTable | None) -> SourceTable:
    schema = change.get("schema")
    if schema is None and table is not None:
        schema = table.schema
    return SourceTable(named(schema, '"schema"'), named(change.get("table"), '"table"'))


def _checked_v1(change: Any, table: SourceTable | None) -> SourceTable:
    kind = change.get("kind") if isinstance(change, dict) else change
    if not isinstance(change, dict) or not isinstance(kind, str) or kind not in OPS:
        raise MalformedRecordError(f"no such kind of change: {kind!r}")
    old = change.get("oldkeys", {})
    if not isinstance(old, dict) or not isinstance(change.get("pk", {}), dict):
        raise MalformedRecordError('"oldkeys" and "pk" must be objects')
    for part, prefix in ((change, "column"), (old, "key")):
        if part.get(f"{prefix}names") is not None or part.get(f"{prefix}values") is not None:
            check_lists(part, f"{prefix}names", f"{prefix}types", f"{prefix}values", may_be_empty=True)
    if kind in ("insert", "update") and "columnnames" not in change:
        raise MalformedRecordError('"columnnames" is missing')
    return _table(change, table)

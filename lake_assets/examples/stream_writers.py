"""Write transactions of the generator in the formats of change streams, the counterpart of the readers."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from lake_assets.errors import ConfigError
from lake_assets.examples.event_generator import KEY, Change, Row, Transaction, Workload
from lake_assets.formats.event_model import DELETE, INSERT, UPDATE
from lake_assets.formats.types.connect_types import UNAVAILABLE_VALUE

Encoder = Callable[[Transaction, Workload], Iterator[str]]
_OPS = {INSERT: "c", UPDATE: "u", DELETE: "d"}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def debezium(*, schemas: bool, wrapped: bool, flat: bool) -> Encoder:
    """Return an encoder.

    Args:
        schemas: whether key and value have schemas.
        wrapped: whether a record has destination, key and value, or is the value alone.
        flat: whether the events are flattened as by ExtractNewRecordState (deletes rewritten, tombstones dropped).
    """

    def encode(transaction: Transaction, workload: Workload) -> Iterator[str]:
        schema, name = workload.table
        for change in transaction.changes:
            columns = tuple(change.columns.items())
            for op, key in _halves(change):
                payload = (_flattened if flat else _envelope)(transaction, change, op, workload, schemas)
                value = dumps(payload)
                if schemas:
                    value = f'{{"schema":{_value_schema(columns, flat)},"payload":{value}}}'
                if not wrapped:
                    yield value
                    continue
                key_value = dumps({KEY: key})
                if schemas:
                    key_value = f'{{"schema":{_key_schema(change.columns[KEY])},"payload":{key_value}}}'
                record = f'{{"destination":{dumps(f"made_up.{schema}.{name}")},"key":{key_value},"value":'
                yield f"{record}{value}}}"
                if op == "d" and not flat:
                    yield f"{record}null}}"

    return encode


def connect_schema(kind: str) -> dict[str, Any]:
    """Return Debezium's Connect schema for a column of this Postgres type."""
    base = kind.partition("(")[0]
    match base:
        case "numeric":
            precision, scale = kind[8:-1].split(",")
            parameters = {"scale": scale, "connect.decimal.precision": precision}
            return {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "version": 1,
                "parameters": parameters,
            }
        case "date":
            return {"type": "int32", "name": "io.debezium.time.Date", "version": 1}
        case "timestamp with time zone":
            return {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1}
        case "uuid":
            return {"type": "string", "name": "io.debezium.data.Uuid", "version": 1}
        case "text[]":
            return {"type": "array", "items": {"type": "string", "optional": True}}
        case _:
            plain = {"integer": "int32", "bigint": "int64", "double precision": "double", "boolean": "boolean"}
            return {"type": "bytes" if base == "bytea" else plain.get(base, "string")}


def connect_value(kind: str, value: Any, *, exact: bool = True) -> Any:
    """Return a value in Debezium's JSON; decimals as bytes if `exact`, else as text (decimal.handling.mode=string)."""
    match value:
        case Decimal():
            if not exact:
                return format(value, "f")
            number = int(value.scaleb(int(kind[8:-1].split(",")[1])))
            size = (number if number >= 0 else ~number).bit_length() // 8 + 1
            return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()
        case dt.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case dt.date():
            return (value - EPOCH.date()).days
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return value


def _fields(columns: tuple[tuple[str, str], ...]) -> list[dict[str, Any]]:
    return [{**connect_schema(k), "optional": n != KEY, "field": n} for n, k in columns]


@lru_cache(maxsize=64)
def _key_schema(kind: str) -> str:
    return dumps({"type": "struct", "fields": _fields(((KEY, kind),)), "optional": False})


@lru_cache(maxsize=64)
def _value_schema(columns: tuple[tuple[str, str], ...], flat: bool) -> str:
    if flat:
        added = [{"type": kind, "optional": True, "field": name} for name, kind in _ADDED.items()]
        return dumps({"type": "struct", "fields": [*_fields(columns), *added], "optional": False})
    row = {"type": "struct", "fields": _fields(columns), "optional": True}
    images = [{**row, "field": image} for image in ("before", "after")]
    fields = [{"type": kind, "optional": True, "field": name} for name, kind in _SOURCE.items()]
    source = {"type": "struct", "fields": fields, "optional": False, "field": "source"}
    op = {"type": "string", "optional": False, "field": "op"}
    return dumps({"type": "struct", "fields": [*images, source, op], "optional": False})


_SOURCE = {
    "connector": "string", "name": "string", "ts_ms": "int64", "snapshot": "string", "db": "string",
    "sequence": "string", "ts_us": "int64", "schema": "string", "table": "string", "txId": "int64", "lsn": "int64",
}  # fmt: skip

_ADDED = {
    "__deleted": "string", "__op": "string", "__table": "string", "__db": "string", "__source_schema": "string",
    "__source_ts_ms": "int64", "__source_lsn": "int64",
}  # fmt: skip


def _image(change: Change, row: Row, exact: bool) -> dict[str, Any]:
    return {
        n: UNAVAILABLE_VALUE if n in change.absent else connect_value(k, row.get(n), exact=exact)
        for n, k in change.columns.items()
    }


def _key_only(change: Change) -> dict[str, Any]:
    """Return the old row with the default replica identity: only its key is set."""
    return {n: change.before[KEY] if n == KEY and change.before else None for n in change.columns}


def _halves(change: Change) -> list[tuple[str, int]]:
    """Return Debezium's op and key of each event of a change: an update of the key is a delete and a create."""
    before, after = change.before, change.after
    if before is not None and after is not None and before[KEY] != after[KEY]:
        return [("d", before[KEY]), ("c", after[KEY])]
    row = after if after is not None else before
    return [(_OPS[change.op], row[KEY])] if row is not None else []


def _envelope(transaction: Transaction, change: Change, op: str, workload: Workload, exact: bool) -> Any:
    micros = (transaction.time - EPOCH) // dt.timedelta(microseconds=1)
    source = {
        "connector": "postgresql", "name": "made_up", "ts_ms": micros // 1000, "snapshot": "false", "db": "made_up",
        "sequence": dumps([str(transaction.last), str(change.lsn)]), "ts_us": micros, "schema": workload.table[0],
        "table": workload.table[1], "txId": transaction.xid, "lsn": change.lsn,
    }  # fmt: skip
    after = _image(change, change.after, exact) if op != "d" and change.after is not None else None
    return {"before": _key_only(change) if op == "d" else None, "after": after, "source": source, "op": op}


def _flattened(transaction: Transaction, change: Change, op: str, workload: Workload, exact: bool) -> Any:
    row = _key_only(change) if op == "d" or change.after is None else _image(change, change.after, exact)
    millis = (transaction.time - EPOCH) // dt.timedelta(milliseconds=1)
    deleted = "true" if op == "d" else "false"
    added = (deleted, op, workload.table[1], "made_up", workload.table[0], millis, change.lsn)
    return {**row, **dict(zip(_ADDED, added, strict=True))}


# --- wal2json ---------------------------------------------------------------------------------------------------------


def postgres_text(value: Any) -> str | None:
    """Return a value in Postgres's text output as in wal2json (bytea without the leading backslash and x)."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case dt.datetime():
            return value.isoformat(" ").replace("+00:00", "+00")
        case bytes():
            return value.hex()
        case list():
            return "{" + ",".join(map(_array_item, value)) + "}"
        case float():
            return repr(value)
        case _:
            return str(value)


def _array_item(value: str | None) -> str:
    if value is None:
        return "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bare(value: Any) -> str:
    """Return a value in wal2json's JSON: numbers and booleans bare, with all digits."""
    text = postgres_text(value)
    if text is None:
        return "null"
    return text if isinstance(value, bool | int | float | Decimal) else dumps(text)


def _lsn(number: int) -> str:
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def _timestamp(transaction: Transaction) -> str:
    return transaction.time.isoformat(" ").replace("+00:00", "+00")


def _sent(change: Change) -> dict[str, Any]:
    return {n: change.after.get(n) for n in change.columns if n not in change.absent} if change.after else {}


def _wal2json_v1(transaction: Transaction, workload: Workload) -> Iterator[str]:
    changes: list[str] = []
    for change in transaction.changes:
        sent = _sent(change)
        names, types = dumps(list(sent)), dumps([change.columns[n] for n in sent])
        key_type = dumps([change.columns[KEY]])
        parts = [
            f'"kind":"{change.op}","schema":{dumps(workload.table[0])},"table":{dumps(workload.table[1])}',
            f'"pk":{{"pknames":["{KEY}"],"pktypes":{key_type}}}',
        ]
        if change.after is not None:
            values = ",".join(map(_bare, sent.values()))
            parts.append(f'"columnnames":{names},"columntypes":{types},"columnvalues":[{values}]')
        if change.before is not None:
            parts.append(
                f'"oldkeys":{{"keynames":["{KEY}"],"keytypes":{key_type},"keyvalues":[{_bare(change.before[KEY])}]}}'
            )
        changes.append("{" + ",".join(parts) + "}")
    yield (
        f'{{"xid":{transaction.xid},"nextlsn":"{_lsn(transaction.commit)}","timestamp":"{_timestamp(transaction)}",'
        f'"change":[{",".join(changes)}]}}'
    )


def _wal2json_v2(transaction: Transaction, workload: Workload) -> Iterator[str]:
    head = f'"xid":{transaction.xid},"timestamp":"{_timestamp(transaction)}"'
    around = f'{head},"lsn":"{_lsn(transaction.commit)}","nextlsn":"{_lsn(transaction.commit + 48)}"'
    yield f'{{"action":"B",{around}}}'
    for change in transaction.changes:
        key_type = dumps(change.columns[KEY])
        parts = [
            f'"action":"{change.op[0].upper()}",{head},"lsn":"{_lsn(change.lsn)}"',
            f'"schema":{dumps(workload.table[0])},"table":{dumps(workload.table[1])}',
        ]
        if change.after is not None:
            listed = ",".join(
                f'{{"name":{dumps(n)},"type":{dumps(change.columns[n])},"value":{_bare(v)}}}'
                for n, v in _sent(change).items()
            )
            parts.append(f'"columns":[{listed}]')
        if change.before is not None:
            parts.append(f'"identity":[{{"name":"{KEY}","type":{key_type},"value":{_bare(change.before[KEY])}}}]')
        parts.append(f'"pk":[{{"name":"{KEY}","type":{key_type}}}]')
        yield "{" + ",".join(parts) + "}"
    yield f'{{"action":"C",{around}}}'


# --- simplified change events, change sets, change feeds --------------------------------------------------------------


def _simplified(typed: bool) -> Encoder:
    def encode(transaction: Transaction, workload: Workload) -> Iterator[str]:
        for change in transaction.changes:
            sent, old = _sent(change), change.before
            event: dict[str, Any] = {"changeType": change.op, "timestamp": str(change.lsn)}
            event |= {"schema": workload.table[0], "table": workload.table[1]}
            after = change.after is not None
            event["columnNames"] = list(sent) if after else None
            if typed:
                event["columnTypes"] = [change.columns[n] for n in sent] if after else None
                event["oldKeyTypes"] = [change.columns[KEY]] if old is not None else None
            event["columnValues"] = [postgres_text(v) for v in sent.values()] if after else None
            event["oldKeyNames"] = [KEY] if old is not None else None
            event["oldKeyValues"] = [str(old[KEY])] if old is not None else None
            yield dumps(event)

    return encode


def flagged_rows(transaction: Transaction) -> Iterator[dict[str, Any]]:
    """Yield rows of a change set: FLAG, the columns, CDC_TIMESTAMP (unique per change)."""
    for change in transaction.changes:
        at = EPOCH + dt.timedelta(days=20_000, microseconds=change.lsn)
        if change.before is not None and (change.after is None or change.after[KEY] != change.before[KEY]):
            yield {"FLAG": "D", **{n: change.before.get(n) for n in change.columns}, "CDC_TIMESTAMP": at}
        if change.after is not None:
            flag = "I" if change.before is None or change.after[KEY] != change.before[KEY] else "U"
            yield {"FLAG": flag, **{n: change.after.get(n) for n in change.columns}, "CDC_TIMESTAMP": at}


def feed_rows(transaction: Transaction) -> Iterator[dict[str, Any]]:
    """Yield rows of a change feed; each change is a separate commit, because a feed has a row once per commit."""
    for change in transaction.changes:
        words = ("update_preimage", "update_postimage") if change.op == UPDATE else ("delete", "insert")
        for word, row in zip(words, (change.before, change.after), strict=True):
            if row is not None:
                columns = {n: row.get(n) for n in change.columns}
                commit = {"_commit_version": change.lsn, "_commit_timestamp": transaction.time}
                yield {**columns, "_change_type": word, **commit}


def _json_rows(rows: Callable[[Transaction], Iterator[dict[str, Any]]]) -> Encoder:
    def encode(transaction: Transaction, workload: Workload) -> Iterator[str]:
        for row in rows(transaction):
            yield "{" + ",".join(f"{dumps(n)}:{_json_value(v)}" for n, v in row.items()) + "}"

    return encode


def _json_value(value: Any) -> str:
    match value:
        case bool() | int() | float() | None | list() | str():
            return dumps(value)
        case Decimal():
            return format(value, "f")
        case bytes():
            return dumps(base64.b64encode(value).decode())
        case _:
            return dumps(value.isoformat())


ENCODERS: Mapping[str, Encoder] = {
    "debezium": debezium(schemas=True, wrapped=True, flat=False),
    "debezium-plain": debezium(schemas=False, wrapped=True, flat=False),
    "debezium-value": debezium(schemas=True, wrapped=False, flat=False),
    "debezium-plain-value": debezium(schemas=False, wrapped=False, flat=False),
    "debezium-flat": debezium(schemas=True, wrapped=True, flat=True),
    "debezium-flat-plain": debezium(schemas=False, wrapped=True, flat=True),
    "debezium-flat-value": debezium(schemas=False, wrapped=False, flat=True),
    "wal2json-v1": _wal2json_v1,
    "wal2json-v2": _wal2json_v2,
    "simplified": _simplified(typed=False),
    "simplified-typed": _simplified(typed=True),
    "change-set": _json_rows(flagged_rows),
    "change-feed": _json_rows(feed_rows),
}
"""Encoders of transactions by their names in `lake-assets generate-events`."""


def encoder(name: str) -> Encoder:
    """Return the encoder called `name`.

    Raises:
        ConfigError: it is unknown.
    """
    if name not in ENCODERS:
        raise ConfigError(f"no format {name!r} to generate; known: {', '.join(ENCODERS)}")
    return ENCODERS[name]

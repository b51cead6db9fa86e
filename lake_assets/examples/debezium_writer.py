"""Write transactions of the generator as Debezium's JSON: enveloped or flattened, with or without schemas."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Any

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

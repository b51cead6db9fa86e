"""Write transactions of the generator in the formats of change streams, the counterpart of the readers."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from lake_assets.errors import ConfigError
from lake_assets.examples.debezium_writer import EPOCH, Encoder, debezium, dumps
from lake_assets.examples.event_generator import KEY, Change, Transaction, Workload
from lake_assets.formats.event_model import UPDATE

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

"""Change events read by plain Python, one by one: what Spark is compared with. Types: those of the shop."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from lake_assets.formats.event_model import DELETE, INSERT, READ, UPDATE

Image = tuple[str, str, dict[str, Any]]
"""Source table, op, and the row without nulls; of a delete its key alone (all of its row where it has no key)."""


def _loads(line: str) -> Any:
    return json.loads(line, parse_float=Decimal)


def _present(row: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in row.items() if v is not None}


def debezium(line: str) -> Iterator[Image]:
    record = _loads(line)
    if record["value"] is None:
        return
    payload, schema = record["value"]["payload"], record["value"]["schema"]
    fields = {f["field"]: f for f in next(f for f in schema["fields"] if f["field"] == "after")["fields"]}
    op = {"c": INSERT, "r": READ, "u": UPDATE, "d": DELETE}[payload["op"]]
    row = payload["before"] if op == DELETE else payload["after"]
    row = {n: _connect(fields[n], v) for n, v in row.items()}
    if op == DELETE and record["key"]:
        row = {n: row[n] for n in record["key"]["payload"]}
    yield payload["source"]["table"], op, _present(row)


def _connect(field: dict[str, Any], value: Any) -> Any:
    if value is None:
        return None
    match field.get("name", "").rpartition(".")[2]:
        case "Decimal":
            number = int.from_bytes(base64.b64decode(value), "big", signed=True)
            return Decimal(number).scaleb(-int(field["parameters"]["scale"])).normalize()
        case "Date":
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        case "ZonedTimestamp":
            return datetime.fromisoformat(value)
        case "MicroTimestamp":
            return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)).replace(tzinfo=None)
        case _:
            return value


def wal2json_v1(line: str) -> Iterator[Image]:
    for change in _loads(line)["change"]:
        new = zip(
            change.get("columnnames", []), change.get("columntypes", []), change.get("columnvalues", []), strict=True
        )
        old = change.get("oldkeys", {})
        identity = zip(old.get("keynames", []), old.get("keytypes", []), old.get("keyvalues", []), strict=True)
        yield from _events(change["table"], change["kind"], list(new), list(identity))


def wal2json_v2(line: str) -> Iterator[Image]:
    record = _loads(line)
    kind = {"I": INSERT, "U": UPDATE, "D": DELETE}.get(record["action"])
    if kind:
        new, old = ([(c["name"], c["type"], c["value"]) for c in record.get(p, [])] for p in ("columns", "identity"))
        yield from _events(record["table"], kind, new, old)


def _events(table: str, kind: str, new: list[tuple[str, str, Any]], old: list[tuple[str, str, Any]]) -> Iterator[Image]:
    row, key = ({n: _postgres(t, v) for n, t, v in part} for part in (new, old))
    if kind == UPDATE and any(row[n] != v for n, v in key.items()):
        yield table, DELETE, _present(key)
        kind = INSERT
    yield table, kind, _present(key if kind == DELETE else row)


def _postgres(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind.startswith("numeric"):
        return Decimal(value).normalize()
    if kind.startswith("timestamp"):
        return datetime.fromisoformat(value + ":00" if kind.endswith("with time zone") else value)
    return value

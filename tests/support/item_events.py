"""Change events of public.items as lines of a stream: simplified, wal2json, Debezium, and a change feed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.item_stream import ITEMS

Row = dict[str, Any]
Write = Callable[[int, str, Row | None, Row | None], list[str]]
# A stream of the events that `change` makes.
TYPED = {"format": "simplified", "tables": [{"table": ITEMS, "key": "id", "types": {"id": "int", "n": "int"}}]}


def change(op: str, at: int, **row: Any) -> str:
    """A simplified change event without types."""
    names, values = list(row), list(row.values())
    record: dict[str, Any] = {"changeType": op, "timestamp": str(at), "schema": "public", "table": "items"}
    if op != "delete":
        record |= {"columnNames": names, "columnValues": values}
    if op != "insert":
        record |= {"oldKeyNames": ["id"], "oldKeyValues": [row.get("id")]}
    return json.dumps(record)


def v2(at: int, kind: str, **row: tuple[str, Any]) -> str:
    """A wal2json change with types."""
    columns = [{"name": n, "type": t, "value": v} for n, (t, v) in row.items()]
    record: dict[str, Any] = {"action": kind, "schema": "public", "table": "items", "lsn": f"0/{at:X}"}
    record |= {"columns": columns} if kind != "D" else {}
    record |= {"identity": columns[:1]} if kind != "I" else {}
    return json.dumps({**record, "pk": [{"name": "id", "type": "integer"}]})


def debezium(at: int, op: str, before: Row | None, after: Row | None) -> list[str]:
    source = {"db": "d", "schema": "public", "table": "items", "lsn": at, "sequence": f'["{at}","{at}"]', "ts_ms": at}
    return [json.dumps({"op": op, "before": before, "after": after, "source": source})]


def wal2json(at: int, op: str, before: Row | None, after: Row | None) -> list[str]:
    def listed(row: Row) -> list[Any]:
        types = {"n": "integer", "at": "timestamp with time zone", "name": "text"}
        return [{"name": c, "type": types[c], "value": v} for c, v in row.items()]

    record: Row = {"action": {"c": "I", "u": "U", "d": "D"}[op], "schema": "public", "table": "items"}
    record |= {"lsn": f"0/{at:X}"} | ({"columns": listed(after)} if after else {})
    return [json.dumps(record | ({"identity": listed(before)} if before else {}))]


def change_feed(at: int, op: str, before: Row | None, after: Row | None) -> list[str]:
    kinds = {"c": [("insert", after)], "d": [("delete", before)]}
    rows = kinds.get(op, [("update_preimage", before), ("update_postimage", after)])
    return [json.dumps({**(row or {}), "_change_type": kind, "_commit_version": at}) for kind, row in rows]

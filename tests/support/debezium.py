"""Made-up change events in Debezium's JSON (with schemas, as its PostgreSQL connector writes them)."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from tests.support import connect_values

INT, BIGINT, TEXT = {"type": "int32"}, {"type": "int64"}, {"type": "string"}
DATE = {"type": "int32", "name": "io.debezium.time.Date"}
TIMESTAMP = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
UNAVAILABLE = "__debezium_unavailable_value"


def decimal(precision: int, scale: int) -> dict[str, Any]:
    """The schema of numeric(precision, scale)."""
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "version": 1, "parameters": parameters}


@dataclass(frozen=True)
class Table:
    """A source table at some time: its columns with their Connect schemas, and its key."""

    columns: Mapping[str, Mapping[str, Any]]
    key: tuple[str, ...] = ("id",)
    name: str = "public.t"

    def with_columns(self, **columns: Mapping[str, Any]) -> Table:
        """The table after columns were added or have changed their types."""
        return replace(self, columns={**self.columns, **columns})


@dataclass(frozen=True)
class Event:
    """One change: `c`reate, `r`ead, `u`pdate, `d`elete or `t`runcate.

    Attributes:
        sequence: LSN of the last commit before it, and its own.
        row: the row after it; of a delete at least the key.
        absent: columns that an update leaves out, because their TOAST values did not change.
        time: milliseconds since 1970; None: as the sequence.
    """

    table: Table
    op: Literal["c", "r", "u", "d", "t"]
    sequence: tuple[int, int]
    row: Mapping[str, Any] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    time: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(self.row[k] for k in self.table.key)

    def records(self) -> list[dict[str, Any]]:
        """What Debezium sends: the event, and a tombstone after a delete."""
        table, op = self.table, self.op
        has_key = bool(table.key) and op != "t"
        key = {
            "schema": {"type": "struct", "fields": _fields(table, table.key), "optional": False},
            "payload": {k: encode(table.columns[k], self.row[k]) for k in table.key},
        } if has_key else None  # fmt: skip
        schema_name, name = table.name.split(".", 1)
        source = {
            "connector": "postgresql", "snapshot": "true" if op == "r" else "false", "db": "made_up",
            "sequence": json.dumps([str(n) for n in self.sequence]), "schema": schema_name, "table": name,
            "lsn": self.sequence[1], "ts_ms": 1_700_000_000_000 + self.sequence[1] if self.time is None else self.time, "txId": self.sequence[0],
        }  # fmt: skip
        after = None
        if op in ("c", "r", "u"):
            after = {
                c: unavailable(s) if c in self.absent else encode(s, self.row.get(c)) for c, s in table.columns.items()
            }
        before = {c: encode(s, self.row.get(c)) if c in table.key else None for c, s in table.columns.items()}
        row_schema = {"type": "struct", "fields": _fields(table, table.columns), "optional": True}
        fields = [
            *({**row_schema, "field": image} for image in ("before", "after")),
            {"type": "struct", "fields": [{"type": _SOURCE.get(f, "string"), "field": f} for f in source], "field": "source"},
            {"type": "string", "optional": False, "field": "op"},
        ]  # fmt: skip
        value = {
            "schema": {"type": "struct", "fields": fields},
            "payload": {"before": before if op == "d" else None, "after": after, "source": source, "op": op},
        }
        topic = f"made_up.{table.name}"
        sent = {"destination": topic, "key": key, "value": value}
        return [sent, {**sent, "value": None}] if op == "d" and key else [sent]


_SOURCE = {"lsn": "int64", "ts_ms": "int64", "txId": "int64"}


def _fields(table: Table, names: Iterable[str]) -> list[dict[str, Any]]:
    return [{**table.columns[n], "optional": n not in table.key, "field": n} for n in names]


def encode(schema: Mapping[str, Any], value: Any) -> Any:
    """A Python value as it stands in Connect's JSON."""
    if value is None:
        return None
    match schema.get("name"):
        case "org.apache.kafka.connect.data.Decimal":
            return unscaled(Decimal(value), int(schema["parameters"]["scale"]))
        case "io.debezium.time.Date":
            return (value - dt.date(1970, 1, 1)).days
        case "io.debezium.time.MicroTimestamp":
            return (value.replace(tzinfo=dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(
                microseconds=1
            )
        case _:
            return base64.b64encode(value).decode() if schema["type"] == "bytes" else value


def unscaled(value: Decimal, scale: int) -> str:
    """A decimal's unscaled integer in base64, as few bytes as it takes."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    shift = scale + exponent
    number = number * 10**shift if shift >= 0 else number // 10**-shift
    return connect_values.unscaled(number)


def unavailable(schema: Mapping[str, Any]) -> Any:
    """What stands for an unchanged TOAST value of a type."""
    if schema["type"] == "bytes":
        return base64.b64encode(UNAVAILABLE.encode()).decode()
    return UNAVAILABLE


def to_lines(events: Iterable[Event]) -> list[bytes]:
    """The lines of a stream, tombstones included."""
    return [json.dumps(r, separators=(",", ":")).encode() + b"\n" for e in events for r in e.records()]


def write_lines(path: Path, lines: Iterable[bytes]) -> Path:
    """A landed file, whole or not at all; gzip if it is named so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    content = b"".join(lines)
    temporary.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return temporary.rename(path)

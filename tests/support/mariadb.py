"""The recorded MariaDB: its streams, and what its server held at each checkpoint, compared with tables of a lake."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.formats.event_model import DELETE
from lake_assets.lake import quote
from tests.support.parsing import Parsed

RECORDED = Path(__file__).parents[1] / "recordings" / "mariadb"
# An excerpt of the same workload on MariaDB 11.4, which gives all events of a transaction one position.
RECORDED_11 = RECORDED.with_name("mariadb_11")
# Renamed amid the recording; the pipelines of the tests declare it.
RENAMED = {("users", "email"): "email_address"}
MISSING, TOO_MANY = "rows missing", "rows too many"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Held:
    """A table as the server held it: its columns with their types, its key, its rows as text."""

    columns: Mapping[str, str]
    key: tuple[str, ...]
    rows: tuple[Mapping[str, str | None], ...]


@dataclass(frozen=True)
class Checkpoint:
    """A quiet point: how many lines of each stream belong to it, and the tables."""

    name: str
    lines: Mapping[str, int]
    tables: Mapping[str, Held]


@cache
def checkpoints(folder: Path = RECORDED) -> tuple[Checkpoint, ...]:
    found = json.loads(gzip.decompress((folder / "checkpoints.json.gz").read_bytes()))
    return tuple(Checkpoint(c["name"], c["lines"], {t: _held(t, d) for t, d in c["tables"].items()}) for c in found)


def _held(table: str, dumped: Mapping[str, Any]) -> Held:
    columns = {RENAMED.get((table, name), name): kind for name, kind in dumped["columns"]}
    rows = tuple(dict(zip(columns, row, strict=True)) for row in dumped["rows"])
    return Held(columns, tuple(dumped["key"]), rows)


@cache
def lines(stream: str, folder: Path = RECORDED) -> tuple[str, ...]:
    """The records of `enveloped` or `flattened`."""
    with gzip.open(folder / f"{stream}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as file:
        return tuple(line.rstrip("\n") for line in file)


def in_lake(frame: DataFrame, held: Held) -> list[Row]:
    """The rows of a table of the lake, with comparable values."""
    columns = {c: k for c, k in held.columns.items() if c in frame.columns}
    rows = frame.select(*(_readable(frame, c) for c in columns)).collect()
    return [{c: _shown(k, v) for (c, k), v in zip(columns.items(), row, strict=True)} for row in rows]


def in_order_of_events(events: Sequence[Parsed], held: Held) -> list[Row]:
    """The rows that the events lead to, in the order that they claim to have."""
    rows: dict[tuple[Any, ...], Row] = {}
    for event in sorted(events, key=lambda e: (e.sequence, e.position, e.index)):
        row = {c: _shown(held.columns[c], v) for c, v in event.row.items() if c in held.columns}
        key = tuple(row[c] for c in held.key)
        before = rows.pop(key, {})
        if event.op != DELETE:
            rows[key] = {**before, **row}
    return list(rows.values())


def differences(rows: Sequence[Row] | None, held: Held) -> Counter[str]:
    """Count what differs from the server's rows, and how; None are the rows of a table that does not exist."""
    expected = [{c: _value(kind, row[c]) for c, kind in held.columns.items()} for row in held.rows]
    if not held.key:
        there, here = (Counter(tuple(r[c] for c in held.columns) for r in side) for side in (expected, rows or ()))
        return +Counter({MISSING: (there - here).total(), TOO_MANY: (here - there).total()})
    there, here = ({tuple(r[c] for c in held.key): r for r in side} for side in (expected, rows or ()))
    both = there.keys() & here.keys()
    found = Counter({MISSING: len(there.keys() - both), TOO_MANY: len(rows or ()) - len(both)})
    for key in both:
        for column, value in there[key].items():
            other = here[key].get(column)
            if other != value:
                how = "" if value is not None and other is not None else ": null" if other is None else ": not null"
                found[f"{column}{how}"] += 1
    return +found


def _readable(frame: DataFrame, name: str) -> Any:
    # Moments as microseconds: Python would turn them into the time zone of whoever runs the tests.
    column = F.col(quote(name))
    return F.unix_micros(column) if dict(frame.dtypes)[name] == "timestamp" else column


_EXACT = Context(prec=100)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001


def _moment(text: str) -> dt.datetime | str:
    return text if re.search(r"-00|^0000", text.partition(" ")[0]) else dt.datetime.fromisoformat(text)


def _micros(text: str) -> int | str:
    moment = _moment(text)
    return moment if isinstance(moment, str) else (moment - _EPOCH) // dt.timedelta(microseconds=1)


def _duration(text: str) -> tuple[str, int]:
    """A TIME: sign and microseconds."""
    parts = re.fullmatch(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?", text)
    if parts is None:
        return text, 0
    hours, minutes, seconds = (int(parts[i]) for i in (2, 3, 4))
    return parts[1], ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((parts[5] or "0").ljust(6, "0"))


def _date(text: str) -> dt.date | str:
    moment = _moment(text)
    return moment if isinstance(moment, str) else moment.date()


_VALUES: dict[str, Callable[[str], Any]] = {
    "bigint": int, "int": int, "mediumint": int, "smallint": int, "tinyint": int, "year": int, "double": float,
    "float": lambda t: struct.pack("f", float(t)), "date": _date, "datetime": _moment, "timestamp": _micros,
    "time": _duration, "blob": bytes.fromhex, "varbinary": bytes.fromhex, "binary": bytes.fromhex,
    "geometry": bytes.fromhex, "point": bytes.fromhex, "decimal": Decimal,
}  # fmt: skip


def _value(kind: str, text: str | None) -> Any:
    """A value of the server's text as the lake has it."""
    base, length = _kind(kind)
    if text is None:
        return None
    if base == "bit":
        return text == "1" if length == "1" else int(text).to_bytes((int(length) + 7) // 8, "little")
    return _VALUES.get(base, str)(text)


def _shown(kind: str, value: Any) -> Any:
    """A value of the lake, in the same form."""
    base, _ = _kind(kind)
    if value is None:
        return None
    if base in ("geometry", "point"):
        return base64.b64decode(json.loads(value)["wkb"])
    if base == "decimal":
        return Decimal(value)
    if base == "float":
        return struct.pack("f", value)
    if base == "time":
        return _duration(value)
    if base == "timestamp" and isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)
    return bytes(value) if isinstance(value, bytearray) else value


def _kind(kind: str) -> tuple[str, str]:
    parts = re.match(r"(\w+)(?:\((\d+))?", kind)
    return (parts[1], parts[2] or "") if parts else (kind, "")


# --- the stream, replayed ---------------------------------------------------------------------------------------------


def replayed(stream: str, checkpoint: Checkpoint) -> dict[str, list[Row]]:
    """The rows that the stream says, in plain Python: each event once, in the order of the binlog."""
    tables: dict[str, dict[Any, dict[str, Any]]] = {}
    seen: set[Any] = set()
    said = (e for n, line in enumerate(lines(stream)[: checkpoint.lines[stream]]) for e in events(n, line))
    for event in sorted(said, key=lambda e: (e.position, e.number)):
        rows, same = tables.setdefault(event.table, {}), (event.table, event.position, event.op)
        if event.op != "r" and same in seen:
            continue
        seen.add(same)
        if event.op == "t":
            rows.clear()
            continue
        held = checkpoint.tables[event.table]
        if not held.key:
            if event.before is None and event.op == "u":
                continue  # it does not say which row it changed
            if event.op in "ud":
                rows.pop(next((k for k, row in rows.items() if row == (event.before or event.after)), None), None)
            if event.op != "d":
                rows[event.number] = event.after
            continue
        row = rows.pop(tuple((event.before or event.after)[c] for c in held.key), {})
        if event.op != "d":
            rows[tuple(event.after[c] for c in held.key)] = {**row, **event.after}
    return {table: list(rows.values()) for table, rows in tables.items()}


@dataclass(frozen=True)
class Event:
    number: int
    table: str
    op: str
    position: tuple[int, int, int]
    before: dict[str, Any] | None
    after: dict[str, Any]


def events(number: int, line: str) -> Iterator[Event]:
    value = json.loads(line)["value"]
    payload = value and value["payload"]
    if not payload or "ddl" in payload:
        return
    fields = {f["field"]: f for f in value["schema"]["fields"]}
    if "__op" in payload:
        source = {name.removeprefix("__source_"): v for name, v in payload.items()}
        table, op = payload["__table"], payload["__op"]
        after = {n: f for n, f in fields.items() if not n.startswith("__")}
        images = [None, {n: _said(f, payload[n]) for n, f in after.items()}]
    else:
        source, table, op = payload["source"], payload["source"]["table"], payload["op"]
        columns = {f["field"]: f for f in fields["after"]["fields"]}
        images = [
            image and {n: _said(f, image[n]) for n, f in columns.items()}
            for image in (payload["before"], payload["after"])
        ]
    before, after = (i and {RENAMED.get((table, n), n): v for n, v in i.items()} for i in images)
    position = int(source["file"].rpartition(".")[2]), source["pos"], 0 if op == "t" else source["row"]
    yield Event(number, table, op, position, before, after or {})


def _said(field: Mapping[str, Any], value: Any) -> Any:
    """A value of Kafka Connect's JSON."""
    kind = field.get("name", field["type"]).rpartition(".")[2]
    if value is None:
        return None
    match kind:
        case "Decimal":
            unscaled = int.from_bytes(base64.b64decode(value), "big", signed=True)
            return Decimal(unscaled).scaleb(-int(field["parameters"]["scale"]), _EXACT)
        case "Date":
            return (_EPOCH + dt.timedelta(days=value)).date()
        case "Timestamp" | "MicroTimestamp":
            return _EPOCH + dt.timedelta(microseconds=value * (1 if kind == "MicroTimestamp" else 1000))
        case "ZonedTimestamp":
            return _micros(value.removesuffix("Z"))
        case "MicroTime":
            return "-" if value < 0 else "", abs(value)
        case "Point" | "Geometry":
            return base64.b64decode(value["wkb"])
        case "Bits" | "bytes":
            return base64.b64decode(value)
        case "float":
            return struct.pack("f", value)
        case _:
            return value

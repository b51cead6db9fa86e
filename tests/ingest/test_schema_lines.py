"""Lines about a live source's schema in raw: in the records' commits, about no row, whole, and never deleted for age."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.expressions import EqualTo

from lake_assets import Lake
from lake_assets.formats.files.limited_files import DEFAULT_LIMITS, Limits
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.old_records import delete_old_records
from lake_assets.ingest.raw.live_landing import LiveLanding
from lake_assets.ingest.raw_tables import SCHEMA_HISTORY, skipped
from lake_assets.lake import TableId

RAW = TableId.parse("raw.shop")


def line(number: int, size: int = 0) -> bytes:
    """As Debezium's connector writes it."""
    change = {
        "type": "ALTER",
        "id": '"shop"."users"',
        "table": {"primaryKeyColumnNames": ["id"], "columns": [{"name": "id", "position": 1}]},
    }
    return json.dumps({
        "source": {"server": "shop.shop"}, "position": {"file": "binlog.000001", "pos": number, "gtids": f"0-7-{number}"},
        "ts_ms": number, "databaseName": "shop", "ddl": f"ALTER TABLE users ADD COLUMN c{number} int /* {'x' * size} */",
        "tableChanges": [change],
    }).encode()  # fmt: skip


def record(number: int) -> bytes:
    source = {"connector": "mariadb", "db": "shop", "table": "users", "file": "binlog.000001", "pos": number, "row": 0}
    value = {"before": None, "after": {"id": number}, "source": source, "op": "c", "ts_ms": 1}
    return json.dumps({"topic": "shop.shop.users", "key": {"id": number}, "value": value}).encode()


def landing(lake: Lake, limits: Limits = DEFAULT_LIMITS) -> LiveLanding:
    spec = RawSpec(RAW, None, "debezium", "shop", limits=limits)
    made = LiveLanding(lake, spec, "live")
    made.start()
    return made


def test_lines_land_with_the_records_and_are_about_no_row(plain_lake: Lake) -> None:
    made = landing(plain_lake, Limits(record=2000))
    lines = [line(n, 5000 * (n == 2)) for n in range(1, 4)]
    made.land([record(1)], {"pos": 1}, lines[:2])
    made.land([record(2)], {"pos": 2})
    made.land([], {"pos": 3}, lines[2:])
    rows = plain_lake.table(RAW).scan().to_arrow().to_pylist()
    assert len(rows) == 5
    assert {r["problem"] for r in rows} == {None}
    assert {r["source_table"] for r in rows if r["source_file"] == SCHEMA_HISTORY} == {None}
    assert skipped(plain_lake.table(RAW)) == {"schema changes": 3}
    # One that is longer than records may be is there as well, as it was.
    assert list(landing(plain_lake).history()) == lines


def test_only_the_files_that_hold_lines_are_read(plain_lake: Lake) -> None:
    made = landing(plain_lake)
    for number in range(40):
        made.land([record(number)], {"pos": number}, [line(number)] if number % 20 == 5 else [])
    raw = plain_lake.table(RAW)
    assert len(list(raw.scan().plan_files())) == 40
    assert len(list(raw.scan(EqualTo("source_file", SCHEMA_HISTORY)).plan_files())) == 2
    assert list(made.history()) == [line(5), line(25)]


@pytest.mark.spark
def test_deleting_old_records_leaves_them(lake: Lake) -> None:
    made = landing(lake)
    for number in range(4):
        made.land([record(number)], {"pos": number}, [line(number)])
    assert delete_old_records(lake, RAW, [], datetime.now(UTC) + timedelta(days=1)) == 3
    assert list(made.history()) == [line(n) for n in range(4)]
    left = lake.table(RAW).scan().to_arrow().to_pylist()
    assert [r["source_line"] for r in left if r["source_file"] == "live"] == [1]

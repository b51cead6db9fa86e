"""Simplified change events: the example of their article, and cases that it leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import MalformedRecordError
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import DELETE, INSERT, UPDATE, Hints
from tests.support.parsing import Parsed, lines_of, parse

SIMPLIFIED = event_format("simplified")
CUSTOMERS = SourceTable("lake", "customers")
COLUMN_NAMES, OLD_KEY_NAMES = ["id", "name"], ["id"]


def event(kind: str, timestamp: str, values: Any = None, old: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "changeType": kind,
        "timestamp": timestamp,
        "columnNames": COLUMN_NAMES if values else None,
        "columnValues": values,
        "oldKeyNames": OLD_KEY_NAMES if old else None,
        "oldKeyValues": old,
        **more,
    }


# "Handling upstream data changes via change data capture", the change event generator's DataFrame.
ARTICLE = [
    event("update", "1", ["id1", "Angela"], ["id1"]),
    event("delete", "2", None, ["id2"]),
    event("insert", "3", ["id2", "Carol"], None),
]


def images(events: list[Parsed]) -> list[tuple[str | None, dict[str, Any]]]:
    return [(e.op, {n: v for n, v in e.row.items() if v is not None}) for e in events]


@pytest.mark.spark
def test_the_example_of_the_article(spark_lake: Lake) -> None:
    events = parse(spark_lake.spark(), SIMPLIFIED, lines_of(*ARTICLE), Hints(table=CUSTOMERS))
    assert images(events) == [
        (UPDATE, {"id": "id1", "name": "Angela"}),
        (DELETE, {"id": "id2"}),
        (INSERT, {"id": "id2", "name": "Carol"}),
    ]
    rows = {"id1": "Alice", "id2": "Bob"}  # the existing data
    for e in sorted(events, key=lambda e: e.sequence):
        rows.pop(e.row["id"], None)
        if e.op != DELETE:
            rows[e.row["id"]] = e.row["name"]
    assert rows == {"id1": "Angela", "id2": "Carol"}


@pytest.mark.spark
def test_the_old_keys_name_the_key(spark_lake: Lake) -> None:
    from tests.support.parsing import planned

    records = spark_lake.spark().createDataFrame(list(enumerate(lines_of(*ARTICLE))), "position BIGINT, record STRING")
    assert [p.key for p, _ in planned(records, SIMPLIFIED, Hints(table=CUSTOMERS))] == [("id",)]


@pytest.mark.spark
def test_types_are_postgres_ones_or_sparks_or_declared_and_text_otherwise(spark_lake: Lake) -> None:
    typed = event("insert", "1", ["7", "1.50"], columnTypes=["bigint", "decimal(6,2)"])
    untyped = event("insert", "2", ["8", "x"])
    (one,) = parse(spark_lake.spark(), SIMPLIFIED, lines_of(typed), Hints(table=CUSTOMERS))
    assert (one.row["id"], str(one.row["name"])) == (7, "1.50")
    (two,) = parse(spark_lake.spark(), SIMPLIFIED, lines_of(untyped), Hints(table=CUSTOMERS, types={"id": "int"}))
    assert two.row == {"id": 8, "name": "x"}
    (three,) = parse(spark_lake.spark(), SIMPLIFIED, lines_of(untyped), Hints(table=CUSTOMERS))
    assert three.row == {"id": "8", "name": "x"}


@pytest.mark.spark
def test_a_changed_key_moves_the_row(spark_lake: Lake) -> None:
    key_change = event("UPDATE", "1", ["id9", "Ann"], ["id1"])
    assert images(parse(spark_lake.spark(), SIMPLIFIED, lines_of(key_change), Hints(table=CUSTOMERS))) == [
        (DELETE, {"id": "id1"}),
        (INSERT, {"id": "id9", "name": "Ann"}),
    ]


@pytest.mark.spark
def test_counters_and_moments_order_the_events(spark_lake: Lake) -> None:
    counters = ["2", "10", "9"]
    moments = ["2024-01-01T00:00:00.5Z", "2024-01-01 01:00:00+02:00", "2024-01-01", "2023-12-31T23:59:59.123456"]
    for times, expected in ((counters, ["2", "9", "10"]), (moments, [moments[1], moments[3], moments[2], moments[0]])):
        lines = lines_of(*(event("insert", t, ["1", t]) for t in times))
        events = parse(spark_lake.spark(), SIMPLIFIED, lines, Hints(table=CUSTOMERS))
        assert [e.row["name"] for e in sorted(events, key=lambda e: e.sequence)] == expected


def test_a_record_may_name_its_table() -> None:
    assert SIMPLIFIED.routes({**ARTICLE[0], "schema": "s", "table": "t"}) == (SourceTable("s", "t"),)
    assert SIMPLIFIED.routes(ARTICLE[0], CUSTOMERS) == (CUSTOMERS,)
    with pytest.raises(MalformedRecordError, match="declare the table"):
        SIMPLIFIED.routes(ARTICLE[0])


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("x", "expected an object"),
        ({"change": []}, "changeType"),
        (event("upsert", "1"), "no such changeType"),
        (event("insert", "1"), "columnNames"),
        (event("delete", "1"), "oldKeyNames"),
        (event("update", "1", ["a", "b"]), "oldKeyNames"),
        (event("insert", "1", ["only one"]), "differ in length"),
        (event("insert", "1", ["a", "b"], columnTypes=["int"]), "differ in length"),
    ],
)
def test_incomplete_records_are_malformed(record: Any, message: str) -> None:
    with pytest.raises(MalformedRecordError, match=message):
        SIMPLIFIED.routes(record, CUSTOMERS)

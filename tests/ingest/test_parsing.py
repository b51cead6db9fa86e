"""What reading a batch costs: each record is parsed once, whatever is asked of its rows."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import DataFrame

from lake_assets import Lake
from lake_assets.examples.event_generator import Source, Workload
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.format_base import decode
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.parsing import Parsed, parse
from lake_assets.lake import TableId
from tests.support.raw_rows import raw_rows

ITEMS = SourceTable("public", "items")


def spec(name: str, **more: Any) -> StagingSpec:
    return StagingSpec(TableId(("staging",), "items"), TableId(("raw",), "r"), ITEMS, name, "p", **more)


def transaction(changes: Iterable[tuple[int, str, Any]]) -> str:
    """A transaction of wal2json, format version 1: inserts of `id` and of `v` with its type."""
    found = [
        {
            "kind": "insert", "schema": "public", "table": "items", "pk": {"pknames": ["id"], "pktypes": ["bigint"]},
            "columnnames": ["id", "v"], "columntypes": ["bigint", kind], "columnvalues": [id_, value],
        }
        for id_, kind, value in changes
    ]  # fmt: skip
    return json.dumps({"nextlsn": "0/20", "timestamp": "2024-01-02 03:04:05.6+00", "change": found})


def two_types(changes: int) -> str:
    return transaction((i, "text" if i % 2 else "integer", f"x{i}" if i % 2 else i) for i in range(changes))


def times_parsed(rows: DataFrame) -> int:
    """How often the optimized plan of `rows` parses a record."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        rows.explain(extended=True)
    plan = shown.getvalue().split("== Optimized Logical Plan ==")[1].split("== Physical Plan ==")[0]
    # What parses a value of a record (the order of Debezium's events is JSON in JSON) reads `e`, not the record.
    return len(re.findall(r"(?:replace\(|parseJson\W+|, )(?:record|payload)#\d+, (?!\w+#)", plan))


def lines_of(encoder: str) -> list[str]:
    workload = Workload(seed=1, events=8, keys=4)
    found = [line for t in Source(workload) for line in ENCODERS[encoder](t, workload)]
    return [line for line in found if event_format(READERS.get(encoder, encoder)).routes(decode(line), ITEMS)]


READERS = {"debezium-plain": "debezium", "debezium-flat": "debezium", "simplified-typed": "simplified"}


@pytest.mark.parametrize(
    ("encoder", "by_row"),
    [
        ("debezium", True), pytest.param("wal2json-v2", False, marks=pytest.mark.long),
        *(
            pytest.param(name, False, marks=pytest.mark.long)
            for name in (
                "debezium", "debezium-plain", "debezium-flat", "wal2json-v1", "simplified-typed", "change-set",
            )
        ),
    ],
)  # fmt: skip
def test_a_record_is_parsed_once_whatever_is_asked_of_its_rows(spark_lake: Lake, encoder: str, by_row: bool) -> None:
    name = READERS.get(encoder, encoder)
    # Else Spark computes some of it while it plans, of rows that it has in memory.
    conf, rule = spark_lake.spark().conf, "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    conf.set("spark.sql.optimizer.excludedRules", rule)
    records = raw_rows(spark_lake, name, lines_of(encoder))
    spark_lake.spark().conf.set("spark.sql.debug.maxToStringFields", "1000")
    parsed = parse(records, spec(name, by_row=by_row, key=() if by_row else ("id",)), {})
    assert parsed.rows is not None
    try:
        assert times_parsed(parsed.rows) == 1
        assert times_parsed(parsed.rows.where(f"{BAD} IS NULL")) == 1
        assert times_parsed(parsed.rows.where("_op <> 'truncate'")) == 1
    finally:
        conf.unset("spark.sql.optimizer.excludedRules")


@pytest.mark.long
def test_records_with_two_types_of_a_column_are_parsed_once_per_type(spark_lake: Lake) -> None:
    spark_lake.spark().conf.set("spark.sql.debug.maxToStringFields", "1000")
    records = raw_rows(spark_lake, "wal2json-v1", [two_types(4)])
    parsed = parse(records, spec("wal2json-v1", on_conflict="new-column"), {})
    assert parsed.rows is not None
    assert parsed.refused is None
    assert times_parsed(parsed.rows.where(f"{BAD} IS NULL")) == 2
    found = {r["id"]: (r["v"], r["v__string"]) for r in parsed.rows.where(f"{BAD} IS NULL").collect()}
    assert found == {0: (0, None), 1: (None, "x1"), 2: (2, None), 3: (None, "x3")}


@pytest.mark.long
def test_reading_a_transaction_takes_time_in_proportion_to_its_changes(spark_lake: Lake) -> None:
    def seconds(changes: int) -> float:
        records = raw_rows(spark_lake, "wal2json-v1", [two_types(changes)], source_table="*")
        parsed = parse(records, spec("wal2json-v1", on_conflict="new-column"), {})
        assert parsed.rows is not None
        began = time.perf_counter()
        assert parsed.rows.where(f"{BAD} IS NULL").count() == changes
        return time.perf_counter() - began

    seconds(10)
    few, many = (min(seconds(n) for _ in range(2)) for n in (250, 1_000))
    assert many / few < 8, (few, many)  # in proportion: 4; parsed again for every change: 16


def unreadable(parsed: Parsed) -> list[int]:
    assert parsed.rows is not None
    return [r["_position"] for r in parsed.rows.where(f"{BAD} IS NOT NULL").orderBy("_position").collect()]


@pytest.mark.long
def test_a_record_that_gives_no_event_is_told_once_also_where_several_plans_read_it(spark_lake: Lake) -> None:
    lines = [two_types(4), '{"change": 5}', transaction([])]
    alone = parse(raw_rows(spark_lake, "wal2json-v1", lines), spec("wal2json-v1", on_conflict="new-column"), {})
    assert unreadable(alone) == [1, 2]
    shared = raw_rows(spark_lake, "wal2json-v1", lines, source_table="*")
    # A record about several tables may hold nothing for this one.
    assert unreadable(parse(shared, spec("wal2json-v1", on_conflict="new-column"), {})) == [1]

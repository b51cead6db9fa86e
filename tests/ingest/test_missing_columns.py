"""What an event says of a column that it does not have, and of one whose name changed its case: alike in all formats, and
wherever batches are split."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.errors import UnsupportedEventError
from lake_assets.examples.event_generator import Change, Transaction, Workload
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import TECHNICAL
from lake_assets.formats.format_base import decode, schema_key
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.parsing import parse
from lake_assets.lake import TableId
from tests.support.debezium import BIGINT, TEXT, Event, Table
from tests.support.oracle import rows_of
from tests.support.streams import Feed, pipeline

READERS = {
    "debezium": "debezium", "debezium-plain": "debezium", "debezium-flat-plain": "debezium",
    "wal2json-v1": "wal2json-v1", "wal2json-v2": "wal2json-v2", "simplified-typed": "simplified",
    "change-set": "change-set", "change-feed": "change-feed",
}  # fmt: skip
WHOLE = ("change-set", "change-feed")
WORKLOAD = Workload(seed=1, events=1, keys=1)
NOW = {"id": "bigint", "n": "integer", "name": "text"}
ONCE = {**NOW, "gone": "integer", "words": "text"}
Row = dict[str, Any]


def history(now: dict[str, str] = NOW) -> list[Transaction]:
    """Two rows, then two columns are dropped (or others renamed), then changes of all kinds."""
    n, name = list(now)[1:3]

    def row(id_: int, first: Any, second: Any, **more: Any) -> Row:
        return {"id": id_, n: first, name: second, **more}

    made = [
        {"id": 1, "n": 1, "name": "a", "gone": 5, "words": "x"},
        {"id": 2, "n": 2, "name": "", "gone": 6, "words": "y"},
    ]
    changes = [
        ("insert", ONCE, None, made[0]),
        ("insert", ONCE, None, made[1]),
        ("update", now, row(1, 1, "a"), row(1, None, "b")),
        ("insert", now, None, row(3, 3, "c")),
        ("update", now, row(2, 2, ""), row(2, 20, None)),
        ("delete", now, row(3, 3, "c"), None),
    ]
    began = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return [
        Transaction(
            i, i * 10, i * 10 - 10, began + dt.timedelta(seconds=i), (Change(op, i * 10 - 1, columns, old, new),)
        )
        for i, (op, columns, old, new) in enumerate(changes, 1)
    ]


class Reader:
    """Reads batches as staging does, and keeps the rows in plain Python."""

    def __init__(self, lake: Lake, form: str) -> None:
        self.lake, self.reader = lake, event_format(form)
        table = TableId.parse("staging.items")
        self.spec = StagingSpec(table, TableId.parse("raw.s"), SourceTable("public", "items"), form, "p", key=("id",))
        self.known: dict[str, str] = {}
        self.rows: dict[Any, Row] = {}
        self.bad: list[str] = []
        self.position = 0

    def read(self, lines: Sequence[str]) -> None:
        schemas = [self.reader.schema_of(decode(line)) for line in lines]
        count = len(lines)
        batch = {
            "position": pa.array(range(self.position, self.position + count), pa.int64()),
            "source_table": ["public.items"] * count,
            "arrived_at": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * count, pa.timestamp("us", "UTC")),
            "schema_key": [schema_key(s) for s in schemas],
            "payload": [self.reader.without_schema(x, s) if s else None for x, s in zip(lines, schemas, strict=True)],
            "record": list(lines),
        }
        self.position += count
        found = parse(self.lake.spark().createDataFrame(pa.table(batch)), self.spec, self.known, ("id",))
        if found.refused is not None:
            self.bad += [r[BAD] for r in found.refused.collect()]
        if found.rows is None:
            return
        for row in sorted(found.rows.collect(), key=lambda r: (r["_sequence"], r["_position"], r["_index"])):
            if row[BAD]:
                self.bad.append(row[BAD])
                continue
            values = {c: v for c, v in row.asDict().items() if c not in TECHNICAL and c != BAD}
            gone = row["_unavailable"] or []
            if row["_op"] == "delete":
                self.rows.pop(int(values["id"]), None)
                continue
            before = self.rows.get(int(values["id"]), {})
            self.rows[int(values["id"])] = {
                c: before.get(c) if c in gone else values.get(c) for c in {**self.known, **values}
            }
        self.known |= {
            f.name: f.dataType.simpleString() for f in found.rows.schema.fields if f.name not in (*TECHNICAL, BAD)
        }

    def held(self, *columns: str) -> dict[int, tuple[Any, ...]]:
        return {k: tuple(r.get(c) for c in columns) for k, r in self.rows.items()}


def encoded(form: str, transactions: Sequence[Transaction]) -> list[str]:
    """The lines that are about a row."""
    lines = (line for t in transactions for line in ENCODERS[form](t, WORKLOAD))
    return [x for x in lines if event_format(READERS[form]).routes(decode(x), SourceTable("public", "items"))]


# One of each family of formats in every run, all in the long tests.
FORMS = [
    f if f in ("debezium", "wal2json-v2", "change-set") else pytest.param(f, marks=pytest.mark.long) for f in READERS
]

SOME = ["debezium", *(pytest.param(f, marks=pytest.mark.long) for f in READERS if f != "debezium")]


@pytest.mark.parametrize("splits", [(4,), pytest.param((6, 2), marks=pytest.mark.long)])
@pytest.mark.parametrize("form", FORMS)
def test_a_dropped_column_keeps_its_values_in_every_format_but_those_of_whole_rows(
    spark_lake: Lake, form: str, splits: tuple[int, ...]
) -> None:
    kept = {1: (None, "b", 5, "x"), 2: (20, None, 6, "y")}
    if form in WHOLE:
        kept = {1: (None, "b", None, None), 2: (20, None, None, None)}
    for split in splits:
        reader = Reader(spark_lake, READERS[form])
        for part in (history()[:split], history()[split:]):
            if part:
                reader.read(encoded(form, part))
        assert (split, reader.bad) == (split, [])
        assert (split, reader.held("n", "name", "gone", "words")) == (split, kept)


@pytest.mark.parametrize("form", SOME)
def test_a_name_that_changes_its_case_is_the_same_column(spark_lake: Lake, form: str) -> None:
    now = {"id": "bigint", "N": "integer", "nAME": "text"}
    for split in (6, 3):
        reader = Reader(spark_lake, READERS[form])
        for part in (history(now)[:split], history(now)[split:]):
            if part:
                reader.read(encoded(form, part))
        assert (split, reader.bad) == (split, [])
        spelled = {c.lower(): c for c in reader.known}
        assert len(spelled) == len(reader.known)
        held = reader.held(spelled["n"], spelled["name"])
        assert (split, held) == (split, {1: (None, "b"), 2: (20, None)})


@pytest.mark.parametrize("form", SOME)
def test_two_columns_of_one_row_that_differ_in_case_only_are_rejected_until_one_is_renamed(
    spark_lake: Lake, form: str
) -> None:
    reader = Reader(spark_lake, READERS[form])
    (first, *_) = history()
    change = first.changes[0]
    assert change.after is not None
    both = replace(change, columns={**change.columns, "NAME": "text"}, after={**change.after, "id": 7, "NAME": "b"})
    second = replace(first, xid=2, commit=20, last=10, changes=(replace(both, lsn=19),))
    lines = [*encoded(form, [first]), *encoded(form, [second])]
    reader.read(lines)
    assert list(reader.rows) == [1]
    ((reason),) = reader.bad
    assert "differ in case only" in reason or "declare another name for one of them (`rename`)" in reason
    reader.spec = replace(reader.spec, rename={"NAME": "other"})
    reader.read(lines[1:])
    spelled = {c.lower(): c for c in reader.known}
    assert reader.held(spelled["name"], "other")[7] == ("a", "b")


def test_columns_that_staging_uses_itself_are_renamed_as_the_error_says(spark_lake: Lake) -> None:
    reader = Reader(spark_lake, "simplified")
    (first, *_) = history()
    change = first.changes[0]
    assert change.after is not None
    clash = replace(change, columns={**change.columns, "_OP": "text"}, after={**change.after, "_OP": "x"})
    lines = encoded("simplified-typed", [replace(first, changes=(clash,))])
    with pytest.raises(UnsupportedEventError, match=r"called _OP, .*`rename`"):
        reader.read(lines)
    reader.spec = replace(reader.spec, rename={"_OP": "op"})
    reader.read(lines)
    assert reader.held("op") == {1: ("x",)}


@pytest.mark.long
def test_a_rename_that_changes_case_only_goes_through_declared_or_not(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    upper, lower = Table({"id": BIGINT, "Name": TEXT}), Table({"id": BIGINT, "name": TEXT})
    feed.deliver([Event(upper, "c", (i, i), {"id": i, "Name": "a"}) for i in (10, 20)])
    feed.deliver([Event(lower, "u", (30, 31), {"id": 10, "name": "b"})])
    assert feed.rows("final.t").columns == ["id", "Name"]
    assert rows_of(feed.rows("final.t")) == Counter({(10, "b"): 1, (20, "a"): 1})
    feed.pipeline = pipeline({"table": "public.t", "rename": {"Name": "name"}})
    feed.deliver([Event(lower, "u", (40, 41), {"id": 20, "name": "c"})])
    assert feed.rows("final.t").columns == ["id", "name"]
    assert rows_of(feed.rows("final.t")) == Counter({(10, "b"): 1, (20, "c"): 1})


KEYLESS = {
    "debezium": '{{"before": null, "after": {{{id}"n": 1}}, "op": "c", "source": {source}}}',
    "change-set": '{{"FLAG": "I", {id}"n": 1, "CDC_TIMESTAMP": "2026-01-01 00:00:00"}}',
    "simplified": '{{"changeType": "insert", "timestamp": "1", "schema": "public", "table": "items", "columnNames": '
    '[{names}"n"], "columnValues": [{values}1]}}',
}


@pytest.mark.parametrize("form", KEYLESS)
def test_a_null_key_is_called_null_and_a_missing_one_missing(spark_lake: Lake, form: str) -> None:
    source = '{"schema": "public", "table": "items", "lsn": 7, "sequence": "[\\"1\\",\\"7\\"]"}'
    null = KEYLESS[form].format(id='"id": null, ', names='"id", ', values="null, ", source=source)
    missing = KEYLESS[form].format(id="", names="", values="", source=source)
    good = KEYLESS[form].format(id='"id": 1, ', names='"id", ', values="1, ", source=source)
    reader = Reader(spark_lake, form)
    reader.read([good, null])
    assert (reader.bad, list(reader.rows)) == (["key column id is null"], [1])
    reader.bad.clear()
    reader.read([good, missing])
    assert reader.bad == ["key column id is missing"]

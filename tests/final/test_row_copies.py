"""Tables without a key have as many copies of each row as the source, compared with a multiset in plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import UnsupportedEventError
from lake_assets.final.row_hash import hash_of_row
from tests.support.item_events import change_feed, debezium, wal2json
from tests.support.item_stream import ITEMS, Stream
from tests.support.seeds import seeds

Row = dict[str, Any]
Write = Callable[[int, str, Row | None, Row | None], list[str]]
COLUMNS = ("n", "name")


def wal2json_v1(at: int, op: str, before: Row | None, after: Row | None) -> list[str]:
    change: Row = {"kind": {"c": "insert", "u": "update", "d": "delete"}[op], "schema": "public", "table": "items"}
    types = {"n": "integer", "name": "text"}
    if after:
        change |= {"columnnames": [*after], "columntypes": [types[c] for c in after], "columnvalues": [*after.values()]}
    if before:
        # The old row omits null columns.
        old = {c: v for c, v in before.items() if v is not None}
        change["oldkeys"] = {"keynames": [*old], "keytypes": [types[c] for c in old], "keyvalues": [*old.values()]}
    return [json.dumps({"xid": at, "nextlsn": f"0/{at:X}", "change": [change]})]


def truncated(form: str, at: int) -> list[str]:
    if form == "debezium":
        return debezium(at, "t", None, None)
    return [json.dumps({"action": "T", "schema": "public", "table": "items", "lsn": f"0/{at:X}"})]


WRITERS: dict[str, Write] = {
    "debezium": debezium, "wal2json-v1": wal2json_v1, "wal2json-v2": wal2json, "change-feed": change_feed,
}  # fmt: skip


@dataclass
class Source:
    """A table with few distinct rows, with its stream, and its rows after each file."""

    form: str
    choose: random.Random
    held: list[Row] = field(default_factory=list)
    at: int = 0

    def new(self) -> Row:
        return {"n": self.choose.choice([1, 2]), "name": self.choose.choice(["a", "b", None])}

    def changes(self) -> list[str]:
        """Return one change of one copy, a truncate, or rows that were copied with one sequence."""
        self.at += 1
        write, kind = WRITERS[self.form], self.choose.choices(["c", "u", "d", "copy", "t"], [4, 3, 3, 1, 0.3])[0]
        if kind == "t" and self.form in ("debezium", "wal2json-v2"):
            self.held.clear()
            return truncated(self.form, self.at)
        if kind == "copy" and self.form in ("debezium", "wal2json-v2"):
            rows = [self.new() for _ in range(self.choose.randint(2, 5))]
            self.held += rows
            return [line for row in rows for line in write(self.at, "c", None, row)]
        op = kind if kind in "ud" and self.held else "c"
        before = self.held.pop(self.choose.randrange(len(self.held))) if op in "ud" else None
        after = self.new() if op in "cu" else None
        self.held += [after] if after else []
        return write(self.at, op, before, after)

    def file(self, changes: int) -> list[str]:
        """Return the lines of a number of changes."""
        return [line for _ in range(changes) for line in self.changes()]


def counted(rows: Sequence[Row]) -> Counter[Any]:
    return Counter(tuple(r[c] for c in COLUMNS) for r in rows)


def follow(lake: Lake, form: str, choose: random.Random, batches: int, deletes: str = "hard") -> Stream:
    declared = {"table": ITEMS, "key": "*", "deletes": deletes, "types": {"n": "int"}}
    stream = Stream(lake, format=form, tables=[declared])
    source, sent = Source(form, choose), list[list[str]]()
    for _ in range(batches):
        for _ in range(choose.randint(1, 3)):
            sent.append(source.file(choose.randint(2, 9)))
            stream.land(*sent[-1])
        if choose.random() < 0.6:
            # Sent again by a sender that got no confirmation.
            stream.land(*choose.choice(sent))
        stream.run()
        rows = stream.rows("final.items")
        assert counted([r for r in rows if not r.get("__deleted")]) == counted(source.held)
        numbers = Counter((r["__row"], r["__copy"]) for r in rows)
        assert set(numbers.values()) <= {1}
    assert stream.rejected() == []
    return stream


@pytest.mark.long
@pytest.mark.parametrize("form", [f if f == "debezium" else pytest.param(f, marks=pytest.mark.long) for f in WRITERS])
def test_each_event_adds_or_removes_one_copy_whatever_the_batches(lake: Lake, form: str) -> None:
    follow(lake, form, random.Random(form), 2)


@pytest.mark.long
@pytest.mark.parametrize("deletes", ["hard", "soft"])
@pytest.mark.parametrize("seed", seeds(0, 2))
@pytest.mark.parametrize("form", WRITERS)
def test_many_histories_of_copies(new_lake: Callable[[str], Lake], form: str, seed: int, deletes: str) -> None:
    stream = follow(new_lake("steps"), form, random.Random(f"{form} {seed}"), 6, deletes)
    # Absorbed in one step, the events give the same table.
    full = Stream(new_lake("full"), format=form, tables=[stream.pipeline.config.streams[0].tables[0].model_dump()])
    for file in sorted(stream.folder.iterdir()):
        full.land(*file.read_bytes().splitlines())
    full.run()
    assert sorted(map(str, full.rows("final.items"))) == sorted(map(str, stream.rows("final.items")))


@pytest.mark.long
def test_equal_rows_of_one_snapshot_count_however_it_is_cut_into_files(lake: Lake) -> None:
    stream = Stream(lake, format="debezium", tables=[{"table": ITEMS, "key": "*"}])
    row = {"n": 1, "name": "a"}
    for copies in (3, 2, 4):
        stream.run(*(line for _ in range(copies) for line in debezium(7, "r", None, row)))
    assert counted(stream.rows("final.items")) == Counter({(1, "a"): 9})
    outcomes = stream.run(*debezium(8, "d", row, None), *debezium(9, "d", {"n": 9, "name": "x"}, None))
    assert counted(stream.rows("final.items")) == Counter({(1, "a"): 8})
    assert outcomes["final.items"].deleted == 1
    assert outcomes["final.items"].details["deletes_without_row"] == 1
    assert "several batches" not in str(outcomes["final.items"].details)


@pytest.mark.long
def test_a_statement_that_goes_on_with_equal_rows_may_be_repeated_and_the_table_says_so(lake: Lake) -> None:
    """Restarted in the middle of a COPY, a connector sends its last rows again: they look like further rows."""
    stream = Stream(lake, format="debezium", tables=[{"table": ITEMS, "key": "*"}])
    insert = debezium(7, "c", None, {"n": 1, "name": "a"})
    assert (
        "not_exact"
        not in stream.run(*insert * 3, *debezium(7, "c", None, {"n": 2, "name": "b"}))["final.items"].details
    )
    assert "not_exact" not in stream.run(*debezium(7, "c", None, {"n": 3, "name": "c"}))["final.items"].details
    outcomes = stream.run(*insert * 2)
    assert counted(stream.rows("final.items")) == Counter({(1, "a"): 5, (2, "b"): 1, (3, "c"): 1})
    assert "equal rows with one position" in str(outcomes["final.items"].details["not_exact"])


def test_rows_that_differ_in_microseconds_or_the_era_are_not_copies(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    zone = spark.conf.get("spark.sql.session.timeZone")
    moments = [
        "2024-01-01 00:00:00.000001",
        "2024-01-01 00:00:00.000002",
        "2024-01-01 00:00:00",
        "-0001-01-01 00:00:00",
    ]
    values = [
        value
        for m in [*moments, "0002-01-01 00:00:00"]
        for value in (f"TIMESTAMP_NTZ '{m}', NULL", f"NULL, array(TIMESTAMP '{m}Z', NULL)")
    ]
    rows = spark.sql(f"SELECT * FROM VALUES {', '.join(f'({v})' for v in values)} AS t (at, list)")
    item = hash_of_row(["at", "list"])
    hashes = []
    try:
        for z in ("UTC", "America/New_York"):
            spark.conf.set("spark.sql.session.timeZone", z)
            hashes.append({r[0] for r in rows.selectExpr(item.value.sql("spark")).collect()})
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert len(hashes[0]) == len(values)
    assert hashes[0] == hashes[1]


@pytest.mark.long
def test_an_update_of_one_of_two_equal_rows_names_the_declaration_that_works(lake: Lake) -> None:
    """With REPLICA IDENTITY FULL and duplicates, no columns are a key."""
    row, changed = {"n": 1, "name": "a"}, {"n": 2, "name": "a"}
    stream = Stream(lake, format="debezium", tables=[{"table": ITEMS, "columns": "*"}])
    stream.run(*debezium(1, "c", None, row), *debezium(2, "c", None, row))
    with pytest.raises(UnsupportedEventError) as caught:
        stream.run(*debezium(3, "u", row, changed))
    assert 'declare `key: "*"` without `columns`, which tells rows apart by all of their values' in str(caught.value)
    stream.declare(format="debezium", tables=[{"table": ITEMS, "key": "*"}])
    stream.run()
    assert counted(stream.rows("final.items")) == counted([row, changed])

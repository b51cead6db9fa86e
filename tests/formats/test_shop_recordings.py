"""One workload on a real Postgres, recorded by three tools: all give the same events."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, pairwise
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.examples.shop import DATA
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import DELETE, Hints
from tests.support import reference
from tests.support.parsing import Parsed, parse, plain

# File, plain-Python reader, and number of lines for the seed rows, which Debezium reads as its snapshot.
RECORDINGS: dict[str, tuple[str, Callable[[str], Iterator[reference.Image]], int]] = {
    "debezium": ("debezium", reference.debezium, 727),
    "wal2json-v1": ("wal2json_v1", reference.wal2json_v1, 866),
    "wal2json-v2": ("wal2json_v2", reference.wal2json_v2, 2775),
}
KEYS = {
    "users": ("id",),
    "accounts": ("account_id",),
    "order_item": ("order_id", "line"),
    "user_city": ("user_id",),
    "clicks": (),
}


@cache
def lines(name: str) -> tuple[str, ...]:
    file, _, seed = RECORDINGS[name]
    with gzip.open(DATA / f"{file}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as stream:
        return tuple(line.rstrip("\n") for line in stream)[seed:]


@cache
def by_reference(name: str) -> list[reference.Image]:
    return [image for line in lines(name) for image in RECORDINGS[name][1](line)]


def test_the_plain_readers_agree_about_every_event() -> None:
    assert by_reference("wal2json-v1") == by_reference("wal2json-v2")
    assert by_reference("debezium") == by_reference("wal2json-v2")
    assert len(by_reference("debezium")) > 5_000


@pytest.mark.spark
@pytest.mark.parametrize(
    "table", [t if t in ("users", "clicks") else pytest.param(t, marks=pytest.mark.long) for t in KEYS]
)
@pytest.mark.parametrize(
    "name", [n if n != "wal2json-v1" else pytest.param(n, marks=pytest.mark.long) for n in RECORDINGS]
)
def test_spark_reads_what_the_plain_reader_does(spark_lake: Lake, name: str, table: str) -> None:
    events = parse(spark_lake.spark(), event_format(name), lines(name), Hints(table=SourceTable("public", table)))
    assert [e.bad for e in events if e.bad] == []
    expected = [(op, row) for t, op, row in by_reference(name) if t == table]
    assert [_image(e, KEYS[table]) for e in events] == expected
    assert _goes_up_for_each_key(events, KEYS[table])
    _only_columns_that_come_and_go_are_unavailable(events)


def _image(event: Parsed, key: tuple[str, ...]) -> tuple[str | None, dict[str, Any]]:
    row = {n: plain(v) for n, v in event.row.items() if v is not None}
    return event.op, {n: row[n] for n in key} if event.op == DELETE and key else row


def _goes_up_for_each_key(events: list[Parsed], key: tuple[str, ...]) -> bool:
    def key_of(e: Parsed) -> tuple[str, ...]:
        return tuple(str(e.row[k]) for k in key)

    if not key:
        return True
    per_key = groupby(sorted(events, key=lambda e: (key_of(e), e.position, e.index)), key=key_of)
    return all(
        (a.sequence, a.position, a.index) < (b.sequence, b.position, b.index)
        for _, group in per_key
        for one in [list(group)]
        for a, b in pairwise(one)
    )


def _only_columns_that_come_and_go_are_unavailable(events: list[Parsed]) -> None:
    # A dropped (or not yet added) column looks like an unchanged long value: wal2json leaves out either.
    assert {c for e in events for c in e.unavailable} <= {"prefs", "phone", "email", "email_address"}


@pytest.mark.spark
def test_a_renamed_column_is_one_column_in_a_batch_with_both_of_its_names(spark_lake: Lake) -> None:
    hints = Hints(table=SourceTable("public", "users"), rename={"email": "email_address"})
    emails = [
        [_image(e, ("id",)) for e in parse(spark_lake.spark(), event_format(n), lines(n), hints)]
        for n in ("debezium", "wal2json-v2")
    ]
    assert emails[0] == emails[1]
    assert not any("email" in row for _, row in emails[1])
    assert sum("email_address" in row for _, row in emails[1]) > 500

"""Any event survives the round trip from the generator through a format to its reader."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lake_assets import Lake
from lake_assets.examples.event_generator import COLUMNS, KEY, TOASTED, Change, Source, Transaction, Workload, delivered
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.formats import event_format
from lake_assets.formats.event_model import DELETE, INSERT, UPDATE
from tests.support.expected import FORMATS, final_rows, images, of_reader, shown
from tests.support.parsing import Parsed, moment, parse

pytestmark = pytest.mark.spark

BUSY = Workload(
    seed=7, events=240, keys=25, distribution="zipf", key_changes=0.3, unchanged=0.4, nulls=0.2, schema_changes=4
)
OFTEN = ("debezium", "wal2json-v2")


def often(names: Iterable[str]) -> list[Any]:
    """The others of these formats, which are read by the same code, in the long run."""
    return [n if n in OFTEN else pytest.param(n, marks=pytest.mark.long) for n in names]


every_format = pytest.mark.parametrize("name", often(FORMATS))


def read(lake: Lake, name: str, transactions: list[Transaction], workload: Workload = BUSY) -> list[Parsed]:
    lines = [line for t in transactions for line in ENCODERS[name](t, workload)]
    carried = FORMATS[name]
    events = parse(lake.spark(), event_format(carried.reads), lines, carried.hints)
    assert [e.bad for e in events if e.bad] == []
    return events


def test_every_generated_format_has_a_reader() -> None:
    assert set(FORMATS) == set(ENCODERS)


@every_format
def test_events_are_read_as_generated(spark_lake: Lake, name: str) -> None:
    transactions = list(Source(BUSY))
    events, expected = read(spark_lake, name, transactions), images(FORMATS[name], transactions)
    assert [of_reader(FORMATS[name], e) for e in events] == expected


@every_format
def test_late_and_repeated_events_lead_to_the_rows_of_the_source(spark_lake: Lake, name: str) -> None:
    workload = replace(BUSY, late=0.2, lateness=30, duplicates=0.2, schema_changes=0)
    source, carried = Source(workload), FORMATS[name]
    events = read(spark_lake, name, list(delivered(workload, source)), workload)
    rows = final_rows(events)
    for row in rows.values():
        row.pop("CDC_TIMESTAMP", None)
    expected = [shown(carried, COLUMNS, row) for row in source.rows.values()]
    assert rows == {row[KEY]: row for row in expected}


@pytest.mark.parametrize("name", often(n for n, c in FORMATS.items() if c.omits))
def test_omitted_values_are_marked(spark_lake: Lake, name: str) -> None:
    transactions = list(Source(replace(BUSY, key_changes=0.0, schema_changes=0)))
    changes = [c for t in transactions for c in t.changes]
    assert [e.unavailable for e in read(spark_lake, name, transactions)] == [c.absent for c in changes]
    assert any(c.absent == {TOASTED} for c in changes)


# --- any values at all ------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": TEXT,
    "quantity": st.integers(-(2**31), 2**31 - 1),
    "amount": st.decimals(-(10**10) + 1, 10**10 - 1, places=2),
    "score": st.floats(allow_nan=False, allow_infinity=False),
    "born": st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "seen": st.integers(-62_135_500_000_000_000, 253_402_200_000_000_000).map(moment),
    "active": st.booleans(),
    "ref": st.uuids().map(str),
    "raw": st.binary(max_size=12),
    "tags": st.lists(TEXT | st.none(), max_size=4),
    TOASTED: TEXT,
}
ROWS = st.fixed_dictionaries({n: s | st.none() for n, s in VALUES.items()})


@st.composite
def histories(draw: st.DrawFn) -> list[Transaction]:
    """A row that is inserted, updated to anything, moved to another key, and deleted; some of these, for many rows."""
    changes: list[Change] = []
    for number, rows in enumerate(draw(st.lists(st.lists(ROWS, min_size=1, max_size=3), min_size=5, max_size=12))):
        before: dict[str, Any] | None = None
        for row in rows:
            after = {KEY: 2 * number + draw(st.integers(0, 1)), **row}
            changes.append(Change(UPDATE if before else INSERT, 1000 + len(changes), COLUMNS, before, after))
            before = after
        if draw(st.booleans()):
            changes.append(Change(DELETE, 1000 + len(changes), COLUMNS, before, None))
    made_at = dt.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
    return [Transaction(i, c.lsn + 1, c.lsn - 1, made_at, (c,)) for i, c in enumerate(changes)]


@every_format
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(transactions=histories())
def test_any_values_survive(spark_lake: Lake, name: str, transactions: list[Transaction]) -> None:
    events = read(spark_lake, name, transactions)
    assert [of_reader(FORMATS[name], e) for e in events] == images(FORMATS[name], transactions)


def test_decimals_keep_every_digit_without_going_through_a_double(spark_lake: Lake) -> None:
    columns = {KEY: "bigint", "amount": "numeric(38,10)", "free": "numeric"}
    digits = Decimal("1234567890123456789012345678.0123456789")
    longer = Decimal("-" + "9" * 60 + ".000000000000000000000000000000000000001")
    change = Change(INSERT, 1, columns, None, {KEY: 2**53 + 1, "amount": digits, "free": longer})
    transaction = Transaction(1, 2, 0, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), (change,))
    for name in ("wal2json-v1", "wal2json-v2"):
        (event,) = read(spark_lake, name, [transaction])
        assert event.row == {KEY: 2**53 + 1, "amount": digits, "free": format(longer, "f")}

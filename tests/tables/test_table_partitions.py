"""Declared partitions: keys, the rows of each key, and refused declarations."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets import Lake
from lake_assets.errors import PipelineError
from lake_assets.lake import TableId
from lake_assets.tables.partitioning.partition_keys import NULL, OTHER, key_of_text, text_of_key
from lake_assets.tables.partitioning.table_partitions import Every, Partitions
from lake_assets.tables.partitioning.time_zones import check_hours, zone_of

T = TableId(("final",), "t")
START = datetime(1990, 1, 1)  # noqa: DTZ001
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "America/Havana",
    "America/Sao_Paulo",
    "Pacific/Apia",
]
OF_DAGSTER: dict[Every, Any] = {
    "hour": dg.HourlyPartitionsDefinition,
    "day": dg.DailyPartitionsDefinition,
    "month": dg.MonthlyPartitionsDefinition,
}
MOMENTS = st.datetimes(datetime(1991, 1, 1), datetime(2025, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def by_time(every: Every, zone: str = "UTC") -> Partitions:
    return Partitions("at", every, zone, START)


@pytest.mark.parametrize("every", ["hour", "day", "month"])
@pytest.mark.parametrize("zone", ZONES)
def test_a_moment_has_the_key_that_dagster_gives_it(every: Every, zone: str) -> None:
    theirs = OF_DAGSTER[every](start_date=START, timezone=zone)
    ours, choose = by_time(every, zone), random.Random(zone)
    moments = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=choose.randrange(600_000)) for _ in range(30)]
    # The hours around each change of the clock, and both ends of partitions.
    for at in _changes(zone):
        moments += [at + timedelta(minutes=m) for m in (-121, -61, -60, -1, 0, 1, 29, 30, 59, 60, 61, 119, 120)]
    for at in moments:
        key = ours.key_of(at)
        assert key == theirs.get_partition_key_for_timestamp(at.timestamp()), at
        window = theirs.time_window_for_partition_key(key)
        low, high = ours._window(str(key), "timestamp")
        assert low.timestamp() <= at.timestamp() < high.timestamp()
        assert window.start.timestamp() <= at.timestamp() < window.end.timestamp()


def _changes(zone: str) -> list[datetime]:
    tz, moments = zone_of(zone), list[datetime]()
    at = datetime(2011, 1, 1, tzinfo=UTC)
    while at < datetime(2012, 12, 31, tzinfo=UTC):
        later = at + timedelta(hours=1)
        if at.astimezone(tz).utcoffset() != later.astimezone(tz).utcoffset():
            moments.append(later)
        at = later
    return moments


@settings(max_examples=300)
@given(at=MOMENTS, zone=st.sampled_from(ZONES), every=st.sampled_from(["hour", "day", "month"]))
def test_a_moment_lies_in_the_window_of_its_key_and_in_no_other(at: datetime, zone: str, every: Every) -> None:
    partitions = by_time(every, zone)
    low, high = partitions._window(str(partitions.key_of(at)), "timestamp")
    assert low <= at < high
    for edge in (low, high - timedelta(microseconds=1)):
        assert partitions.key_of(edge) == partitions.key_of(at)
    assert partitions.key_of(high) != partitions.key_of(at)
    assert partitions.key_of(low - timedelta(microseconds=1)) != partitions.key_of(at)


@given(text=st.text(max_size=8) | st.sampled_from(["...", "....", "__other__", "__null__", "%", "a,b", '"', ""]))
def test_a_text_and_its_key_stand_for_each_other(text: str) -> None:
    key = key_of_text(text)
    assert text_of_key(key) == text
    assert key not in (OTHER, NULL, "")
    assert not any(s in key for s in ["...", "\a", "\b", "\f", "\n", "\r", "\t", "\v", "\0", ","])


def test_dates_and_wall_clocks_have_the_key_that_they_say() -> None:
    for zone in ZONES:
        assert by_time("day", zone).key_of(date(2024, 3, 31)) == "2024-03-31"
        assert by_time("day", zone).key_of(datetime(2024, 3, 31, 2, 30)) == "2024-03-31"  # noqa: DTZ001
        assert by_time("month", zone).key_of(date(2024, 3, 31)) == "2024-03-01"
    assert by_time("day").key_of(None) is None


def test_values_have_keys() -> None:
    some, all_ = Partitions("c", values=("de", "fr")), Partitions("c")
    assert [some.key_of(v) for v in ("de", "us", None)] == ["de", OTHER, OTHER]
    assert [all_.key_of(v) for v in ("de", "", None, 7, True, date(2024, 1, 2))] == [
        "de", "%", NULL, "7", "true", "2024-01-02"
    ]  # fmt: skip


TYPES = {"id": "int", "at": "timestamp", "wall": "timestamp_ntz", "day": "date", "c": "string", "x": "double"}


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (Partitions("nowhere"), "names nowhere, and the table has id"),
        (Partitions("c", "day", start=START), "`every: day` is for dates and timestamps, and c is string"),
        (Partitions("day", "hour", start=START), "day is a date"),
        (Partitions("wall", "hour", "Europe/Berlin", START), "one hour occurs twice"),
        (Partitions("at"), "declare `every`"),
        (Partitions("x"), "x is double"),
        (Partitions("id", values=("1", "x")), "'x', and id is int"),
        (Partitions("day", values=("2024-1-1",)), "'2024-1-1', and day is date"),
    ],
)
def test_what_does_not_go_with_the_table_is_named(partitions: Partitions, message: str) -> None:
    with pytest.raises(PipelineError, match="final.t: `partitions`") as error:
        partitions.check(T, TYPES)
    assert message in str(error.value)


def test_what_goes_with_the_table_passes() -> None:
    for fine in (
        Partitions("at", "hour", "Europe/Berlin", START),
        Partitions("wall", "hour", "UTC", START),
        Partitions("wall", "day", "Europe/Berlin", START),
        Partitions("day", "month", start=START),
        Partitions("id", values=("1", "-2")),
        Partitions("c"),
    ):
        fine.check(T, TYPES)


def test_hours_that_overlap_are_refused() -> None:
    with pytest.raises(PipelineError, match="less than an hour"):
        check_hours("Australia/Lord_Howe")
    check_hours("Asia/Kolkata")


@pytest.mark.parametrize(
    ("partitions", "kind", "aligned"),
    [
        (by_time("day"), "timestamp", True),
        (by_time("day", "Etc/UTC"), "timestamp", True),
        (by_time("day", "Europe/Berlin"), "timestamp", False),
        (by_time("day", "Asia/Kolkata"), "timestamp", False),
        (by_time("day", "Europe/Berlin"), "date", True),
        (Partitions("c"), "string", True),
    ],
)
def test_icebergs_partitions_are_those_of_utc(partitions: Partitions, kind: str, aligned: bool) -> None:
    assert partitions.is_aligned(kind) == aligned


@pytest.mark.long
def test_a_condition_selects_the_rows_of_its_keys_and_no_others(spark_lake: Lake) -> None:
    spark, choose = spark_lake.spark(), random.Random(4)
    first = datetime(2024, 10, 26, 20, tzinfo=UTC)
    moments = [first + timedelta(minutes=choose.randrange(3000)) for _ in range(40)]
    rows = [
        (
            i,
            at,
            at.replace(tzinfo=None),
            at.date(),
            choose.choice(["de", "fr", "it's", "__other__", "", "a...b"]),
            i % 3,
        )
        for i, at in enumerate(moments)
    ] + [(99, None, None, None, None, None)]
    schema = "id INT, at TIMESTAMP, wall TIMESTAMP_NTZ, day DATE, c STRING, n INT"
    frame = spark.createDataFrame(rows, schema)
    kinds = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    for partitions in (
        by_time("day", "Europe/Berlin"),
        by_time("hour", "Europe/Berlin"),
        by_time("month", "Asia/Kolkata"),
        Partitions("wall", "day", "Europe/Berlin", START),
        Partitions("day", "month", "Europe/Berlin", START),
        Partitions("c"),
        Partitions("c", values=("de", "it's")),
        Partitions("n"),
        Partitions("n", values=("1",)),
    ):
        column = frame.columns.index(partitions.by)
        by_id = {r[0]: partitions.key_of(r[column]) for r in rows}
        keys = sorted({k for k in by_id.values() if k is not None})
        for chosen in ([keys[0]], keys[-2:], keys[::2], keys):
            selected = {r.id for r in frame.where(partitions.condition(chosen, kinds[partitions.by])).collect()}
            assert selected == {i for i, k in by_id.items() if k in chosen}, (partitions, chosen)
        assert not frame.where(partitions.condition([], kinds[partitions.by])).count()


def test_partitions_end_where_it_is_declared() -> None:
    ended = Partitions("at", "month", "Europe/Berlin", START, end=datetime(2024, 4, 1))  # noqa: DTZ001
    theirs = OF_DAGSTER["month"](start_date=START, end_date=ended.end, timezone="Europe/Berlin", end_offset=1)
    assert ended.keys_between("2024-02-01", "2024-03-31") == ["2024-02-01", "2024-03-01"]
    assert theirs.get_last_partition_key() == "2024-03-01"
    assert [ended.is_after(key) for key in ("2024-03-01", "2024-04-01")] == [False, True]
    assert ended.text != by_time("month", "Europe/Berlin").text
    with pytest.raises(PipelineError, match="2024-04-01 is after the last partition, which ends at 2024-04-01"):
        ended.keys_between("2024-03-01", "2024-04-01")

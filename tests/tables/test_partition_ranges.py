"""Ranges from A to B: both ends included, also where a local hour is missing or occurs twice, and of times in any form."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import dagster as dg
import pytest

from lake_assets import Lake
from lake_assets.backfill.row_selection import _between  # pyright: ignore[reportPrivateUsage]
from lake_assets.tables.partitioning.table_partitions import Every, Partitions

OF_DAGSTER: dict[Every, Any] = {
    "hour": dg.HourlyPartitionsDefinition,
    "day": dg.DailyPartitionsDefinition,
    "month": dg.MonthlyPartitionsDefinition,
}


def partitions(every: Every, zone: str, start: str) -> Partitions:
    return Partitions("at", every, zone, datetime.fromisoformat(start))


@pytest.mark.parametrize("every", ["hour", "day", "month"])
@pytest.mark.parametrize(
    ("zone", "start", "end"),
    [
        ("Europe/Berlin", "2024-03-01", "2024-04-02"),
        ("Europe/Berlin", "2024-10-01", "2024-11-02"),
        ("America/Sao_Paulo", "2018-02-01", "2018-03-02"),
        ("America/Sao_Paulo", "2018-11-01", "2018-12-02"),  # a midnight that does not exist
        ("Africa/Cairo", "2023-04-01", "2023-05-02"),
        ("Asia/Beirut", "2023-03-01", "2023-04-05"),
        ("America/Havana", "2024-11-01", "2024-12-05"),
        ("Asia/Kolkata", "2024-01-01", "2024-02-02"),
    ],
)
def test_a_range_has_the_keys_that_dagster_has(every: Every, zone: str, start: str, end: str) -> None:
    first, last = datetime.fromisoformat(start), datetime.fromisoformat(end).replace(day=1)
    keys = OF_DAGSTER[every](start_date=first, end_date=last, timezone=zone).get_partition_keys()
    ours = partitions(every, zone, start)
    assert ours.keys_between(keys[0], keys[-1]) == keys
    for n in range(0, len(keys), 7 if every == "hour" else 1):
        assert ours.keys_between(keys[n], keys[-1]) == keys[n:]


def test_an_hour_that_occurs_twice_is_in_a_range_twice_unless_its_key_says_which() -> None:
    hours = partitions("hour", "Europe/Berlin", "2024-01-01")
    two, three = "2024-10-27-02:00", "2024-10-27-03:00"
    assert hours.keys_between(two, two) == [two, f"{two}+0100"]
    assert hours.keys_between(f"{two}+0100", three) == [f"{two}+0100", three]
    assert hours.keys_between(f"{two}+0200", f"{two}+0200") == [two]


def test_a_day_as_the_end_of_a_range_of_hours_is_the_whole_day() -> None:
    hours = partitions("hour", "UTC", "2024-01-01")
    assert hours.keys_between("2024-01-31", "2024-01-31") == [f"2024-01-31-{h:02}:00" for h in range(24)]
    assert hours.keys_between("2024-01-31", "2024-01-31T01:30") == ["2024-01-31-00:00", "2024-01-31-01:00"]


def test_a_day_as_the_end_of_a_range_of_a_column_is_the_whole_day(spark_lake: Lake) -> None:
    inside = ["2024-01-01 00:00:00", "2024-01-31 00:00:00", "2024-01-31 23:59:59.999999"]
    outside = ["2023-12-31 23:59:59.999999", "2024-02-01 00:00:00"]
    for kind, given in {
        "timestamp": [inside, outside],
        "timestamp_ntz": [inside, outside],
        "date": [["2024-01-01", "2024-01-31"], ["2023-12-31", "2024-02-01"]],
        "string": [[*inside, "2024-01-31", "2024-01-31T23:59Z"], [*outside, "2024-02-01T00:00"]],
    }.items():
        values = ", ".join(f"(CAST('{v}' AS {kind}))" for v in (*given[0], *given[1]))
        condition = _between("at", kind, "2024-01-01", "2024-01-31")
        rows = spark_lake.spark().sql(f"SELECT CAST(at AS STRING) FROM VALUES {values} AS t(at) WHERE {condition}")
        assert rows.count() == len(given[0]), kind

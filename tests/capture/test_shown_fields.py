"""Fields of a capture as people read them; no test needs files or Spark."""

from __future__ import annotations

from datetime import date
from typing import Any, cast

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestampType

from lake_assets.capture.field_ranges import FieldRange
from lake_assets.capture.files.manifests import Entry
from lake_assets.capture.shown_fields import by_meaning, partition_values

SCHEMA = Schema(
    NestedField(1, "_sequence", LongType()),
    NestedField(2, "note", StringType()),
    NestedField(3, "id", LongType(), required=True),
    NestedField(4, "unknown", StringType()),
    NestedField(5, "changed_at", TimestampType()),
    NestedField(6, "country", StringType()),
    NestedField(7, "empty", StringType()),
    NestedField(8, "day", DateType()),
    identifier_field_ids=[3],
)


def partitioned(column: str, transform: Transform[Any, Any]) -> PartitionSpec:
    return PartitionSpec(PartitionField(SCHEMA.find_field(column).field_id, 1000, transform, "part"))


def test_the_fields_that_tell_people_most_come_first() -> None:
    known = FieldRange(1, 2, exact=True, nulls=False)
    unknown = FieldRange(None, None, exact=False, nulls=True)
    none = FieldRange(None, None, exact=True, nulls=True, has_values=False)
    ranges = {f.name: {"unknown": unknown, "empty": none}.get(f.name, known) for f in SCHEMA.fields}
    assert by_meaning(ranges, SCHEMA, partitioned("country", IdentityTransform())) == [
        "country", "changed_at", "day", "id", "note", "empty", "_sequence", "unknown"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "transform", "stored", "shown"),
    [
        ("changed_at", YearTransform(), 43, "2013"),
        ("changed_at", MonthTransform(), 518, "2013-03"),
        ("changed_at", DayTransform(), 15_765, "2013-03-01"),
        ("changed_at", HourTransform(), 378_360, "2013-03-01-00"),
        ("day", MonthTransform(), 518, "2013-03"),
        ("day", IdentityTransform(), 15_765, date(2013, 3, 1)),
        ("country", IdentityTransform(), "de", "de"),
        ("id", BucketTransform(16), 7, 7),
        ("changed_at", MonthTransform(), None, None),
    ],
)
def test_a_partition_is_shown_as_people_write_it(
    column: str, transform: Transform[Any, Any], stored: object, shown: object
) -> None:
    entry = Entry(cast(Any, None), {}, {"data_file": {"partition": {"part": stored}}}, complete=True)
    assert partition_values(entry, partitioned(column, transform), SCHEMA) == {"part": shown}

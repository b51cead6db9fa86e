"""What differs in each partition, compared with counting the rows of both sides plainly."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from lake_assets import Lake
from lake_assets.backfill.changed_partitions import PartitionDifference, partition_differences
from lake_assets.capture.rows.value_differences import SIGN
from lake_assets.pipeline.paired_rows import changed_rows
from lake_assets.tables.partitioning.table_partitions import Partitions

SCHEMA = "id INT, at TIMESTAMP, city STRING, n INT"
BY = {
    "days elsewhere": Partitions("at", "day", "America/New_York", datetime(2020, 1, 1)),  # noqa: DTZ001 (wall clock)
    "values": Partitions("city"),
    "some values": Partitions("city", values=("a", "b")),
}
Row = tuple[int, datetime | None, str | None, int]


def some_rows(seed: int) -> tuple[list[Row], list[Row]]:
    """Return rows before and after: some are new, removed, changed, moved to another partition, or the same."""
    choose = random.Random(seed)

    def row(id_: int) -> Row:
        at = datetime(2024, 3, 9, tzinfo=UTC) + timedelta(hours=choose.randrange(96))
        return id_, choose.choice([at, at, None]), choose.choice(["a", "b", "c", "it's", None]), choose.randrange(3)

    before = [row(n) for n in range(40)]
    after = [choose.choice([r, r, (*r[:3], r[3] + 1), row(r[0])]) for r in before[:35]] + [
        row(n) for n in range(40, 45)
    ]
    return before, after


def plainly(before: list[Row], after: list[Row], by: Partitions) -> set[PartitionDifference]:
    keys = [{r[0]: by.key_of(r[1] if by.by == "at" else r[2]) for r in rows} for rows in (before, after)]
    old, new = ({r[0]: r for r in rows} for rows in (before, after))
    counts: dict[str | None, list[int]] = {}
    for id_ in {i for i in old.keys() | new.keys() if old.get(i) != new.get(i)}:
        was, is_ = ({of[id_]} if id_ in of else set() for of in keys)
        for key in was | is_:
            n = counts.setdefault(key, [0, 0, 0])
            n[0 if key not in was else 1 if key not in is_ else 2] += 1
    rows = [Counter(of.values()) for of in keys]
    return {PartitionDifference(key, *n, (rows[0][key], rows[1][key])) for key, n in counts.items()}


@pytest.mark.parametrize(
    "by", [pytest.param(by, id=n, marks=pytest.mark.long if n != "values" else ()) for n, by in BY.items()]
)
def test_rows_of_each_partition_before_and_after(spark_lake: Lake, by: Partitions) -> None:
    spark = spark_lake.spark()
    before, after = some_rows(1)
    frames = [spark.createDataFrame(rows, SCHEMA) for rows in (before, after)]
    signed = frames[0].selectExpr("*", f"-1 AS {SIGN}").unionAll(frames[1].selectExpr("*", f"1 AS {SIGN}"))
    changed = changed_rows(signed, frames[0].columns, ["id"])
    found = partition_differences(changed, by, frames[0].where)
    assert set(found) == plainly(before, after, by)
    assert len(found) == len(set(found))
    assert {p.rows for p in partition_differences(changed, by, None)} == {(None, None)}

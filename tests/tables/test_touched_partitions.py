"""Partitions touched by commits, according to metadata: exactly the partitions of changed rows."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lake_assets import Lake
from lake_assets.capture import FieldRange
from lake_assets.lake import TableId
from lake_assets.tables.partitioning.partition_changes import PartitionChange, counted, keys_in, partition_changes
from lake_assets.tables.partitioning.partition_keys import OTHER
from lake_assets.tables.partitioning.table_partitions import Partitions
from tests.support.seeds import seeds

T = TableId(("final",), "t")
START = datetime(2024, 1, 1)  # noqa: DTZ001
DECLARED = {
    "days of Berlin": Partitions("at", "day", "Europe/Berlin", START),
    "days of UTC": Partitions("at", "day", "UTC", START),
    "months of India": Partitions("at", "month", "Asia/Kolkata", START),
    "hours of Berlin": Partitions("at", "hour", "Europe/Berlin", START),
    "values": Partitions("c"),
    "some values": Partitions("c", values=("x",)),
}
MOMENT = "CAST(timestamp_seconds(1729893600 + {n} * 5400) AS TIMESTAMP)"


def statement(choose: random.Random) -> str:
    """Return a random statement that changes the table; written rows differ from earlier ones."""
    id_, n, c = choose.randrange(30), choose.randrange(60), choose.choice(["'x'", "'y'", "''", "NULL", "'a,b'"])
    at = choose.choice([MOMENT.format(n=n)] * 6 + ["NULL"])
    return choose.choice(
        [
            f"INSERT INTO final.t VALUES ({id_}, {at}, {c}, {n}), ({id_ + 30}, {MOMENT.format(n=n + 1)}, {c}, {n})",
            f"DELETE FROM final.t WHERE id = {id_}",
            f"DELETE FROM final.t WHERE at < {MOMENT.format(n=choose.randrange(6))}",
            f"UPDATE final.t SET v = v + 1 WHERE id BETWEEN {id_} AND {id_ + 2}",
            f"UPDATE final.t SET at = {at}, v = v + 1 WHERE id = {id_}",
            f"UPDATE final.t SET c = {c}, v = v + 1 WHERE id = {id_}",
            "CALL lake.system.rewrite_data_files(table => 'final.t', options => map('rewrite-all', 'true'))",
        ]
    )


def rows(lake: Lake) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(r) for r in lake.spark().table("final.t").collect())


def keys(by: Partitions, changed: Counter[tuple[Any, ...]]) -> Counter[str | None]:
    counts: Counter[str | None] = Counter()
    for row, n in changed.items():
        value = row[1] if by.by == "at" else row[2]
        counts[by.key_of(value.replace(tzinfo=UTC) if isinstance(value, datetime) else value)] += n
    return counts


def check(lake: Lake, seed: int, name: str, mode: str, steps: int) -> None:
    choose, by, sql = random.Random(seed), DECLARED[name], lake.spark().sql
    lake.ensure_namespace(("final",))
    modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
    # Some files are older than the partitions.
    early = choose.random() < 0.3
    field = "" if early else f"PARTITIONED BY ({by.field.sql})"
    sql(f"CREATE TABLE final.t (id INT, at TIMESTAMP, c STRING, v INT) USING iceberg {field} "
        f"TBLPROPERTIES ('format-version' = '3', {modes})")  # fmt: skip
    sql("INSERT INTO final.t SELECT CAST(id AS INT), timestamp_seconds(1729893600 + id * 9000), "
        "element_at(array('x', 'y', NULL), CAST(id % 3 + 1 AS INT)), 0 FROM range(40)")  # fmt: skip
    if early:
        sql(f"ALTER TABLE final.t ADD PARTITION FIELD {by.field.sql}")
    assert set(partition_changes(lake, T, by, None)) == set(keys(by, rows(lake)))
    history: list[str] = []
    for _ in range(steps):
        start = lake.table(T).metadata.current_snapshot_id
        came, went, count = Counter[str | None](), Counter[str | None](), choose.choice([1, 1, 2, 3])
        for _ in range(count):
            before = rows(lake)
            history.append(statement(choose))
            sql(history[-1])
            now = rows(lake)
            came, went = came + keys(by, now - before), went + keys(by, before - now)
        changes = partition_changes(lake, T, by, start)
        assert set(changes) == set(came | went), (name, mode, history)
        for key, part in changes.items():
            assert part.came in (None, came[key]), (key, history)
            assert part.went in (None, went[key]), (key, history)
        if mode == "merge-on-read" and by.every is None and not early:
            # Metadata was sufficient, so the counts are known.
            assert all(None not in (p.came, p.went, p.files) for p in changes.values())


@pytest.mark.parametrize(
    ("name", "mode", "seed"),
    [
        ("days of Berlin", "merge-on-read", 1),
        pytest.param("values", "merge-on-read", 2, marks=pytest.mark.long),
        pytest.param("days of UTC", "copy-on-write", 3, marks=pytest.mark.long),
    ],
)
def test_random_histories(lake: Lake, name: str, mode: str, seed: int) -> None:
    check(lake, seed, name, mode, 3 if seed == 1 else 5)


def test_a_run_without_a_session_starts_one_for_the_rows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What marks partitions that an earlier run left unmarked has absorbed nothing, so nothing has started Spark."""
    sql, by = lake.spark().sql, DECLARED["days of Berlin"]
    lake.ensure_namespace(("final",))
    sql("CREATE TABLE final.t (id INT, at TIMESTAMP, c STRING, v INT) USING iceberg")
    # Two days in one file, which its metadata do not tell from three.
    sql("INSERT INTO final.t SELECT /*+ COALESCE(1) */ CAST(id AS INT), timestamp_seconds(1729893600 + id * 200000), "
        "'x', 0 FROM range(2)")  # fmt: skip
    expected = partition_changes(lake, T, by, None)
    spark, started = lake.spark(), SparkContext._active_spark_context

    def start() -> SparkSession:
        monkeypatch.setattr(SparkContext, "_active_spark_context", started)
        return spark

    monkeypatch.setattr(lake, "spark", start)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    assert partition_changes(lake, T, by, None) == expected
    assert len(expected) == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(20, 1))
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("name", list(DECLARED))
def test_many_random_histories(lake: Lake, name: str, mode: str, seed: int) -> None:
    check(lake, seed, name, mode, 25)


def moment(day: int, hour: int) -> datetime:
    return datetime(2024, 5, day, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "range_", "expected"),
    [
        ("days of UTC", FieldRange(moment(1, 0), moment(1, 23), True, False), {"2024-05-01"}),
        ("days of Berlin", FieldRange(moment(1, 0), moment(1, 21), True, False), {"2024-05-01"}),
        # 22:00 UTC is midnight in Berlin.
        ("days of Berlin", FieldRange(moment(1, 0), moment(1, 22), True, False), None),
        ("days of UTC", FieldRange(moment(1, 0), moment(1, 23), True, True), None),
        ("days of UTC", FieldRange(None, moment(1, 23), False, False), None),
        ("days of UTC", FieldRange(None, None, True, True, has_values=False), {None}),
        ("days of UTC", FieldRange(None, None, True, False, has_values=False), set()),
        ("values", FieldRange("x", "x", True, False), {"x"}),
        ("values", FieldRange("x", "x", False, False), None),
        ("values", FieldRange("x", "y", True, False), None),
        ("some values", FieldRange("y", "y", True, True), {OTHER}),
    ],
)
def test_a_file_has_a_key_where_all_that_it_may_hold_has_it(
    name: str, range_: FieldRange, expected: set[str | None] | None
) -> None:
    assert keys_in(DECLARED[name], range_) == expected


@pytest.mark.parametrize(
    ("part", "updated", "expected"),
    [
        (PartitionChange(3, 1), 0, {"rows_inserted": 3, "rows_updated": 0, "rows_deleted": 1}),
        (PartitionChange(3, 1), 1, {}),
        (PartitionChange(3, 0), 1, {"rows_deleted": 0}),
        (PartitionChange(0, 2), 1, {"rows_inserted": 0}),
        (PartitionChange(None, None, None, None), 0, {}),
    ],
)
def test_what_is_not_known_of_a_partition_is_not_said(
    part: PartitionChange, updated: int, expected: dict[str, int]
) -> None:
    assert counted(part, updated) == expected

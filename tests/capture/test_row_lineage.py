"""Captures of format v3 tables: row lineage identifies rows and their versions."""

from __future__ import annotations

import itertools

import pytest

from lake_assets import Lake
from tests.support.capture_oracle import assert_exact, changes, snapshots


def make(lake: Lake, table: str, mode: str, *, partitioned: bool = False) -> str:
    part = "PARTITIONED BY (g)" if partitioned else ""
    lake.spark().sql(
        f"CREATE TABLE {lake.sql_name(table)} (id BIGINT, g INT, v STRING, x DOUBLE) USING iceberg {part} TBLPROPERTIES "
        f"('format-version'='3','write.merge.mode'='{mode}','write.update.mode'='{mode}','write.delete.mode'='{mode}')"
    )
    return table


def sql(lake: Lake, text: str, table: str) -> int:
    lake.spark().sql(text.format(t=lake.sql_name(table), n=table))
    current = lake.table(table).current_snapshot()
    assert current is not None
    return current.snapshot_id


MERGE = """MERGE INTO {t} t USING (SELECT * FROM VALUES (3, 0, 'merged', 1.5D), (100, 1, 'new', 2.5D) AS s(id, g, v, x)) s
ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""

HISTORY = [
    "INSERT INTO {t} SELECT id, CAST(id % 3 AS INT), CAST(id AS STRING), CAST(id AS DOUBLE) FROM range(20)",
    "INSERT INTO {t} SELECT id, CAST(id % 3 AS INT), NULL, CAST('NaN' AS DOUBLE) FROM range(20, 30)",
    MERGE,
    "UPDATE {t} SET v = 'u' WHERE id IN (4, 21)",
    "DELETE FROM {t} WHERE id IN (5, 22)",
    "CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all','true'))",
    "UPDATE {t} SET g = g + 1 WHERE id % 7 = 0",
    "CALL lake.system.rewrite_manifests('{n}')",
    "DELETE FROM {t} WHERE g = 1",
    "INSERT OVERWRITE {t} SELECT id, 2, 'o', 0.0D FROM range(50, 55)",
    "INSERT INTO {t} VALUES (1, 0, 'again', -0.0D), (1, 0, 'again', -0.0D)",
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "partitioned"),
    [
        pytest.param("copy-on-write", True, marks=pytest.mark.long),
        ("merge-on-read", False),
        pytest.param("copy-on-write", False, marks=pytest.mark.long),
        pytest.param("merge-on-read", True, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every"])
def test_windows_of_a_history_are_exact(lake: Lake, namespace: str, mode: str, partitioned: bool, every: bool) -> None:
    table = make(lake, f"{namespace}.t", mode, partitioned=partitioned)
    for text in HISTORY:
        sql(lake, text, table)
    points = [None, *snapshots(lake, table)]
    for start, end in itertools.combinations(range(len(points)), 2):
        if every or (end - start) in {1, len(points) - 1}:
            assert_exact(lake, table, points[start], points[end])


def test_compaction_emits_nothing(lake: Lake, namespace: str) -> None:
    table = make(lake, f"{namespace}.t", "merge-on-read")
    for text in HISTORY[:5]:
        before = sql(lake, text, table)
    after = sql(lake, HISTORY[5], table)
    assert before != after
    assert lake.capture(table, before).is_empty
    more = sql(lake, "INSERT INTO {t} VALUES (7, 7, 'x', 1.0D)", table)
    with lake.capture(table, before, more) as capture:
        assert [r.id for r in capture.feed(lake.spark()).collect()] == [7]


def test_an_update_is_a_pair(lake: Lake, namespace: str) -> None:
    table = make(lake, f"{namespace}.t", "copy-on-write")
    start = sql(lake, HISTORY[0], table)
    sql(lake, MERGE, table)
    with lake.capture(table, start) as capture:
        rows = {(r["_change_type"], r["id"], r["v"]) for r in capture.feed(lake.spark()).collect()}
    assert rows == {("update_before", 3, "3"), ("update_after", 3, "merged"), ("insert", 100, "new")}


@pytest.mark.long  # as the windows of a history
@pytest.mark.parametrize("mode", [pytest.param("copy-on-write", marks=pytest.mark.long), "merge-on-read"])
def test_a_rollback_is_undone(lake: Lake, namespace: str, mode: str) -> None:
    table = make(lake, f"{namespace}.t", mode)
    ids = [sql(lake, text, table) for text in HISTORY[:5]]
    lake.spark().sql(f"CALL lake.system.rollback_to_snapshot('{table}', {ids[1]})")
    capture = assert_exact(lake, table, ids[4])
    assert not capture.window.is_forward
    other = sql(lake, "UPDATE {t} SET v = 'other' WHERE id IN (4, 6)", table)
    assert_exact(lake, table, ids[4], other)
    assert_exact(lake, table, ids[1], other)
    assert_exact(lake, table, ids[3], other)


def test_nothing_happened(lake: Lake, namespace: str) -> None:
    table = make(lake, f"{namespace}.t", "copy-on-write")
    assert lake.capture(table).is_empty
    assert lake.capture(table).window.end is None
    start = sql(lake, HISTORY[0], table)
    with lake.capture(table, start) as capture:
        assert capture.is_empty
        assert capture.files == ()
        assert changes(capture.feed(lake.spark())) == ({}, {})

"""Rows rewritten without a change are no changes, whatever the writer and their row ids."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import functions as F

from lake_assets import Lake
from tests.support.capture_oracle import bag, changes, content, snapshots
from tests.support.changed_table import ROWS, History
from tests.support.iceberg_java import Java


@pytest.fixture
def dynamic(lake: Lake) -> Iterator[None]:
    lake.spark().conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    yield
    lake.spark().conf.set("spark.sql.sources.partitionOverwriteMode", "static")


def assert_minimal(lake: Lake, table: str, start: int | None, end: int | None) -> None:
    """Check that a feed is the difference of the window's ends, and upserts and keys contain only these rows."""
    spark = lake.spark()
    with lake.capture(table, start, end) as capture:
        before, after = (content(lake, table, s, capture.columns) for s in (start, capture.window.end_snapshot_id))
        assert changes(capture.feed(spark)) == (before - after, after - before)
        assert bag(capture.upserts(spark).collect()) == after - before
        keys = {r[:1] for r in (before - after) | (after - before)}
        assert set(bag(capture.keys(spark, capture.columns[:1]).collect())) == keys


@pytest.mark.long  # as updates to the same value
@pytest.mark.parametrize("mode", [pytest.param("copy-on-write", marks=pytest.mark.long), "merge-on-read"])
def test_overwritten_rows_with_equal_values_are_no_changes(
    lake: Lake, namespace: str, dynamic: None, mode: str
) -> None:
    t = History(lake, f"{namespace}.t", 3, mode, more="PARTITIONED BY (g)")
    a = t.sql(ROWS, "INSERT INTO {t} VALUES (1, 1, '1'), (1, 1, '1')")
    one_less_one_more = "SELECT DISTINCT * FROM {t} WHERE g = 1 UNION ALL SELECT 99, 1, 'new'"
    b = t.sql(f"INSERT OVERWRITE {{t}} {one_less_one_more}")
    lake.spark().conf.set("spark.sql.sources.partitionOverwriteMode", "static")
    c = t.sql(
        "INSERT OVERWRITE {t} PARTITION (g = 2) SELECT id, CASE id WHEN 2 THEN 'two' ELSE v END FROM {t} WHERE g = 2"
    )
    d = t.sql("INSERT OVERWRITE {t} SELECT id, g, v FROM {t} WHERE id <> 3 UNION ALL SELECT 4, 1, '4'")
    same = lake.spark().table(lake.sql_name(t.table)).where("g = 0").union(lake.spark().sql("SELECT 100, 0, 'h'"))
    same.cache().writeTo(lake.sql_name(t.table)).overwrite(F.col("g") == 0)
    e = snapshots(lake, t.table)[-1]
    t.sql("UPDATE {t} SET v = 'u' WHERE id = 5", "INSERT INTO {t} VALUES (5, 2, '5')")
    for start, end in ((a, b), (b, d), (d, e), (a, e)):
        assert_minimal(lake, t.table, start, end)
    t.exact((c, None))


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_key_change_is_a_delete_and_an_insert_where_keys_are_given(lake: Lake, namespace: str, version: int) -> None:
    t = History(lake, f"{namespace}.t", version, "merge-on-read")
    a = t.sql("INSERT INTO {t} VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')")
    t.sql(
        "UPDATE {t} SET id = 9 WHERE id = 1",
        "UPDATE {t} SET v = 'B' WHERE id = 2",
        "UPDATE {t} SET v = 'c'WHERE id = 3",
    )
    with lake.capture(t.table, a) as capture:
        rows = {(r["_change_type"], r["id"], r["v"]) for r in capture.feed(lake.spark(), keys=["id"]).collect()}
        events = {(r["op"], r["before"], r["after"]) for r in capture.events(lake.spark(), keys=["id"]).collect()}
    assert rows == {("delete", 1, "a"), ("insert", 9, "a"), ("update_before", 2, "b"), ("update_after", 2, "B")}
    assert events == {("d", (1, 10, "a"), None), ("c", None, (9, 10, "a")), ("u", (2, 20, "b"), (2, 20, "B"))}


@pytest.mark.parametrize("mode", [pytest.param("copy-on-write", marks=pytest.mark.long), "merge-on-read"])
def test_updates_to_the_same_value_are_no_changes(lake: Lake, namespace: str, mode: str) -> None:
    for version in (2, 3):
        t = History(lake, f"{namespace}.v{version}", version, mode)
        a = t.sql(ROWS)
        t.sql("UPDATE {t} SET v = CAST(id AS STRING) WHERE id < 6", "UPDATE {t} SET v = 'x' WHERE id = 7")
        with lake.capture(t.table, a) as capture:
            assert changes(capture.feed(lake.spark())) == (bag([(7, 1, "7")]), bag([(7, 1, "x")]))


@pytest.mark.long
def test_rows_are_identified_without_column_metrics(lake: Lake, namespace: str) -> None:
    """The reserved columns of row lineage have no counts either, though all columns of the table may have."""
    t = History(lake, f"{namespace}.t", 3, "copy-on-write")
    t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.metadata.metrics.default'='none')")
    a = t.sql(ROWS)
    per_column = ",".join(f"'write.metadata.metrics.column.{c}'='full'" for c in ("id", "g", "v"))
    b = t.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({per_column})", "UPDATE {t} SET v = 'x' WHERE id = 1")
    t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')", "DELETE FROM {t} WHERE id = 2")
    t.sql("INSERT INTO {t} VALUES (50, 0, 'x')")
    d = t.sql("UPDATE {t} SET v = 'y' WHERE id = 50")
    for start, end in ((a, b), (b, d)):
        assert_minimal(lake, t.table, start, end)


@pytest.mark.long
@pytest.mark.parametrize("keeps_sequence_number", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_compaction_that_gives_new_row_ids_changes_nothing(
    lake: Lake, namespace: str, keeps_sequence_number: bool
) -> None:
    """By an engine without row lineage. With the old sequence number, versions do not identify the new rows."""
    t = History(lake, f"{namespace}.t", 3, "merge-on-read")
    java = Java(lake)
    a = t.sql(ROWS)
    b = t.sql("DELETE FROM {t} WHERE id = 1")
    c = java.rewrite_without_row_ids(t.table, keeps_sequence_number=keeps_sequence_number)
    d = t.sql("DELETE FROM {t} WHERE id = 2")
    e = t.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.update.mode'='copy-on-write')", "UPDATE {t} SET v = 'x' WHERE id = 3"
    )
    f = t.sql("CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))")
    assert lake.capture(t.table, b, c).is_empty
    for start, end in ((b, d), (c, e), (a, f)):
        assert_minimal(lake, t.table, start, end)


@pytest.mark.long  # as a compaction that gives new ones
def test_a_merge_on_read_commit_that_gives_new_row_ids(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 3, "merge-on-read")
    a = t.sql(ROWS)
    rows = [{"id": i, "g": i % 3, "v": "new" if i == 4 else str(i)} for i in (3, 4, 5)]
    b = Java(lake).delete_where_equal(t.table, [{"id": r["id"]} for r in rows], rows)
    c = t.sql("UPDATE {t} SET v = 'u' WHERE id = 5")
    assert_minimal(lake, t.table, a, b)
    t.exact((a, c))


@pytest.mark.long
def test_v2_files_rewritten_after_an_upgrade(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 2, "merge-on-read")
    a = t.sql(ROWS)
    b = t.sql("DELETE FROM {t} WHERE id = 1")
    c = t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')", "INSERT INTO {t} VALUES (50, 0, 'x')")
    d = Java(lake).rewrite_without_row_ids(t.table, keeps_sequence_number=True)
    e = t.sql("DELETE FROM {t} WHERE id IN (2, 50)")
    f = t.sql("UPDATE {t} SET v = 'y' WHERE id = 4")
    t.exact((b, d), (c, e), (a, f))


@pytest.mark.long  # as mixed writers
def test_deletes_of_pyiceberg_whose_deleted_entries_have_other_snapshot_ids(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 2, "merge-on-read")
    a = t.sql(ROWS)
    lake.table(t.table).delete("id = 3")
    b = t.sql("DELETE FROM {t} WHERE id = 4")
    lake.table(t.table).overwrite(lake.table(t.table).scan().to_arrow().slice(0, 8))
    for start, end in ((a, b), (b, None)):
        assert_minimal(lake, t.table, start, end)


RESTORED = {
    "overwritten": ("INSERT OVERWRITE {t} VALUES (100, 1, 'other'), (3, 0, '3')", True),
    "overwritten, without metrics": ("INSERT OVERWRITE {t} VALUES (100, 1, 'other'), (3, 0, '3')", False),
    "deleted": ("DELETE FROM {t} WHERE id = 3", True),
    "updated": ("UPDATE {t} SET v = 'c' WHERE id = 5", True),
}


@pytest.mark.parametrize(
    ("done", "with_metrics"),
    [
        pytest.param(*done, id=name, marks=() if name == "updated" else pytest.mark.long)
        for name, done in RESTORED.items()
    ],
)
def test_files_that_a_new_commit_restores(lake: Lake, namespace: str, done: str, with_metrics: bool) -> None:
    """Rows are restored with the ids and versions from before the window."""
    t = History(lake, f"{namespace}.t", 3)
    b = t.sql(ROWS, "UPDATE {t} SET v = 'b' WHERE id IN (1, 2)")
    assert b is not None
    c = t.sql(done)
    d = Java(lake).restore(t.table, b, with_metrics=with_metrics)
    assert_minimal(lake, t.table, c, d)


@pytest.mark.long
def test_deletion_vectors_that_a_new_commit_removes(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 3, "merge-on-read")
    a = t.sql(ROWS, "DELETE FROM {t} WHERE id IN (1, 2)")
    b = t.sql("INSERT INTO {t} VALUES (50, 0, 'x')", "DELETE FROM {t} WHERE id = 3")
    c = Java(lake).remove_deletes(t.table)
    for start in (a, b):
        assert_minimal(lake, t.table, start, c)

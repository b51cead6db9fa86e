"""Row counts from snapshot summaries, without deleted rows."""

from __future__ import annotations

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from lake_assets import Lake
from lake_assets.lake.metadata.row_counts import row_count, rows_added_and_deleted
from lake_assets.tables.writing.commit_counts import count_properties, counts


def snapshot(**properties: int | str) -> Snapshot:
    summary = Summary(Operation.OVERWRITE, **{k.replace("_", "-"): str(v) for k, v in properties.items()})
    return Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="x", summary=summary)


@pytest.mark.parametrize(
    ("summary", "added", "deleted"),
    [
        ({"added_records": 5}, 5, 0),
        # Three deletion vectors of ten rows each are removed with the files of 45 rows.
        ({"added_records": 15, "deleted_records": 45, "removed_position_deletes": 30}, 15, 15),
        # A vector with five rows replaces one with three.
        ({"added_position_deletes": 5, "removed_position_deletes": 3}, 0, 2),
        ({"added_records": 2, "added_position_deletes": 2}, 2, 2),
        ({"removed_position_deletes": 3}, 0, 0),
    ],
)
def test_rows_deleted_before_are_not_counted_again(summary: dict[str, int], added: int, deleted: int) -> None:
    assert rows_added_and_deleted(snapshot(**summary)) == (added, deleted)
    assert counts(snapshot(**summary)) == (added, 0, deleted)


def test_counts_reported_by_a_commit_have_precedence() -> None:
    assert counts(snapshot(added_records=9, deleted_records=9, **count_properties(1, 2, 3))) == (1, 2, 3)


def test_counts_of_recomputes_and_tables_equal_the_rows(lake: Lake) -> None:
    lake.ensure_namespace(("final",))
    spark = lake.spark()
    spark.sql(
        "CREATE TABLE final.t (id INT, n INT) USING iceberg TBLPROPERTIES ('format-version'='3', "
        "'write.update.mode'='merge-on-read', 'write.delete.mode'='merge-on-read')"
    )
    spark.sql("INSERT INTO final.t SELECT id, 0 FROM range(16)")
    for n in (1, 2):
        spark.sql(f"UPDATE final.t SET n = {n}")
        assert counts(lake.table("final.t").current_snapshot()) == (16, 0, 16)
        assert row_count(lake.table("final.t")) == 16
    spark.sql("DELETE FROM final.t WHERE id = 3")
    assert counts(lake.table("final.t").current_snapshot()) == (0, 0, 1)
    assert row_count(lake.table("final.t")) == 15
    spark.sql("INSERT OVERWRITE final.t SELECT id, 7 FROM range(4)")
    assert counts(lake.table("final.t").current_snapshot()) == (4, 0, 15)
    assert row_count(lake.table("final.t")) == spark.table("final.t").count() == 4

"""granularity="snapshot": every snapshot's own changes, including changes that a later one reverted."""

from __future__ import annotations

from collections import Counter

import pytest

from lake_assets import Lake
from lake_assets.errors import NotAnAncestorError, SnapshotExpiredError
from tests.support.capture_oracle import snapshots


def sql(lake: Lake, table: str, *statements: str) -> list[int]:
    for text in statements:
        lake.spark().sql(text.format(t=lake.sql_name(table), n=table))
    return snapshots(lake, table)


CREATE = "CREATE TABLE {t} (id INT, v STRING) USING iceberg TBLPROPERTIES ('format-version'='%d')"


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_restored_row_shows_every_change(lake: Lake, namespace: str, version: int) -> None:
    table = f"{namespace}.t"
    ids = sql(
        lake,
        table,
        CREATE % version,
        "INSERT INTO {t} VALUES (1, 'a'), (2, 'a')",
        "UPDATE {t} SET v = 'b' WHERE id = 1",
        "UPDATE {t} SET v = 'a' WHERE id = 1",
        "INSERT INTO {t} VALUES (3, 'c')",
        "INSERT INTO {t} VALUES (4, 'd')",
        "CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))",
    )
    with lake.capture(table, ids[0], granularity="snapshot") as capture:
        rows = capture.feed(lake.spark(), keys=["id"]).collect()
        upserts = capture.upserts(lake.spark()).collect()
        keys = capture.keys(lake.spark(), ["id"]).collect()
    changes = Counter((ids.index(r["_commit_snapshot_id"]), r["_change_type"], r["id"], r["v"]) for r in rows)
    assert changes == {
        (1, "update_before", 1, "a"): 1,
        (1, "update_after", 1, "b"): 1,
        (2, "update_before", 1, "b"): 1,
        (2, "update_after", 1, "a"): 1,
        (3, "insert", 3, "c"): 1,
        (4, "insert", 4, "d"): 1,
    }
    points = {p.snapshot_id: p for p in capture.window.steps}
    for r in rows:
        assert r["_commit_sequence_number"] == points[r["_commit_snapshot_id"]].sequence_number
        assert r["_commit_timestamp"] == points[r["_commit_snapshot_id"]].timestamp.replace(tzinfo=None)
    assert Counter((ids.index(r["_commit_snapshot_id"]), r["id"]) for r in upserts) == {
        (1, 1): 1,
        (2, 1): 1,
        (3, 3): 1,
        (4, 4): 1,
    }
    assert {r["id"] for r in keys} == {1, 3, 4}
    with lake.capture(table, ids[1], ids[3], granularity="snapshot") as capture, capture.icdc() as tables:
        assert tables.after
    with lake.capture(table, ids[4], granularity="snapshot") as capture:
        assert capture.is_empty
        assert capture.feed(lake.spark()).columns == [
            *("id", "v", "_change_type"),
            *("_commit_snapshot_id", "_commit_sequence_number", "_commit_timestamp"),
        ]
        assert capture.feed(lake.spark()).collect() == []


def test_all_steps_must_exist(lake: Lake, namespace: str) -> None:
    table = f"{namespace}.t"
    ids = sql(lake, table, CREATE % 2, *(f"INSERT INTO {{t}} VALUES ({i}, 'a')" for i in range(4)))
    sql(lake, table, f"CALL lake.system.rollback_to_snapshot('{{n}}', {ids[1]})", "INSERT INTO {t} VALUES (9, 'x')")
    with pytest.raises(NotAnAncestorError, match="rolled back"):
        lake.capture(table, ids[3], granularity="snapshot")
    other = snapshots(lake, table)[-1]
    lake.consumers.register(table, "someone", ids[0])
    sql(lake, table, f"CALL lake.system.expire_snapshots(table => '{{n}}', snapshot_ids => ARRAY({ids[1]}))")
    with pytest.raises(SnapshotExpiredError, match="granularity='net'"):
        lake.capture(table, ids[0], other, granularity="snapshot")
    with lake.capture(table, ids[0], other) as capture:
        assert {r["id"] for r in capture.upserts(lake.spark()).collect()} == {1, 9}

"""Upkeep of tables of every shape by Iceberg's procedures: rows stay, and Iceberg does what was counted on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata.metadata_commits import commit
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.names import literal
from lake_assets.tables.upkeep_policy import DAY, DEFAULT_POLICY
from lake_assets.upkeep.attend import attend, look, needs_a_look
from lake_assets.upkeep.attended import Attended
from tests.support.iceberg_java import Java

pytestmark = pytest.mark.usefixtures("eager")
EAGER = replace(DEFAULT_POLICY, commits=3, keep=0.0, deleted_rows=0.1)
ODD = TableId(("a", "Two `levels`"), "Ünï.'code\" \\`t`")


def make(lake: Lake, name: TableId, ddl: str = "", properties: str = "'format-version' = '3'") -> str:
    lake.ensure_namespace(name.namespace[:1])
    lake.ensure_namespace(name.namespace)
    sql = lake.sql_name(name)
    location = lake.location_of(name)
    where = f"LOCATION {literal(location)}" if location else ""
    lake.spark().sql(
        f"CREATE TABLE {sql} (id INT, `a.b` STRING) USING iceberg {ddl} {where} TBLPROPERTIES ({properties}, "
        f"'{PIPELINE_PROPERTY}' = 'p', 'write.delete.mode' = 'merge-on-read')"
    )
    return sql


def rows(lake: Lake, sql: str) -> Counter[Any]:
    return Counter(tuple(r) for r in lake.spark().table(sql).collect())


def attended(lake: Lake, *names: TableId) -> list[Attended]:
    done = attend(lake, dict.fromkeys(names, EAGER), is_forced=True)
    assert [a for a in done if a.done is None or a.done.error] == []
    return done


@pytest.mark.parametrize(
    ("name", "ddl", "properties"),
    [
        (ODD, "", "'format-version' = '3'"),
        pytest.param(
            TableId(("raw",), "sorted"), "PARTITIONED BY (`a.b`)", "'format-version' = '2'", marks=pytest.mark.long
        ),
        pytest.param(TableId(("raw",), "evolved"), "", "'format-version' = '2'", marks=pytest.mark.long),
    ],
)
def test_tables_of_every_shape_keep_their_rows(lake: Lake, name: TableId, ddl: str, properties: str) -> None:
    sql, spark = make(lake, name, ddl, properties), lake.spark()
    if name.name == "sorted":
        spark.sql(f"ALTER TABLE {sql} WRITE ORDERED BY id DESC")
    for n in range(4):
        spark.sql(f"INSERT INTO {sql} SELECT id, concat('x', id % 2) FROM range({10 * n}, {10 * n + 10})")
        if name.name == "evolved" and n == 1:
            spark.sql(f"ALTER TABLE {sql} ADD PARTITION FIELD bucket(3, id)")
    spark.sql(f"DELETE FROM {sql} WHERE id % 5 = 0")
    before = rows(lake, sql)
    done = attended(lake, name)
    assert {a.action.kind for a in done} & {"combine", "deletes"}
    assert "expire" in {a.action.kind for a in done}
    assert rows(lake, sql) == before
    assert len(lake.table(name).metadata.snapshots) <= thresholds.SNAPSHOTS_KEPT
    assert look(lake, name, EAGER).due == []


def test_a_table_without_a_snapshot_has_nothing_due(lake: Lake) -> None:
    name = TableId(("raw",), "empty")
    make(lake, name)
    assert {a.action.kind for a in attended(lake, name)} <= {"orphans"}
    assert look(lake, name, EAGER).health.files == 0


def test_snapshots_expire_as_counted(lake: Lake) -> None:
    """With branches, a tag that is over, and commits that were rolled back."""
    name = TableId(("raw",), "t")
    sql, spark = make(lake, name), lake.spark()
    for n in range(12):
        spark.sql(f"INSERT INTO {sql} VALUES ({n}, 'x')")
        if n == 4:
            spark.sql(f"ALTER TABLE {sql} CREATE BRANCH mine")
        if n == 6:
            spark.sql(f"ALTER TABLE {sql} CREATE BRANCH kept WITH SNAPSHOT RETENTION 2 SNAPSHOTS 1 DAYS")
        if n == 7:
            rolled_back = lake.table(name).metadata.current_snapshot_id
        if n == 9:
            spark.sql(f"CALL lake.system.rollback_to_snapshot('raw.t', {rolled_back})")
    over = {"snapshot-id": lake.table(name).metadata.snapshots[0].snapshot_id, "type": "tag", "max-ref-age-ms": 1}
    commit(lake.table(name), lambda metadata: {**metadata, "refs": {**metadata["refs"], "over": over}})
    before = look(lake, name, EAGER).health
    assert before.expirable >= thresholds.UPKEEP_EXPIRED_SNAPSHOTS
    done = attend(lake, {name: replace(EAGER, commits=100)}, is_forced=True)
    (expired,) = [a.done for a in done if a.action.kind == "expire"]
    assert expired is not None
    assert (expired.error, expired.files) == ("", before.expirable)
    assert {"main", "mine", "kept"} == set(lake.table(name).metadata.refs)


def test_equality_deletes_of_another_writer_are_carried_out_once(lake: Lake) -> None:
    name = TableId(("raw",), "flink")
    sql = make(lake, name, properties="'format-version' = '2'")
    for n in range(4):
        lake.spark().sql(f"INSERT INTO {sql} VALUES ({n}, 'x'), ({n + 10}, 'y')")
    Java(lake).delete_where_equal("raw.flink", [{"id": 2}])
    before = rows(lake, sql)
    assert len(before) == 7
    done = attend(lake, {name: replace(EAGER, commits=100, keep=DAY)}, is_forced=True)
    assert [a for a in done if a.done is None or a.done.error] == []
    assert "equality-deletes" in {a.action.kind for a in done}
    assert rows(lake, sql) == before
    attended(lake, name)
    assert rows(lake, sql) == before
    assert look(lake, name, EAGER).due == []


def test_two_processes_may_look_after_the_same_tables(lake: Lake) -> None:
    names = [TableId(("raw",), n) for n in ("x", "y")]
    for name in names:
        sql = make(lake, name)
        for n in range(5):
            lake.spark().sql(f"INSERT INTO {sql} VALUES ({n}, 'x')")
    before = {n: rows(lake, lake.sql_name(n)) for n in names}
    results: list[list[Attended]] = []

    def work() -> None:
        results.append(attend(lake, dict.fromkeys(names, EAGER), is_forced=True))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert len(results) == 2
    assert [a.done.error for r in results for a in r if a.done and a.done.error] == []
    assert {n: rows(lake, lake.sql_name(n)) for n in names} == before
    for name in names:
        assert look(lake, name, EAGER).health.files == 1


def test_a_clock_that_was_ahead_does_not_stop_upkeep(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = TableId(("raw",), "ahead")
    sql = make(lake, name)
    for n in range(5):
        lake.spark().sql(f"INSERT INTO {sql} VALUES ({n}, 'x')")
    hour = 3_600_000

    def ahead(metadata: dict[str, Any]) -> dict[str, Any]:
        later = [{**s, "timestamp-ms": s["timestamp-ms"] + hour} for s in metadata["snapshots"]]
        log = [{**e, "timestamp-ms": e["timestamp-ms"] + hour} for e in metadata["snapshot-log"]]
        last = int(time.time() * 1000) + hour
        return {**metadata, "snapshots": later, "snapshot-log": log, "last-updated-ms": last}

    commit(lake.table(name), ahead)
    done = attended(lake, name)
    assert "combine" in {a.action.kind for a in done}


def test_no_file_of_a_table_is_deleted_that_shares_them_with_another(lake: Lake) -> None:
    name = TableId(("raw",), "shared")
    sql = make(lake, name)
    for n in range(6):
        lake.spark().sql(f"INSERT INTO {sql} VALUES ({n}, 'x')")
    lake.spark().sql(f"ALTER TABLE {sql} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    assert {a.action.kind for a in attended(lake, name)} == {"combine"}
    assert needs_a_look(lake, {name: EAGER}) == []
    assert len(lake.table(name).metadata.snapshots) == 7

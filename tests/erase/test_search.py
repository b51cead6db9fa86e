"""The search finds keys wherever they are left: unnamed files, branches, bounds of manifests, notes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_assets import Lake
from lake_assets.erase.record_mentions import Mentions
from lake_assets.erase.value_scan import TableScan, Wanted
from tests.support.cli import Done
from tests.support.erased_users import Users

Call = Callable[..., Done]


@pytest.mark.long
def test_left_keys_are_found_and_removed_where_that_is_safe(lake: Lake, tmp_path: Path, call: Call) -> None:
    users = Users(lake, tmp_path / "p", models=())
    users.deliver(*(users.user("c", n) for n in (1, 17, 1700017)))
    table = lake.table("final.users")
    folder = Path(table.location().removeprefix("file://"))
    head = table.current_snapshot()
    assert head is not None
    planted = folder / "data" / "planted.parquet"
    pq.write_table(pa.table({"ID": pa.array([5, 17], pa.int32())}), planted)
    manifest = Path(head.manifests(table.io)[0].manifest_path.removeprefix("file:").removeprefix("//"))
    shutil.copy(manifest, manifest.with_name("planted-m0.avro"))
    lake.spark().sql(f"ALTER TABLE {lake.sql_name('final.users')} CREATE BRANCH mine")

    def found(key: str) -> set[str]:
        scan = TableScan(lake.table("final.users"), Wanted(("id",), [(key,)]))
        return {f"{Path(f.path).name}: {f.where}" for f in scan.findings()}

    # 17 is neither the lowest nor the highest id of the file: only the planted file and the data file hold it.
    data = Path(next(iter(table.inspect.files().to_pylist()))["file_path"]).name
    assert found("17") == {"planted.parquet: rows (ID)", f"{data}: rows (id)"}
    assert "planted-m0.avro: bounds of id" in found("1700017")
    assert f"{manifest.name}: bounds of id" in found("1700017")
    assert found("170001") == set()

    words = (
        "erase",
        "--table",
        "final.users",
        "--key",
        "id=17",
        "--key",
        "id=1700017",
        "--pipeline",
        users.file,
        "--yes",
    )
    refused = call(*words)
    assert (refused.code, users.count("final.users", "id = 17")) == (1, 1)
    assert "final.users: mine hold old snapshots: drop these branches" in refused.err
    done = call(*words, "--drop-refs")
    assert done.code == 0, done.out + done.err
    assert not planted.exists()
    assert not manifest.with_name("planted-m0.avro").exists()
    assert found("17") == found("1700017") == set()
    # A file that is written after the erasure began is somebody's work: it is reported, and stays.
    pq.write_table(pa.table({"id": pa.array([17], pa.int64())}), planted)
    future = planted.stat().st_mtime + 3600
    os.utime(planted, (future, future))
    again = call(*words)
    assert again.code == 1
    assert f"{planted}: rows (id)" in again.err
    assert planted.exists()


def test_compound_keys_are_found_as_a_whole_however_many_there_are(lake: Lake, tmp_path: Path) -> None:
    lake.ensure_namespace(("t",))
    rows = pa.table({"a": pa.array(range(3000), pa.int64()), "b": [f"b{n}" for n in range(3000)]})
    table = lake.catalog.create_table("t.t", rows.schema)
    table.append(rows)

    def found(keys: list[tuple[str, str]]) -> list[str]:
        return [f.where for f in TableScan(lake.table("t.t"), Wanted(("a", "b"), keys)).findings()]

    others = [(f"{n}", f"b{n + 1}") for n in range(2999)]
    assert found(others) == []
    assert found([*others, ("2999", "b2999")]) == ["rows (a, b)"]
    assert found([("b", "b1")]) == []


@pytest.mark.parametrize(
    ("record", "is_found"),
    [
        ('{"after": {"id": 17}}', True),
        ('{"after": {"ID": "17"}}', True),
        ('{"after": {"id": 170}}', False),
        ('{"after": {"nr": 17}}', False),
        ('{"key": "{\\"id\\": 17}", "value": null}', True),
        ('{"columnnames": ["a", "id"], "columnvalues": [17, 1]}', False),
        ('{"columnnames": ["a", "id"], "columnvalues": [1, 17]}', True),
        ('{"columns": [{"name": "id", "type": "bigint", "value": 17}]}', True),
        ('{"after": {"id": 17', True),
        ('{"after": {"id": 170', False),
        ('{"after": {"paid": 17', False),
    ],
)
def test_records_mention_a_key_in_any_form(record: str, is_found: bool) -> None:
    assert Mentions([("id",)], [("17",)]).are_in(record) == is_found


def test_records_mention_all_columns_of_a_compound_key() -> None:
    mentions = Mentions([("tenant",), ("id", "nr")], [("5", "17")])
    assert mentions.are_in('{"tenant": 5, "nr": 17}')
    assert not mentions.are_in('{"tenant": 5, "x": {"nr": 17}}')

"""Branches and tags committed without Spark: seen by Spark and PyIceberg, and races between writers."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from lake_assets import Lake
from lake_assets.errors import ConcurrentWriteError, CorruptMetadataError, ModelError
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.metadata_commits import successor_of
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermark, read_marks
from lake_assets.tables.writing.publication import Commit

ROWS = pa.table({"n": pa.array([1], pa.int64())})
PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "3",
    PIPELINE_PROPERTY: "own",  # versions of other programs' tables stay
}


def plain_table(lake: Lake) -> Table:
    """A table with two snapshots, without Spark."""
    lake.ensure_namespace(("raw",))
    table = lake.catalog.create_table(("raw", "t"), ROWS.schema, properties=PROPERTIES)
    table.append(ROWS)
    table.append(ROWS)
    return lake.table("raw.t")


def heads(table: Table) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}


def metadata(table: Table) -> dict[str, Any]:
    with table.io.new_input(table.metadata_location).open() as file:
        return json.loads(file.read())


def test_refs_are_created_moved_and_dropped(plain_lake: Lake) -> None:
    table = plain_table(plain_lake)
    first, second = (s.snapshot_id for s in table.metadata.snapshots)
    refs.set_tag(table, "t", first, days=7)
    refs.create_branch(table, "b", second, days=1)
    now = plain_lake.table("raw.t")
    assert heads(now) == {"main": second, "t": first, "b": second}
    # The age of a reference is that of its snapshot, and part of a day counts as one.
    assert [now.metadata.refs[n].max_ref_age_ms for n in ("t", "b")] == [8 * refs.DAY_MS, 2 * refs.DAY_MS]
    refs.set_tag(table, "t", second, days=7)
    refs.drop(table, "b")
    location = plain_lake.table("raw.t").metadata_location
    refs.drop(table, "b")
    now = plain_lake.table("raw.t")
    assert heads(now) == {"main": second, "t": second}
    assert now.metadata_location == location, "nothing to drop is nothing to commit"
    assert now.scan().to_arrow().num_rows == 2
    plain_lake.table("raw.t").append(ROWS)
    assert plain_lake.table("raw.t").scan().to_arrow().num_rows == 3


def test_everything_else_in_the_metadata_stays_and_old_files_go(plain_lake: Lake) -> None:
    table = plain_table(plain_lake)
    (first, *_) = (s.snapshot_id for s in table.metadata.snapshots)
    before = metadata(table) | {"unheard-of": {"a": [1, "ü"]}}
    Path(table.metadata_location.removeprefix("file://")).write_text(json.dumps(before))
    for n in range(6):
        refs.set_tag(table, f"t{n}", first, days=1)
    after = metadata(plain_lake.table("raw.t"))
    changed = {"refs", "last-updated-ms", "metadata-log"}
    assert {k: v for k, v in after.items() if k not in changed} == {k: v for k, v in before.items() if k not in changed}
    assert len(after["metadata-log"]) == 3
    folder = Path(table.metadata_location.removeprefix("file://")).parent
    assert len(list(folder.glob("*.metadata.json"))) == 4


def test_a_tag_on_an_old_snapshot_lives_as_long_as_one_on_a_new_one(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = plain_table(plain_lake)
    first, second = (s.snapshot_id for s in table.metadata.snapshots)
    made = table.metadata.snapshots[0].timestamp_ms
    monkeypatch.setattr(refs, "now_ms", lambda: made + 30 * refs.DAY_MS)
    refs.set_tag(table, "t", first, days=7)
    location = plain_lake.table("raw.t").metadata_location
    refs.set_tag(table, "t", first, days=7)
    assert plain_lake.table("raw.t").metadata_location == location, "the same tag on the same day is nothing to commit"
    assert plain_lake.table("raw.t").metadata.refs["t"].max_ref_age_ms == 37 * refs.DAY_MS
    later = refs.with_tag(metadata(plain_lake.table("raw.t")), "u", second, days=7)
    assert later["refs"]["u"]["max-ref-age-ms"] == 37 * refs.DAY_MS
    assert refs.with_tag(later, "v", 4711, days=7) == later, "an expired snapshot has no tag"


@pytest.mark.parametrize("own", [None, 5, 1_000_000])
def test_main_keeps_all_snapshots_while_there_is_a_tag_of_a_backfill(plain_lake: Lake, own: int | None) -> None:
    table = plain_table(plain_lake)
    first = table.metadata.snapshots[0].snapshot_id
    if own is not None:
        refs.keep_snapshots(table, own)

    def kept() -> int | None:
        return plain_lake.table("raw.t").metadata.refs["main"].min_snapshots_to_keep

    refs.set_tag(table, "other", first, days=7)
    assert kept() == own
    for tag in ("backfill-b1", "backfill-b2"):
        refs.set_tag(table, tag, first, days=7)
        assert kept() == (own if own == 1_000_000 else 2**30 + (own or 0))
    refs.drop(table, "backfill-b1")
    assert kept() == (own if own == 1_000_000 else 2**30 + (own or 0))
    assert not refs.is_held_needlessly(plain_lake.table("raw.t"))
    refs.drop(table, "backfill-b2")
    assert kept() == own


def test_timestamps_do_not_go_back_if_clocks_differ() -> None:
    before = {
        "current-snapshot-id": 1,
        "last-updated-ms": 5_000,
        "snapshot-log": [{"timestamp-ms": 6_000, "snapshot-id": 1}],
        "refs": {"main": {"snapshot-id": 1, "type": "branch"}},
    }
    changed = refs.with_refs(before, {"main": {"snapshot-id": 2, "type": "branch"}}, 1_000)
    after = successor_of(changed, "v1.metadata.json", 1_000)
    assert after["last-updated-ms"] == after["snapshot-log"][-1]["timestamp-ms"] == 6_000
    assert after["metadata-log"] == [{"timestamp-ms": 5_000, "metadata-file": "v1.metadata.json"}]
    assert after["current-snapshot-id"] == 2
    assert successor_of(before, "", 9_000)["last-updated-ms"] == 9_000


def test_metadata_without_refs_has_main() -> None:
    assert refs.refs_of({"current-snapshot-id": 3}) == {"main": {"snapshot-id": 3, "type": "branch"}}
    assert refs.refs_of({"current-snapshot-id": -1}) == {}


def test_main_is_fast_forwarded_only_from_the_branchs_base(plain_lake: Lake) -> None:
    table = plain_table(plain_lake)
    first, second = (s.snapshot_id for s in table.metadata.snapshots)
    refs.create_branch(table, "b", first, days=1)
    with pytest.raises(refs.MovedError):
        refs.publish(table, "b", first)
    with pytest.raises(refs.MovedError):
        refs.publish(table, "gone", second)
    with pytest.raises(refs.MovedError):
        refs.create_branch(table, "c", 4711, days=1)
    assert heads(plain_lake.table("raw.t")) == {"main": second, "b": first}
    refs.publish(table, "b", second)
    now = plain_lake.table("raw.t")
    assert heads(now) == {"main": first}
    assert now.metadata.snapshot_log[-1].snapshot_id == first
    assert now.scan().to_arrow().num_rows == 1


def test_refs_of_a_table_created_again_are_not_set(plain_lake: Lake) -> None:
    table = plain_table(plain_lake)
    assert table.metadata.current_snapshot_id is not None
    plain_lake.catalog.drop_table("raw.t")
    plain_lake.catalog.create_table(("raw", "t"), ROWS.schema)
    with pytest.raises(refs.MovedError):
        refs.create_branch(table, "b", table.metadata.current_snapshot_id, days=1)


def test_concurrent_commits_are_kept(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = plain_table(plain_lake)
    current = table.metadata.current_snapshot_id
    assert current is not None
    files = Path(table.metadata_location.removeprefix("file://")).parent
    real, others = refs.with_refs, 2

    def disturbed(*args: Any) -> Any:
        nonlocal others
        if others:
            others -= 1
            plain_lake.table("raw.t").append(ROWS)
        return real(*args)

    monkeypatch.setattr(refs, "with_refs", disturbed)
    refs.set_tag(table, "t", current, days=1)
    now = plain_lake.table("raw.t")
    assert heads(now)["t"] == current
    assert now.scan().to_arrow().num_rows == 4
    named = {Path(e.metadata_file).name for e in now.metadata.metadata_log} | {Path(now.metadata_location).name}
    assert {f.name for f in files.glob("*.metadata.json")} == named, "what lost the race is gone"
    others = 1_000
    with pytest.raises(CommitFailedException):
        refs.set_tag(table, "u", current, days=1)


def test_many_concurrent_commits_lose_nothing(plain_lake: Lake) -> None:
    table = plain_table(plain_lake)
    current = table.metadata.current_snapshot_id
    assert current is not None
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: refs.set_tag(table, f"t{n}", current, days=1), range(12)))
    assert set(heads(plain_lake.table("raw.t"))) == {"main", *(f"t{n}" for n in range(12))}


@pytest.mark.spark
@pytest.mark.parametrize("beside", [True, False], ids=["beside Spark", "by Spark"])
@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_spark_writes_to_the_branch_and_main_follows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, version: int, *, beside: bool
) -> None:
    if not beside:
        monkeypatch.setattr(refs, "can_commit", lambda _: False)
    spark, t, marks = lake.spark(), TableId.parse("raw.t"), {"raw.s": Watermark("u", 1)}
    lake.ensure_namespace(("raw",))
    spark.sql(f"CREATE TABLE raw.t (n INT) USING iceberg TBLPROPERTIES ('format-version'='{version}')")
    spark.sql("INSERT INTO raw.t VALUES (1)")

    def add(meanwhile: Callable[[], object] = lambda: None) -> None:
        before = spark.table("raw.t").count()
        with Commit(lake, t, lake.table(t), marks).branch() as branch:
            spark.sql(f"INSERT INTO {branch.name} VALUES (2)")
            assert spark.table("raw.t").count() == before, "nobody sees it yet"
            meanwhile()

    add()
    assert spark.table("raw.t").count() == lake.table(t).scan().to_arrow().num_rows == 2
    assert set(lake.table(t).metadata.refs) == {"main"}
    assert read_marks(lake.table(t)) == marks
    log = spark.sql("SELECT snapshot_id FROM raw.t.history ORDER BY made_current_at").collect()
    assert [r[0] for r in log][-1] == lake.table(t).metadata.current_snapshot_id
    with pytest.raises(ConcurrentWriteError):
        add(lambda: spark.sql("INSERT INTO raw.t VALUES (3)"))
    with pytest.raises(PySparkException):
        add(lambda: spark.sql("SELECT nope").collect())
    assert spark.sql("SELECT sum(n) FROM raw.t").collect()[0][0] == 6
    assert set(lake.table(t).metadata.refs) == {"main"}
    spark.sql("UPDATE raw.t SET n = n + 1 WHERE n = 3")
    assert lake.table(t).scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("was_done", [True, False])
@pytest.mark.parametrize("goes_on", [True, False], ids=["others go on", "nobody else"])
def test_a_catalog_that_fails_during_a_commit_is_checked_for_the_result(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, was_done: bool, goes_on: bool
) -> None:
    table = plain_table(plain_lake)
    (first, *_) = (s.snapshot_id for s in table.metadata.snapshots)
    real, failed = Session.commit, list[int]()

    def failing(session: Session) -> None:
        if failed:
            real(session)
            return
        failed.append(1)
        if was_done:
            real(session)
        else:
            session.rollback()
        if goes_on:
            plain_lake.table("raw.t").append(ROWS)
        raise OperationalError("COMMIT", None, Exception("the connection was lost"))

    monkeypatch.setattr(Session, "commit", failing)
    refs.set_tag(table, "t", first, days=7)
    now = plain_lake.table("raw.t")
    assert failed
    assert heads(now)["t"] == first
    assert now.scan().to_arrow().num_rows == (3 if goes_on else 2)
    assert Path(now.metadata_location.removeprefix("file://")).is_file()


def test_a_missing_table_and_missing_metadata_are_different_errors(plain_lake: Lake) -> None:
    table = plain_table(plain_lake)
    (first, *_) = (s.snapshot_id for s in table.metadata.snapshots)
    Path(table.metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(CorruptMetadataError, match=r"raw\.t cannot be read: the metadata file .* is gone"):
        refs.set_tag(table, "t", first, days=7)
    plain_lake.catalog.drop_table(("raw", "t"))
    with pytest.raises(refs.MovedError, match=r"raw\.t was dropped or renamed"):
        refs.set_tag(table, "t", first, days=7)


def test_an_error_is_not_hidden_by_an_error_of_the_cleanup(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_table(lake)

    def gone(table: Table, name: str) -> None:
        raise OSError("slow down")

    monkeypatch.setattr(refs, "drop", gone)
    commit = Commit(lake, TableId.parse("raw.t"), lake.table("raw.t"))
    with pytest.raises(ModelError, match="wrong"), commit.branch():
        raise ModelError("wrong")

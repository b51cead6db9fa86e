"""Tables that other programs compact and expire as they like lose no change of a pipeline that reads them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from lake_assets import Lake, Pipeline
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.row_selection import Selection
from lake_assets.capture import source_tags
from lake_assets.errors import ConsumerNotFoundError, InvalidNameError
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.metadata_commits import commit
from lake_assets.pipeline.verification import verify
from tests.support.pipeline_files import yaml_of
from tests.support.pipeline_runs import run
from tests.support.python_models import insert, make
from tests.support.upkeep import compact_and_expire

SUMS = {"name": "agg.sums", "sql": "SELECT id, sum(n) AS n FROM src.t GROUP BY id"}
TOTAL = {"name": "agg.total", "sql": "SELECT count(*) AS ids, sum(n) AS n FROM agg.sums"}


@pytest.fixture(params=["merge-on-read", pytest.param("copy-on-write", marks=pytest.mark.long)])
def source(lake: Lake, request: pytest.FixtureRequest) -> Lake:
    make(lake, "id INT, n INT", "(1, 1)", "(2, 2)", "(3, 3)", mode=request.param)
    return lake


def declared(lake: Lake, *models: dict[str, Any]) -> Pipeline:
    return Pipeline.load(yaml_of(Path(lake.config.home), list(models)))


def change(lake: Lake, n: int) -> None:
    """Its owner changes the table in several commits, and keeps only the last of its snapshots."""
    insert(lake, f"({n}, {n})", f"(1, {n})")
    lake.spark().sql(f"UPDATE src.t SET n = n + 1 WHERE id % 2 = {n % 2}")
    lake.spark().sql(f"DELETE FROM src.t WHERE id = {n - 2}")
    compact_and_expire(lake, "src.t")


def check(lake: Lake, pipeline: Pipeline) -> None:
    for spec in pipeline.specs(lake):
        found = verify(lake, spec)
        assert found.equal, found


def snapshots_kept(lake: Lake) -> Counter[str]:
    return Counter(name.split(".")[0] for name in lake.table("src.t").metadata.refs)


@pytest.mark.long
def test_models_follow_a_table_that_keeps_one_snapshot(source: Lake) -> None:
    pipeline = declared(source, SUMS, TOTAL)
    run(source, pipeline)
    for n in (4, 5):
        change(source, n)
        outcomes = run(source, pipeline)
        assert outcomes["agg.sums"].status == "absorbed"
        check(source, pipeline)
    assert snapshots_kept(source) == {"main": 1, "consumer": 1}


@pytest.mark.long
def test_a_backfill_and_its_undo_keep_what_they_need_of_it(source: Lake) -> None:
    pipeline = declared(source, SUMS, TOTAL)
    run(source, pipeline)
    source.spark().sql("UPDATE agg.sums SET n = 99 WHERE id = 1")
    planned = plan(source, pipeline, TableId.parse("agg.sums"), Selection())
    backfill = Backfill.begin(source, pipeline, planned, publish="manual")
    backfill.build()
    for n in (4, 5):
        # The tables on main go on, and their consumers' tags with them; the working copies do not.
        change(source, n)
        run(source, pipeline)
    assert source.table("src.t").metadata.refs["main"].min_snapshots_to_keep is None
    backfill.publish()
    run(source, pipeline)
    check(source, pipeline)
    for n in (6, 7):
        change(source, n)
        run(source, pipeline)
    taken_back = undo(source, pipeline, backfill.record.id)
    taken_back.build()
    change(source, 8)
    taken_back.publish()
    run(source, pipeline)
    assert dict(map(tuple, source.spark().table("agg.sums").collect())).get(1) is not None
    tags = [name for name in source.table("src.t").metadata.refs if backfill.record.id in name]
    assert not [name for name in tags if name == f"consumer.{backfill.record.tag}"], "only what undoing needs is left"


def test_a_discarded_backfill_leaves_no_tags(source: Lake) -> None:
    pipeline = declared(source, SUMS, TOTAL)
    run(source, pipeline)
    before = dict(source.table("src.t").metadata.refs)
    planned = plan(source, pipeline, TableId.parse("agg.sums"), Selection())
    backfill = Backfill.begin(source, pipeline, planned, publish="manual")
    backfill.build()
    assert len(source.table("src.t").metadata.refs) > len(before)
    backfill.discard()
    assert dict(source.table("src.t").metadata.refs) == before


def test_a_branch_of_its_owner_stays_a_branch(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(source_tags, "_refused", set())
    make(lake, "id INT, n INT", "(1, 1)")
    lake.spark().sql("ALTER TABLE src.t CREATE BRANCH `consumer.agg.sums`")
    lake.spark().sql("INSERT INTO src.t.`branch_consumer.agg.sums` VALUES (7, 7)")
    run(lake, declared(lake, SUMS))
    assert "has a branch called consumer.agg.sums" in caplog.text
    with pytest.raises(InvalidNameError, match="has a branch called"):
        lake.consumers.register("src.t", "agg.sums")
    with pytest.raises(ConsumerNotFoundError):
        lake.consumers.remove("src.t", "agg.sums")
    assert lake.spark().sql("SELECT id FROM src.t.`branch_consumer.agg.sums` WHERE id = 7").count() == 1


def test_tags_that_are_over_are_dropped_by_the_next_step(lake: Lake) -> None:
    """PyIceberg's expiry keeps whatever has a tag; here, for instance, what undoing a backfill needed."""
    make(lake, "id INT, n INT", "(1, 1)")
    pipeline, table = declared(lake, SUMS), lake.table("src.t")
    run(lake, pipeline)
    made = table.current_snapshot()
    assert made is not None
    over, still = f"{source_tags.PREFIX}backfill-b123456.agg.sums", f"{source_tags.PREFIX}agg.daily.step"
    source_tags.keep(lake, lake.table("src.t"), {over: made.snapshot_id, still: made.snapshot_id}, 7)
    commit(
        lake.table("src.t"),
        lambda m: {**m, "refs": {**m["refs"], over: {**m["refs"][over], "max-ref-age-ms": 1}}},
    )
    lake.spark().sql("ALTER TABLE src.t CREATE TAG of_its_owner RETAIN 1 DAYS")
    insert(lake, "(4, 4)")
    run(lake, pipeline)
    assert {*lake.table("src.t").metadata.refs} == {"main", "consumer.agg.sums", still, "of_its_owner"}


@pytest.mark.long
def test_one_table_that_refuses_tags_is_no_reason_to_leave_others_without(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps, backfills and their undo go on, and the other table's snapshots are kept."""
    make(lake, "id INT, n INT", "(1, 1)", "(2, 2)")
    make(lake, "id INT, n INT", "(1, 1)", name="src.u")
    both = {"name": "agg.both", "sql": "SELECT t.id, t.n + u.n AS n FROM src.t t JOIN src.u u ON t.id = u.id"}
    pipeline, set_tags = declared(lake, both), refs.set_tags

    def refuse_one(table: Table, *args: Any, **more: Any) -> None:
        if table.name()[-1] == "u":
            raise PermissionError("only its owner may")
        set_tags(table, *args, **more)

    monkeypatch.setattr(refs, "set_tags", refuse_one)
    monkeypatch.setattr(source_tags, "_refused", set())
    run(lake, pipeline)
    lake.spark().sql("UPDATE agg.both SET n = 99")
    backfill = Backfill.begin(lake, pipeline, plan(lake, pipeline, TableId.parse("agg.both"), Selection()))
    backfill.build()
    change(lake, 4)
    backfill.publish()
    run(lake, pipeline)
    check(lake, pipeline)
    taken_back = undo(lake, pipeline, backfill.record.id)
    taken_back.build()
    taken_back.publish()
    assert [*lake.table("src.u").metadata.refs] == ["main"]
    assert "consumer.agg.both" in lake.table("src.t").metadata.refs
    assert len([r for r in caplog.records if "src.u belongs to another program" in r.getMessage()]) == 1


def test_a_source_may_have_a_name_that_no_file_can_have(lake: Lake) -> None:
    lake.ensure_namespace(("s" * 80,))
    lake.ensure_namespace(("src",))
    long_name = f"{'s' * 80}.{'t' * 150}"
    for table in (long_name, "src.`a/b c%d`"):
        at = f"{lake.config.home}/{len(table)}"
        lake.spark().sql(f"CREATE TABLE {table} (id INT, n INT) USING iceberg LOCATION '{at}'")
        lake.spark().sql(f"INSERT INTO {table} VALUES (1, 1)")
    sql = f"SELECT a.id, a.n + b.n AS n FROM {long_name} a JOIN src.`a/b c%d` b ON a.id = b.id"
    pipeline = declared(lake, {"name": "agg.both", "sql": sql})
    run(lake, pipeline)
    lake.spark().sql("UPDATE agg.both SET n = 99")
    backfill = Backfill.begin(lake, pipeline, plan(lake, pipeline, TableId.parse("agg.both"), Selection()))
    backfill.build()
    backfill.publish()
    check(lake, pipeline)

"""Tables that other programs compact and expire as they like lose no change of a pipeline that reads them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.row_selection import Selection
from lake_assets.lake import TableId
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


def test_models_follow_a_table_that_keeps_one_snapshot(source: Lake) -> None:
    pipeline = declared(source, SUMS, TOTAL)
    run(source, pipeline)
    for n in (4, 5, 6):
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

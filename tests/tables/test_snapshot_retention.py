"""A pipeline continues from its watermark after any expiry of snapshots."""

from __future__ import annotations

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.capture.consumers import PREFIX
from lake_assets.examples import shop
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.lake.thresholds import SNAPSHOTS_KEPT
from lake_assets.tables.snapshot_retention import consumer_name, keep_own, release
from tests.support.upkeep import compact_and_expire

pytestmark = pytest.mark.spark

TABLES = ["raw.shop_events", "staging.users", "final.users", "agg.city_population"]


@pytest.mark.long
def test_compaction_and_expiry_by_others_between_two_runs_lose_nothing(lake: Lake) -> None:
    pipeline, landing = Pipeline.load(shop.PIPELINE), lake.config.home / "landing" / "shop_events"
    first, second = shop.checkpoints()[:2]
    select = [*TABLES, "staging.user_city", "final.user_city"]
    shop.feed(landing, first)
    assert not [o for o in pipeline.run(lake, select) if o.status == "failed"]

    compact_and_expire(lake, *TABLES)

    shop.feed(landing, second)
    assert not [o for o in pipeline.run(lake, select) if o.status == "failed"]
    by_table = {c.table: c for c in shop.compare(lake, second)}
    assert by_table["users"].equal
    positions = (
        lake.spark().table("raw.shop_events").selectExpr("count(*)", "count(DISTINCT position)", "max(position)")
    )
    assert tuple(positions.collect()[0]) == (second.lines, second.lines, second.lines - 1)


def test_every_source_keeps_the_snapshot_that_a_target_has_absorbed(lake: Lake) -> None:
    pipeline, landing = Pipeline.load(shop.PIPELINE), lake.config.home / "landing" / "shop_events"
    shop.feed(landing, shop.checkpoints()[0])
    pipeline.run(lake, ["raw.shop_events", "staging.users", "final.users"])

    for target, source in (("staging.users", "raw.shop_events"), ("final.users", "staging.users")):
        absorbed = read_marks(lake.table(target))[source].snapshot
        tag = lake.table(source).metadata.refs[PREFIX + consumer_name(TableId.parse(target))]
        assert tag.snapshot_id == absorbed
        assert lake.table(target).metadata.refs["main"].min_snapshots_to_keep == SNAPSHOTS_KEPT


def test_a_table_that_others_write_as_well_is_released_by_its_next_step(lake: Lake) -> None:
    lake.ensure_namespace(("agg",))
    lake.spark().sql("CREATE TABLE agg.a USING iceberg AS SELECT 1 AS id")
    name = TableId.parse("agg.a")

    def kept() -> int | None:
        return lake.table(name).metadata.refs["main"].min_snapshots_to_keep

    refs.keep_snapshots(lake.table(name), 3)
    refs.set_tag(lake.table(name), "backfill-b1", lake.table(name).metadata.snapshots[0].snapshot_id, days=7)
    release(lake, name)
    assert (kept() or 0) > 1_000_000, "the backfill can still be undone"
    lake.spark().sql("ALTER TABLE agg.a DROP TAG `backfill-b1`")  # as Iceberg does when it expires
    release(lake, name)
    assert kept() == 3
    at = lake.table(name).metadata_location
    release(lake, name)
    assert lake.table(name).metadata_location == at
    release(lake, TableId.parse("agg.none"))


def test_what_another_run_commits_meanwhile_stays(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a run that commits, or replaces the table, while another run lets the table keep its snapshots."""
    lake.ensure_namespace(("agg",))
    lake.spark().sql("CREATE TABLE agg.a USING iceberg AS SELECT 1 AS id")
    find = lake.table

    def found_before(statement: str) -> None:
        loaded = find("agg.a")
        monkeypatch.setattr(lake, "table", lambda *_: loaded)
        lake.spark().sql(statement)
        keep_own(lake, TableId.parse("agg.a"))
        monkeypatch.setattr(lake, "table", find)

    found_before("INSERT INTO agg.a VALUES (2)")
    assert lake.spark().table("agg.a").count() == 2
    assert lake.table("agg.a").metadata.refs["main"].min_snapshots_to_keep == SNAPSHOTS_KEPT
    lake.spark().sql("CREATE OR REPLACE TABLE agg.a USING iceberg AS SELECT 1 AS id")
    found_before("CREATE OR REPLACE TABLE agg.a USING iceberg AS SELECT 3 AS id")
    found_before("DROP TABLE agg.a")

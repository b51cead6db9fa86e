"""Each event is absorbed once: after repeated runs, rollbacks, upkeep, and sources that were dropped and made again."""

from __future__ import annotations

from collections import Counter

import pytest

from lake_assets import Lake
from lake_assets.errors import (
    TableClaimedError,
    TableReplacedError,
)
from tests.support.debezium import BIGINT, TEXT, Table
from tests.support.event_log import Log, final
from tests.support.oracle import rows_of
from tests.support.streams import Feed


def test_running_again_changes_nothing(lake: Lake, log: Log) -> None:
    feed = Feed(lake, "public.*", models=[{"name": "agg.m", "sql": "SELECT n, count(*) AS c FROM final.t GROUP BY n"}])
    clicks = Log(Table({"url": TEXT}, key=(), name="public.clicks"))
    feed.deliver([log("c", id=1, n=1), clicks("c", url="a"), log("u", id=1, n=2)])
    before = feed.heads()
    assert set(before) >= {"raw.events", "staging.t", "final.t", "staging.clicks", "final.clicks", "agg.m"}
    assert {o.status for o in feed.run().values()} == {"nothing"}
    assert feed.pipeline.pending(lake) == []
    assert feed.heads() == before


def test_a_landing_without_events_of_a_table_leaves_it_alone(feed: Feed, log: Log) -> None:
    feed.deliver([log("c", id=1, n=1)])
    before = feed.heads()
    outcomes = feed.deliver(Log(Table({"id": BIGINT}, name="public.other"))("c", id=n) for n in range(2))
    assert (outcomes["staging.t"].status, outcomes["final.t"].status) == ("nothing", "nothing")
    after = feed.heads()
    assert {t for t in before if after[t] != before[t]} == {"raw.events", "raw.events_files"}
    assert feed.pipeline.pending(feed.lake) == []
    assert final(feed) == Counter({(1, 1, None): 1})


def test_changes_that_cancel_each_other_move_the_watermark_only(feed: Feed, log: Log) -> None:
    feed.deliver([log("c", id=1, n=1, name="a")])
    outcomes = feed.deliver(
        [log("u", id=1, n=2, name="a"), log("u", id=1, n=1, name="a"), log("c", id=2), log("d", id=2)]
    )
    assert outcomes["final.t"].changed == 0
    assert feed.pipeline.pending(feed.lake) == []
    with feed.lake.capture("final.t", _parent(feed.lake, "final.t")) as capture:
        assert capture.feed(feed.lake.spark()).collect() == []


def _parent(lake: Lake, table: str) -> int | None:
    snapshot = lake.table(table).current_snapshot()
    assert snapshot is not None
    return snapshot.parent_snapshot_id


@pytest.mark.long
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_every_table_that_is_rolled_back_catches_up_by_itself(lake: Lake, log: Log, every: int) -> None:
    models = [{"name": "agg.m", "sql": "SELECT n, count(*) AS c FROM final.t GROUP BY n"}]
    feed, clicks = Feed(lake, "public.*", models=models), Log(Table({"url": TEXT}, key=(), name="public.clicks"))
    feed.deliver([log("c", id=1, n=1), log("c", id=2, n=1), clicks("c", url="a")])
    first = feed.heads()
    feed.deliver([log("u", id=1, n=2), log("d", id=2), log("c", id=3, n=3), clicks("c", url="a"), clicks("c", url="b")])
    tables = {t: rows_of(feed.rows(t)) for t in ("final.t", "final.clicks", "agg.m")}
    staged = {t: rows_of(feed.rows(t), ["_position", "_op"]) for t in ("staging.t", "staging.clicks")}
    for table in ("raw.events", *staged, *tables)[::every]:
        lake.spark().sql(f"CALL lake.system.rollback_to_snapshot('{table}', {first[table]})")
        feed.run()
        assert {t: rows_of(feed.rows(t), ["_position", "_op"]) for t in staged} == staged, table
        assert {t: rows_of(feed.rows(t)) for t in tables} == tables, table
    feed.deliver([log("u", id=3, n=2), clicks("c", url="c")])
    assert rows_of(feed.rows("final.t"), ["id", "n"]) == Counter({(1, 2): 1, (3, 2): 1})
    assert rows_of(feed.rows("final.clicks")) == tables["final.clicks"] + Counter({("c",): 1})
    assert rows_of(feed.rows("agg.m")) == Counter({(2, 2): 1})


@pytest.mark.long  # test_snapshot_retention does that
def test_upkeep_of_the_tables_changes_nothing(feed: Feed, log: Log) -> None:
    for n in range(3):
        feed.deliver([log("c", id=n, n=n)])
    rows = final(feed)
    for table in ("staging.t", "final.t"):
        feed.lake.spark().sql(
            f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all','true'))"
        )
    assert all(o.changed == 0 for o in feed.run().values())
    assert final(feed) == rows
    feed.deliver([log("u", id=1, n=9)])
    assert final(feed) == rows - Counter({(1, 1, None): 1}) + Counter({(1, 9, None): 1})


def test_a_source_that_was_dropped_and_made_again_is_noticed(feed: Feed, log: Log) -> None:
    feed.deliver([log("c", id=1)])
    feed.lake.spark().sql("DROP TABLE staging.t")
    before = feed.heads()["final.t"]
    outcomes = feed.outcomes()
    assert outcomes["staging.t"].status == "absorbed"
    assert isinstance(outcomes["final.t"].exception, TableReplacedError)
    assert "`lake-assets rebuild final.t`" in (outcomes["final.t"].error or "")
    assert feed.heads()["final.t"] == before
    feed.lake.spark().sql("DROP TABLE final.t")
    feed.run()
    assert final(feed) == Counter({(1, None, None): 1})


@pytest.mark.long
def test_a_source_that_was_dropped_and_made_again_is_followed_where_that_is_declared(lake: Lake, log: Log) -> None:
    feed = Feed(lake, {"table": "public.t", "on_replaced": "rebuild"})
    feed.deliver([log("c", id=1), log("c", id=2)])
    lake.spark().sql("DROP TABLE staging.t")
    lake.catalog.drop_table("raw.events")
    feed.land([log("c", id=3)])
    for file in sorted((lake.config.home / "landing").rglob("*.jsonl"))[:1]:
        file.unlink()
    outcomes = feed.run()
    assert (outcomes["final.t"].strategy, outcomes["staging.t"].inserted) == ("rebuild", 1)
    assert final(feed) == Counter({(3, None, None): 1})
    feed.deliver([log("u", id=3, n=1)])
    assert final(feed) == Counter({(3, 1, None): 1})


def test_a_raw_table_that_was_dropped_and_made_again_is_noticed(feed: Feed, log: Log) -> None:
    feed.deliver([log("c", id=1)])
    feed.lake.catalog.drop_table("raw.events")
    assert isinstance(feed.outcomes()["staging.t"].exception, TableReplacedError)


def test_two_pipelines_do_not_share_a_table(lake: Lake, log: Log) -> None:
    first, second = Feed(lake, "public.t"), Feed(lake, "public.t", name="other", stream="others")
    first.deliver([log("c", id=1)])
    before = first.heads()
    second.land([log("c", id=2)])
    outcomes = second.outcomes()
    for table in ("staging.t", "final.t"):
        assert isinstance(outcomes[table].exception, TableClaimedError)
        assert "'made_up'" in (outcomes[table].error or "")
    assert {t: s for t, s in first.heads().items() if t in before} == before


def test_a_table_that_nobody_made_as_a_pipeline_is_left_alone(feed: Feed, log: Log) -> None:
    feed.lake.spark().sql("CREATE NAMESPACE final")
    feed.lake.spark().sql("CREATE TABLE final.t (id BIGINT) USING iceberg")
    feed.land([log("c", id=1)])
    assert isinstance(feed.outcomes()["final.t"].exception, TableClaimedError)

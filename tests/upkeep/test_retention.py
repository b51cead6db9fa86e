"""Old records of raw and superseded events of staging go, and nobody downstream can tell."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import HistoryError, RecordsGoneError, Refused
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.folded_staging import fold, folded_until
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.old_records import delete_old_records
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.staging.exactness import reasons_of
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermark, to_properties
from lake_assets.pipeline.verification import verify
from lake_assets.tables.writing.publication import committing
from lake_assets.tables.writing.table_ddl import set_properties
from lake_assets.upkeep.attend import look
from lake_assets.upkeep.retention import remove_outdated
from lake_assets.upkeep.upkept_tables import policies
from tests.support.debezium import Event
from tests.support.histories import Batches
from tests.support.logs import record
from tests.support.oracle import final_rows, rows_of
from tests.support.people import CITIES, People
from tests.support.stream_histories import SINGLE, evolving, ordered, repeated, scattered, truncated
from tests.support.streams import Feed, pipeline
from tests.support.upkeep import forget_history

RAW = TableId.parse("raw.events")


def spec_of(feed: Feed, kind: type[Any]) -> Any:
    return next(s for s in feed.pipeline.specs(feed.lake) if isinstance(s, kind))


def remove_old(feed: Feed, before: float) -> tuple[int, int]:
    """Delete records and fold events from before a time; return how many went."""
    at = datetime.fromtimestamp(before, UTC)
    records = delete_old_records(feed.lake, RAW, [spec_of(feed, StagingSpec)], at)
    events = fold(feed.lake, spec_of(feed, FinalSpec), at)
    assert not isinstance(records, Refused)
    assert not isinstance(events, Refused)
    return records, events


def check(lake: Lake, batches: Batches) -> None:
    feed, delivered, landed = Feed(lake, "public.t"), list[Event](), list[float]()
    gone: Counter[str] = Counter()
    for batch in batches:
        delivered += batch
        landed.append(time.time())
        feed.deliver(batch)
        if not delivered:
            continue
        # The halves of a change may come in two batches.
        records, events = remove_old(feed, landed[-1])
        gone += Counter(records=records, events=events)
        assert feed.pipeline.pending(lake) == []
        final = feed.rows("final.t")
        assert rows_of(final) == final_rows(delivered, final.columns)
    assert gone["records"] > 0
    assert gone["events"] > 0
    # Computed again from what is left, it is the same.
    final_spec = spec_of(feed, FinalSpec)
    assert verify(lake, final_spec).equal
    feed.pipeline.rebuild(lake, "final.t")
    final = feed.rows("final.t")
    assert rows_of(final) == final_rows(delivered, final.columns)


@pytest.mark.long  # as folded events, whatever arrives later
@pytest.mark.parametrize("kind", [evolving, ordered, repeated, scattered, truncated])
def test_final_tables_are_what_all_events_make_of_them(lake: Lake, kind: Callable[[random.Random], Batches]) -> None:
    check(lake, kind(random.Random(kind.__name__)))


@pytest.mark.long
def test_tables_that_need_more_than_is_kept_say_so(lake: Lake) -> None:
    people = People(lake)
    for _ in range(2):
        people.land(18)
        people.run()
    rows, landed = people.rows("final.people"), people.feed.rows("raw.events").count()
    records, events = remove_old(people.feed, time.time() + 60)
    assert records == landed - 1
    assert events > 15
    # Files are known although the history that told of them is gone with their records.
    forget_history(lake, "raw.events")
    assert len(file_ledger.seen(lake, RAW)) == 2
    people.land(4)
    people.check()
    # All versions of a row are no longer known.
    people.declare(mode="scd2")
    people.run()
    [reason] = [r for r in reasons_of(lake, TableId.parse("final.people")) if "keep_events" in r]
    assert "staging.people holds no more than the last event of each key from before" in reason
    people.declare()
    people.run()
    assert reasons_of(lake, TableId.parse("final.people")) == []
    assert set(people.rows("final.people")) >= set(rows & people.rows("final.people"))
    # Records cannot be read again.
    people.declare(types={"age": "string"})
    failed = people.run()["staging.people"]
    assert "were deleted (`keep_records`)" in str(failed.error)
    people.declare()
    people.check()
    # A table that starts now lacks what they said.
    people.declare(name="others")
    outcomes = people.run()
    assert outcomes["staging.others"].status == "absorbed", (outcomes, lake.table("raw.events").properties)
    [reason] = reasons_of(lake, TableId.parse("staging.others"))
    assert "raw.events no longer held the records from before" in reason
    lake.catalog.drop_table("raw.events_files")
    with pytest.raises(HistoryError, match="which files have landed is unknown"):
        file_ledger.seen(lake, RAW)


@pytest.mark.long
def test_a_later_snapshot_or_a_later_start_makes_up_for_deleted_records(lake: Lake) -> None:
    feed = Feed(lake, "app.t")

    def deliver(*events: Any, table: dict[str, Any]) -> list[str]:
        feed.pipeline = pipeline("app.t", {"table": "app.t", "name": "other", **table})
        feed.land_text("".join(json.dumps(e) + "\n" for e in events))
        feed.run()
        return [r for r in reasons_of(lake, TableId.parse("staging.other")) if "keep_records" in r]

    def changed(op: str, key: int, value: str, at: int, snapshot: str = "false") -> Any:
        source = {"lsn": at, "sequence": json.dumps([None, str(at)]), "snapshot": snapshot}
        return record("postgresql", source, op, key, value, "t")

    feed.land_text("".join(json.dumps(changed("c", k, "a", 100 + k)) + "\n" for k in range(3)))
    feed.run()
    spec = spec_of(feed, StagingSpec)
    assert delete_old_records(lake, RAW, [spec], datetime.fromtimestamp(time.time() + 60, UTC)) == 2
    # A table that begins after them lacks nothing, one that does not lacks rows until a snapshot is whole.
    last = changed("u", 2, "b", 200)
    assert len(deliver(last, table={})) == 1
    assert deliver(table={"start_position": 2}) == []
    assert len(deliver(table={})) == 1
    first = changed("r", 0, "a", 900, "first")
    assert len(deliver(first, changed("r", 1, "a", 900, "true"), table={})) == 1
    assert deliver(changed("r", 2, "b", 900, "last"), table={}) == []
    feed.run()
    rows = {r["id"]: r["v"] for r in feed.rows("final.other").collect()}
    assert rows == {0: "a", 1: "a", 2: "b"}
    # Also for a table that is made anew.
    for layer in ("staging", "final"):
        lake.catalog.drop_table(f"{layer}.other")
    assert deliver(table={}) == []
    assert {r["id"]: r["v"] for r in feed.rows("final.other").collect()} == rows


@pytest.mark.long
def test_records_that_staging_has_not_read_or_could_not_read_stay(lake: Lake) -> None:
    feed = Feed(lake, "public.t", "public.u")
    feed.deliver([Event(SINGLE, "c", (1, 1), {"k": "a", "n": 1, "name": "x"})])
    feed.land_text('{"not": "an event"}')
    feed.outcomes()
    feed.land([Event(SINGLE, "u", (2, 2), {"k": "a", "n": 2, "name": "x"})])
    feed.pipeline.run(lake, ["raw.events"])
    later = datetime.fromtimestamp(time.time() + 60, UTC)
    readers = [s for s in feed.pipeline.specs(lake) if isinstance(s, StagingSpec)]
    assert delete_old_records(lake, RAW, readers, later) == 1
    assert sorted(r["position"] for r in feed.rows("raw.events").select("position").collect()) == [1, 2]
    assert fold(lake, spec_of(feed, FinalSpec), later) == 0
    feed.deliver([Event(SINGLE, "c", (3, 3), {"k": "b", "n": 1, "name": "x"})])
    assert delete_old_records(lake, RAW, readers, later) == 1
    assert fold(lake, spec_of(feed, FinalSpec), later) == 1
    assert [tuple(r) for r in feed.rows("final.t").select("k", "n").orderBy("k").collect()] == [("a", 2), ("b", 1)]
    # By its policy, and with all others.
    assert delete_old_records(lake, RAW, readers, later) == 0
    assert folded_until(lake.table("staging.t")) == later


@pytest.mark.parametrize("is_lost", [False, pytest.param(True, marks=pytest.mark.long)])
def test_staging_that_is_rolled_back_does_not_go_on_without_deleted_records(lake: Lake, is_lost: bool) -> None:
    feed = Feed(lake, "public.t")
    heads = list[Any]()
    for n in range(3):
        feed.deliver([Event(SINGLE, "c", (n + 1, n + 1), {"k": f"{n}", "n": n, "name": "x"})])
        heads.append(lake.table("staging.t").metadata.current_snapshot_id)
    later = datetime.fromtimestamp(time.time() + 60, UTC)
    assert delete_old_records(lake, RAW, [spec_of(feed, StagingSpec)], later) == 2
    if is_lost:
        forget_history(lake, "raw.events")
    lake.spark().sql(f"CALL lake.system.rollback_to_snapshot('staging.t', {heads[0]})")
    feed.land([Event(SINGLE, "u", (9, 9), {"k": "0", "n": 9, "name": "x"})])
    failed = feed.outcomes()["staging.t"]
    assert isinstance(failed.exception, RecordsGoneError)
    assert "staging.t was rolled back to before record 1 of raw.events" in str(failed.error)
    assert lake.table("staging.t").metadata.current_snapshot_id == heads[0]
    # What the message says.
    lake.spark().sql(f"CALL lake.system.set_current_snapshot('staging.t', {heads[2]})")
    feed.run()
    assert sorted(r["n"] for r in feed.rows("final.t").collect()) == [1, 2, 9]


@pytest.mark.long
def test_upkeep_removes_what_is_older_than_declared_and_nobody_follows(lake: Lake) -> None:
    people = People(lake, CITIES)
    for _ in range(2):
        people.land(12)
        people.run()
    config = people.feed.pipeline.config
    config.upkeep = type(config.upkeep)(keep_records="10s", keep_events="10s")
    for table in config.streams[0].tables:
        table.horizon = "1s"
    wanted = policies(people.feed.pipeline, lake)
    now = time.time() + 3600
    looked = [look(lake, t, policy, now) for t, policy in wanted.items()]
    assert {(str(t.table), a.kind) for t in looked for a in t.due if a.kind in ("records", "events")} == {
        ("raw.events", "records"), ("staging.people", "events")
    }  # fmt: skip
    assert {t for t in wanted if wanted[t].retention} == {RAW, TableId.parse("staging.people")}
    heads = {t: people.feed.heads()[t] for t in ("final.people", "agg.cities")}
    for table in (RAW, TableId.parse("staging.people")):
        removed = remove_outdated(lake, table, wanted[table], now)
        assert not isinstance(removed, Refused)
        assert removed > 0
        assert not [a for a in look(lake, table, wanted[table], now).due if a.kind in ("records", "events")]
    assert people.feed.pipeline.pending(lake) == []
    people.check()
    for table, head in heads.items():
        with lake.capture(table, start=head) as captured:
            assert captured.feed(lake.spark()).count() == 0, table
    # Another table that has absorbed them would see a change.
    people.sql("CREATE TABLE lake.agg.copy (id BIGINT)")
    set_properties(lake, TableId.parse("agg.copy"), {PIPELINE_PROPERTY: "other"})
    mark = Watermark(str(lake.table("staging.people").metadata.table_uuid), None)
    with committing(lake.spark(), TableId.parse("agg.copy"), to_properties({"staging.people": mark})):
        people.sql("INSERT INTO lake.agg.copy VALUES (1)")
    refused = remove_outdated(lake, TableId.parse("staging.people"), wanted[TableId.parse("staging.people")], now)
    assert isinstance(refused, Refused)
    assert refused.reason == "agg.copy, which the pipeline does not declare, reads them"

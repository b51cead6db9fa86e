"""How long another program's table keeps what a consumer has absorbed, and when `status` says so."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lake_assets import Lake
from lake_assets.commands.status import behind_column
from lake_assets.health.table_status import table_status
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.metadata_commits import commit
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, to_properties
from lake_assets.tables.pending_windows import head_of
from lake_assets.tables.snapshot_retention import keep_sources
from lake_assets.upkeep.history_left import HistoryLeft

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
SOURCE, TARGET = TableId.parse("src.t"), TableId.parse("raw.t")
HOUR, DAY = 3_600.0, 86_400.0


class World:
    """A table of another program, and one that has absorbed its first snapshot an hour later."""

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch, properties: Mapping[str, str] = {}) -> None:
        self.lake, self.now = lake, time.time()
        monkeypatch.setattr(time, "time", lambda: self.now)
        for name, own in ((SOURCE, dict(properties)), (TARGET, {PIPELINE_PROPERTY: "p"})):
            lake.ensure_namespace(name.namespace)
            lake.catalog.create_table(name.parts, ROWS.schema, properties=own)
        self.source.append(ROWS)
        mark = to_properties({str(SOURCE): head_of(self.source)})
        lake.table(TARGET).append(ROWS, snapshot_properties=mark)

    @property
    def source(self) -> Table:
        return self.lake.table(SOURCE)

    def ages(self, seconds: float) -> None:
        """Let the snapshots of the source be older by some seconds."""
        by = int(seconds * 1000)

        def older(metadata: dict[str, object]) -> dict[str, object]:
            times = {
                name: [{**e, "timestamp-ms": e["timestamp-ms"] - by} for e in metadata[name]]  # type: ignore[union-attr]
                for name in ("snapshots", "snapshot-log")
            }
            return {**metadata, **times}

        commit(self.source, older)

    @property
    def left(self) -> HistoryLeft:
        return table_status(self.lake, TARGET).history[str(SOURCE)]

    @property
    def shown(self) -> str:
        return behind_column(table_status(self.lake, TARGET), {})


def test_it_follows_from_the_retention_that_the_owner_has_declared(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(plain_lake, monkeypatch, {"history.expire.max-snapshot-age-ms": "172800000"})
    world.ages(12 * HOUR)
    left = world.left
    assert left.seconds == pytest.approx(36 * HOUR, abs=60)
    assert left.snapshot_age == pytest.approx(12 * HOUR, abs=60)
    assert (left.is_protected, left.is_pending, left.why) == (False, False, "the table's declared retention")
    assert world.shown == "[green]up to date[/]"
    # Nothing waits, but what comes next may be lost within a day.
    world.ages(24 * HOUR)
    assert "src.t keeps its history for 12 hours more" in world.shown
    world.source.append(ROWS)
    assert world.left.is_pending
    world.ages(20 * HOUR)
    assert "src.t may lose its history at any time" in world.shown


def test_without_a_declared_retention_icebergs_own_is_assumed(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(plain_lake, monkeypatch)
    world.ages(30 * DAY)
    assert (world.left.seconds, world.left.is_known) == (0, False)
    assert world.shown == "[green]up to date[/]", "whether its owner expires anything is not known"
    world.source.append(ROWS)
    assert "src.t may lose its history at any time" in world.shown


def test_a_tag_protects_it_until_the_tag_expires(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(plain_lake, monkeypatch, {"history.expire.max-snapshot-age-ms": "1000"})
    keep_sources(plain_lake, TARGET, [SOURCE])
    world.ages(DAY)
    world.source.append(ROWS)
    left = world.left
    assert (left.is_protected, left.is_pending, left.seconds) == (True, True, None)
    assert left.why == "kept by consumer.raw.t"
    assert "history" not in world.shown
    with world.source.manage_snapshots() as changes:
        changes.remove_tag("consumer.raw.t")
    with world.source.transaction() as changed:
        changed.set_properties({"history.expire.max-ref-age-ms": "1000"})
    at = world.source.metadata.snapshots[0].snapshot_id
    commit(world.source, lambda m: {**m, "refs": {**m["refs"], "mine": {"snapshot-id": at, "type": "tag"}}})
    assert not world.left.is_protected, "the owner's tags expire after a second"


def test_the_newest_snapshots_stay_as_the_owner_has_declared(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"history.expire.max-snapshot-age-ms": "1000", "history.expire.min-snapshots-to-keep": "3"}
    world = World(plain_lake, monkeypatch, properties)
    world.ages(DAY)
    for kept in (True, True, False):
        world.source.append(ROWS)
        assert (world.left.seconds is None) == kept
    refs.keep_snapshots(world.source, 10)
    assert world.left.why == "the newest 10 snapshots stay"


def test_the_age_of_the_oldest_snapshot_tells_of_a_shorter_retention(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(plain_lake, monkeypatch)
    world.ages(4 * DAY)
    world.source.append(ROWS)
    mark = to_properties({str(SOURCE): head_of(world.source)})
    plain_lake.table(TARGET).append(ROWS, snapshot_properties=mark)
    world.ages(3 * HOUR)
    assert world.left.seconds == pytest.approx(5 * DAY - 3 * HOUR, abs=60)
    world.source.append(ROWS)
    world.source.maintenance.expire_snapshots().by_id(world.source.metadata.snapshots[0].snapshot_id).commit()
    left = world.left
    assert left.why == "the age of its oldest snapshot, before which others have expired"
    assert left.seconds == pytest.approx(0, abs=60)
    assert "src.t may lose its history at any time" in world.shown


def test_a_table_whose_files_nobody_may_delete_keeps_its_history(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(plain_lake, monkeypatch, {"gc.enabled": "false", "history.expire.max-snapshot-age-ms": "1000"})
    world.ages(DAY)
    world.source.append(ROWS)
    assert world.left.seconds is None


def test_tables_of_the_lake_keep_what_their_consumers_need(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(plain_lake, monkeypatch, {PIPELINE_PROPERTY: "p"})
    assert table_status(plain_lake, TARGET).history == {}
    assert world.shown == "[green]up to date[/]"

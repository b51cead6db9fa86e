"""What upkeep takes for due, from metadata alone: it agrees with Iceberg, and leaves what the next step starts from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lake_assets import Lake
from lake_assets.ingest.raw_tables import OFFSETS_PROPERTY, POSITION_PROPERTY
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, PROPERTY
from lake_assets.tables.upkeep_policy import DAY, DEFAULT_POLICY
from lake_assets.upkeep import upkeep_records
from lake_assets.upkeep.attend import look, needs_a_look
from lake_assets.upkeep.table_health import _expirable, health_of
from lake_assets.upkeep.upkeep_actions import due_actions
from lake_assets.upkeep.upkeep_records import Done, Look

NAME = TableId(("raw",), "t")
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
NOTHING_KEPT = replace(DEFAULT_POLICY, keep=0.0, commits=5)


@pytest.fixture
def table(plain_lake: Lake) -> Callable[..., Table]:
    """Makes a table, or adds commits to it, each with the same properties."""

    def make(commits: int, name: TableId = NAME, **properties: str) -> Table:
        plain_lake.ensure_namespace(name.namespace)
        if not plain_lake.exists(name):
            plain_lake.catalog.create_table(name.parts, ROWS.schema, properties={PIPELINE_PROPERTY: "p"})
        for _ in range(commits):
            plain_lake.table(name).append(ROWS, snapshot_properties=properties)
        return plain_lake.table(name)

    return make


def expirable(table: Table) -> int:
    return _expirable(table, int(time.time() * 1000) + 1, time.time())


def test_while_a_backfill_keeps_all_snapshots_none_is_counted_as_one_that_can_expire(
    plain_lake: Lake, table: Callable[..., Table]
) -> None:
    made = table(24)
    assert expirable(made) == 4
    oldest = made.metadata.snapshots[0].snapshot_id
    refs.set_tag(made, f"{refs.BACKFILL_TAG}1", oldest, 30)
    assert expirable(plain_lake.table(NAME)) == 0
    refs.drop(plain_lake.table(NAME), f"{refs.BACKFILL_TAG}1")
    assert expirable(plain_lake.table(NAME)) == 4


def test_tags_and_branches_keep_what_iceberg_keeps_for_them(plain_lake: Lake, table: Callable[..., Table]) -> None:
    made = table(26)
    ids = [s.snapshot_id for s in made.metadata.snapshots]
    refs.set_tag(made, "mine", ids[1], 1)
    assert expirable(plain_lake.table(NAME)) == 5
    # A branch keeps twenty of its own.
    refs.create_branch(plain_lake.table(NAME), "work", ids[3], 1)
    assert expirable(plain_lake.table(NAME)) == 2
    # Their age is over.
    assert _expirable(plain_lake.table(NAME), int(time.time() * 1000) + 1, time.time() + 3 * DAY) == 6


@pytest.mark.parametrize(
    "properties", [{POSITION_PROPERTY: "3"}, pytest.param({PROPERTY: "{}"}, marks=pytest.mark.long)]
)
def test_the_commit_from_which_the_next_step_starts_never_expires(
    properties: dict[str, str], table: Callable[..., Table]
) -> None:
    table(3, **properties)
    made = table(thresholds.SNAPSHOTS_KEPT + 5)
    last = made.metadata.snapshots[2]
    health = health_of(NAME, made, NOTHING_KEPT, time.time() + 60)
    assert health.expire_before <= last.timestamp_ms
    assert health.expirable <= 2
    assert health.since_watermark == thresholds.SNAPSHOTS_KEPT + 5
    # And no rewrite pushes it further back.
    assert "combine" in {a.kind for a in due_actions(replace(health, since_watermark=0), NOTHING_KEPT, 0.0)}
    assert "combine" not in {a.kind for a in due_actions(health, NOTHING_KEPT, 0.0)}


def test_how_far_a_python_source_has_landed_stays_although_files_have_landed_since(table: Callable[..., Table]) -> None:
    table(1, **{POSITION_PROPERTY: "3", OFFSETS_PROPERTY: '{"a": 1}'})
    made = table(thresholds.SNAPSHOTS_KEPT + 5, **{POSITION_PROPERTY: "6"})
    health = health_of(NAME, made, NOTHING_KEPT, time.time() + 60)
    assert health.since_watermark == 0
    assert health.expirable == 0


def test_a_table_is_looked_at_again_if_something_was_left_or_has_happened(
    plain_lake: Lake, table: Callable[..., Table]
) -> None:
    policy = replace(DEFAULT_POLICY, commits=5)
    made, wanted, now = table(5), {NAME: policy}, time.time()
    assert needs_a_look(plain_lake, wanted) == [NAME]
    head = made.metadata.current_snapshot_id
    upkeep_records.looked(plain_lake, NAME, Look(now, head, is_due=False))
    assert needs_a_look(plain_lake, wanted) == []
    assert needs_a_look(plain_lake, wanted, now + thresholds.UPKEEP_LOOK_SECONDS + 1) == [NAME]
    # What is left of a rewrite does not show in the table's metadata.
    upkeep_records.looked(plain_lake, NAME, Look(now, head, is_due=True))
    assert needs_a_look(plain_lake, {NAME: replace(policy, commits=500)}) == [NAME]
    upkeep_records.looked(plain_lake, NAME, Look(now, head, is_due=False))
    table(1)
    assert needs_a_look(plain_lake, wanted) == [NAME]
    assert needs_a_look(plain_lake, {NAME: replace(policy, commits=6, age=0.0)}) == [NAME]


def test_the_files_of_an_idle_table_are_searched_once_a_week(plain_lake: Lake, table: Callable[..., Table]) -> None:
    table(1)
    wanted, now, week = {NAME: DEFAULT_POLICY}, time.time(), thresholds.ORPHAN_SEARCH_SECONDS
    upkeep_records.looked(plain_lake, NAME, Look(now, None, is_due=False))
    assert needs_a_look(plain_lake, wanted, now + week - 60) == []
    assert needs_a_look(plain_lake, wanted, now + week + 60) == [NAME]
    assert [a.kind for a in look(plain_lake, NAME, DEFAULT_POLICY, now + week + 60).due] == ["orphans"]
    upkeep_records.add(plain_lake, NAME, [Done("orphans", "", now + week + 60, 1.0)], now + week + 60)
    # Other actions do not make it forget when it was.
    often = [Done("combine", "", now + week + 90, 1.0, files=1)] * 200
    upkeep_records.add(plain_lake, NAME, often, now + week + 90)
    assert upkeep_records.read(plain_lake, NAME, now + week + 90).last("orphans") is not None
    assert needs_a_look(plain_lake, wanted, now + 2 * week) == []


def test_an_action_after_which_there_were_more_files_counts_as_one_that_gained_nothing(
    plain_lake: Lake, table: Callable[..., Table]
) -> None:
    table(1)
    now = time.time()
    upkeep_records.add(plain_lake, NAME, [Done("combine", "", now, 1.0, files=-3)], now)
    assert upkeep_records.read(plain_lake, NAME, now + 1).is_paused("combine", now + 1)

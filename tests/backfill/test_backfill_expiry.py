"""Others expire snapshots while a backfill is open, and while it can be undone."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from lake_assets.backfill.backfill_record import Records
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.errors import StaleBackfillError
from lake_assets.lake.thresholds import SNAPSHOTS_KEPT
from tests.support.backfilled_people import begin
from tests.support.damages import Damages
from tests.support.people import CITIES, People
from tests.support.upkeep import compact_and_expire, forget_history

pytestmark = pytest.mark.spark

TABLES = ("raw.events", "staging.people", "final.people", "agg.cities")


def damaged(lake: Lake) -> tuple[People, Damages]:
    """People with wrong rows, in tables that keep only one snapshot when others expire them."""
    people = People(lake, CITIES)
    damages = Damages(people, 1)
    people.land(20)
    people.run()
    for table in TABLES:
        people.sql(f"ALTER TABLE {table} REPLACE BRANCH main WITH SNAPSHOT RETENTION 1 SNAPSHOTS")
    damages.events_absorbed()
    damages.happen()
    people.run()
    return people, damages


def kept(lake: Lake) -> set[int | None]:
    return {lake.table(t).metadata.refs["main"].min_snapshots_to_keep for t in TABLES[1:]}  # others write raw tables


def batches(people: People, count: int) -> None:
    """Micro-batches, each followed by others' upkeep, which keeps as little as it can."""
    for _ in range(count):
        people.land(4)
        people.run()
        compact_and_expire(people.lake, *TABLES[2:])


def expire_tags(people: People) -> None:
    """Drop the tags of backfills, as Iceberg does when they expire."""
    for table in TABLES:
        for name in [n for n in people.lake.table(table).metadata.refs if n.startswith("backfill-")]:
            people.sql(f"ALTER TABLE {table} DROP TAG `{name}`")


@pytest.mark.long
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.long)])
def test_expiry_takes_neither_publishing_nor_undoing_from_a_backfill(lake: Lake, count: int) -> None:
    people, _ = damaged(lake)
    backfill = begin(people, publish="manual")
    backfill.build()
    batches(people, count)
    backfill.publish()
    people.check()
    batches(people, count)
    undone = undo(lake, people.feed.pipeline, backfill.record.id)
    undone.build()
    batches(people, count)
    undone.publish()
    assert Records(lake).get(backfill.record.id).state == "undone"

    # When the tags are gone, as after the days for which it can be undone, the table's own number counts again.
    assert 1 not in kept(lake)
    expire_tags(people)
    people.land(4)
    people.run()
    assert kept(lake) == {1}


@pytest.mark.long
def test_a_backfill_continues_after_expiry_unless_the_rows_it_began_with_are_gone(lake: Lake) -> None:
    people, _ = damaged(lake)
    backfill = begin(people, publish="manual")
    backfill._prepare()
    batches(people, 2)
    Backfill.load(lake, people.feed.pipeline, backfill.record.id).build()
    expire_tags(people)
    people.land(4)
    people.run()
    forget_history(lake, *TABLES[2:])
    again = Backfill.load(lake, people.feed.pipeline, backfill.record.id)
    for go_on in (again.publish, again.build):
        with pytest.raises(StaleBackfillError, match=f"lake-assets discard {backfill.record.id}") as e:
            go_on()
        assert "30 days" in str(e.value)
    again.discard()
    assert kept(lake) == {1}
    fresh = begin(people, publish="manual")
    fresh.build()
    fresh.publish()
    people.check()


@pytest.mark.long
def test_main_keeps_its_usual_number_of_snapshots_without_backfills(lake: Lake) -> None:
    people = People(lake, CITIES)
    people.land(5)
    people.run()
    backfill = begin(people, publish="manual")
    backfill.build()
    assert kept(lake) != {SNAPSHOTS_KEPT}
    backfill.discard()
    assert kept(lake) == {SNAPSHOTS_KEPT}

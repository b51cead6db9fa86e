"""Upkeep while a backfill is open, published and undone, and after steps that were killed before they set their tags."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lake_assets import Lake
from lake_assets.backfill.backfills import undo
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.tables.upkeep_policy import UpkeepPolicy
from lake_assets.upkeep.attend import attend, look
from lake_assets.upkeep.attended import Attended
from lake_assets.upkeep.upkept_tables import policies
from tests.support.backfilled_people import TABLES, begin, complete, damaged
from tests.support.people import CITIES, People

EAGER = {"commits": 3, "small_files": "1%", "deleted_rows": "10%", "keep": "0s", "age": "1d"}
pytestmark = pytest.mark.usefixtures("eager")


def eager(people: People) -> People:
    config = people.feed.pipeline.config
    config.upkeep = type(config.upkeep)(**EAGER)
    return people


def wanted(people: People) -> Mapping[TableId, UpkeepPolicy]:
    return policies(people.feed.pipeline, people.lake)


def looked_after(people: People) -> list[Attended]:
    """Do what is due; rows stay."""
    before = {t: people.rows(t) for t in TABLES if people.lake.exists(t)}
    done = attend(people.lake, wanted(people), is_forced=True)
    assert [a for a in done if a.done is None or a.done.error] == []
    assert {t: people.rows(t) for t in before} == before
    return done


def more(people: People, times: int = 3) -> None:
    for _ in range(times):
        people.land(5)
        people.run()


@pytest.mark.long
@pytest.mark.parametrize("catches_up", [False, True])
def test_a_backfill_is_published_and_undone_although_its_tables_are_looked_after(lake: Lake, catches_up: bool) -> None:
    people, damages = damaged(lake)
    eager(people)
    more(people)
    damages.events_absorbed()
    damages.happen()
    people.run()
    looked_after(people)
    before = people.rows("final.people")
    backfill = begin(people)
    backfill.build()
    kinds = {a.action.kind for a in looked_after(people) if a.action.table == "final.people"}
    # All of its snapshots are kept for the backfill: Iceberg is not asked in vain.
    assert "expire" not in kinds
    if catches_up:
        people.land(2)
        people.run()
        damages.events_absorbed()
        before = people.rows("final.people")
        looked_after(people)
    done = complete(backfill)
    damages.wrong = {}
    people.run()
    damages.check()
    looked_after(people)
    people.check()
    complete(undo(lake, people.feed.pipeline, done.record.id))
    looked_after(people)
    people.run()
    assert people.rows("final.people") == before
    looked_after(people)
    assert look(lake, TableId.parse("final.people"), wanted(people)[TableId.parse("final.people")]).due == []


@pytest.mark.long
def test_what_a_killed_step_has_absorbed_is_tagged_before_snapshots_expire(lake: Lake) -> None:
    people = eager(People(lake, CITIES))
    more(people, 2)
    # The step has committed, and was killed before it moved its tag.
    refs.drop(lake.table("staging.people"), "consumer.final.people")
    for _ in range(4):
        people.land(5)
        people.run("raw.events", "staging.people")
    done = looked_after(people)
    assert ("staging.people", "expire") in {(a.action.table, a.action.kind) for a in done}
    assert people.run("final.people")["final.people"].status == "absorbed"
    people.check()

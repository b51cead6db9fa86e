"""A backfill redoes tables aside and publishes them together: main shows all of it or nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from lake_assets import Lake
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.redone_rows import Selection
from lake_assets.lake import TableId
from lake_assets.pipeline.verification import verify
from tests.support.people import AGES, CITIES, OLDEST, PEOPLE, People
from tests.support.streams import heads


def begin(people: People, table: str, selection: Selection | None = None, **options: Any) -> Backfill:
    pipeline = people.feed.pipeline
    planned = plan(people.lake, pipeline, TableId.parse(table), selection or Selection())
    return Backfill.begin(people.lake, pipeline, planned, **options)


def damage(people: People) -> None:
    """Change rows of the final table behind the pipeline's back, as a bug did in the past."""
    people.sql(f"UPDATE {people.lake.sql_name('final.people')} SET age = 99 WHERE id % 2 = 0")


def test_everything_is_redone_and_published_at_once(lake: Lake) -> None:
    people = People(lake, CITIES, OLDEST, AGES)
    people.land(20)
    people.run()
    damage(people)
    people.run()
    damaged = {t: people.rows(t) for t in ("final.people", "agg.cities", "agg.oldest", "agg.ages")}
    backfill = begin(people, "final.people")
    before = heads(lake)
    backfill.build()
    assert heads(lake) == before
    assert {t: people.rows(t) for t in damaged} == damaged
    people.land(6)
    people.run()
    backfill.publish()
    people.check()
    assert people.run()["agg.oldest"].status == "nothing"
    people.land(6)
    people.run()
    people.check()
    print("BEFORE", sorted(map(str, damaged["final.people"])))
    print("NOW", sorted(map(str, people.rows("final.people"))))
    undone = undo(lake, people.feed.pipeline, backfill.record.id)
    undone.build()
    undone.publish()
    print("UNDONE", sorted(map(str, people.rows("final.people"))))
    assert [r for r in people.rows("final.people") if r[2] == 99]

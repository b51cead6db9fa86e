"""Backfills of people whose final table has wrong rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from lake_assets import Lake
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.row_selection import Selection
from lake_assets.lake import TableId
from tests.support.damages import Damages
from tests.support.people import AGES, CITIES, OLDEST, People
from tests.support.pipeline_files import write_pipeline

TABLES = ("final.people", "agg.cities", "agg.oldest", "agg.ages")


def begin(people: People, table: str = "final.people", selection: Selection | None = None, **options: Any) -> Backfill:
    pipeline = people.feed.pipeline
    settings = {k: options.pop(k) for k in ("downstream", "max_rows") if k in options}
    planned = plan(people.lake, pipeline, TableId.parse(table), selection or Selection(), **settings)
    return Backfill.begin(people.lake, pipeline, planned, **options)


def complete(backfill: Backfill) -> Backfill:
    backfill.build()
    backfill.publish()
    return backfill


def damaged(lake: Lake, **declared: Any) -> tuple[People, Damages]:
    """People with three models, whose final table has wrong rows that the models have absorbed."""
    people = People(lake, CITIES, OLDEST, AGES, **declared)
    damages = Damages(people, 1)
    people.land(20)
    people.run()
    damages.events_absorbed()
    damages.happen()
    people.run()
    damages.check()
    return people, damages


def declare(people: People, *models: dict[str, Any]) -> Path:
    """Declare the people's tables, also in a file of the pipelines of a user at the shell."""
    people.declare(*models)
    streams = [{"name": "events", "tables": [people.declared]}]
    return write_pipeline(Path("pipelines/defs.yaml"), {"name": "made_up", "streams": streams, "models": [*models]})


History = tuple[People, Damages]


def cities_of(damages: Damages) -> Counter[Any]:
    return Counter(r[1] for r in damages.truth().elements())

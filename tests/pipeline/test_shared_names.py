"""Source tables that match a pattern, but whose name is already in use: they fail separately."""

from __future__ import annotations

from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import TableClaimedError
from lake_assets.pipeline.pipeline_checks import check
from tests.support.debezium import BIGINT, TEXT, Event, Table
from tests.support.streams import Feed, pipeline


def created(table: str, at: int, v: str, id: int = 1) -> Event:
    return Event(Table({"id": BIGINT, "v": TEXT}, name=table), "c", (at, at), {"id": id, "v": v})


def rows(feed: Feed, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in feed.rows(table).collect())


@pytest.mark.parametrize(
    "together", [True, pytest.param(False, marks=pytest.mark.long)], ids=["in one file", "in a later one"]
)
def test_a_table_of_another_schema_with_the_same_name_stops_itself_alone(lake: Lake, together: bool) -> None:
    feed = Feed(lake, "*.*")
    first = [created("public.items", 1, "a"), created("public.others", 2, "b")]
    # Its name sorts before the first table; that matters only if both appear together.
    second = created("x.items" if together else "a.items", 3, "c", id=2)
    if together:
        feed.land([*first, second])
    else:
        feed.deliver(first)
        feed.land([second, created("public.items", 4, "d", id=3)])
    outcomes = feed.outcomes()
    failed = [o for o in outcomes.values() if o.exception]
    assert [type(o.exception) for o in failed] == [TableClaimedError]
    (error,) = (o.error or "" for o in failed)
    assert f"{'x' if together else 'a'}.items of raw.events" in error
    assert "public.items of raw.events has that name" in error
    items = [(1, "a")] if together else [(1, "a"), (3, "d")]
    assert (rows(feed, "final.items"), rows(feed, "final.others")) == (items, [(1, "b")])
    assert [m for m in check(feed.pipeline, lake).mistakes if ".items of raw.events" in m]
    if together:
        return
    # The error's advice, with all earlier events.
    feed.pipeline = pipeline("*.*", {"table": str(second.table.name), "name": "others_items"})
    feed.run()
    assert rows(feed, "final.others_items") == [(2, "c")]
    assert check(feed.pipeline, lake).mistakes == ()


def test_a_name_stays_with_the_table_that_has_it_whatever_is_declared_later(lake: Lake) -> None:
    feed = Feed(lake, "*.*")
    feed.deliver([created("x.items", 1, "a")])
    feed.pipeline = pipeline("*.*", "public.items")
    feed.land([created("public.items", 2, "b", id=2), created("x.items", 3, "c", id=3)])
    failed = [o for o in feed.outcomes().values() if o.exception]
    assert [type(o.exception) for o in failed] == [TableClaimedError]
    assert "public.items of raw.events: x.items of raw.events has that name" in (failed[0].error or "")
    assert rows(feed, "final.items") == [(1, "a"), (3, "c")]


@pytest.mark.long
def test_a_table_is_not_filled_with_the_events_of_another_source_table(lake: Lake) -> None:
    feed = Feed(lake, "x.items")
    feed.deliver([created("x.items", 1, "a"), created("public.items", 2, "b", id=2)])
    feed.pipeline = pipeline("public.items")
    feed.land([created("public.items", 3, "c", id=3)])
    outcome = feed.outcomes()["staging.items"]
    assert isinstance(outcome.exception, TableClaimedError)
    assert rows(feed, "final.items") == [(1, "a")]
    for table in ("staging.items", "final.items"):
        lake.spark().sql(f"DROP TABLE {table}")
    feed.run()
    assert rows(feed, "final.items") == [(2, "b"), (3, "c")]


def test_a_model_keeps_its_name_when_a_pattern_finds_a_table_of_that_name(lake: Lake) -> None:
    sql = "SELECT id FROM final.others"
    feed = Feed(lake, "public.*", models=[{"name": "final.items", "sql": sql}])
    feed.land([created("public.items", 1, "a"), created("public.others", 2, "b", id=2)])
    failed = [o for o in feed.outcomes().values() if o.exception]
    assert [type(o.exception) for o in failed] == [TableClaimedError]
    assert "final.items is a model of this pipeline" in (failed[0].error or "")
    assert rows(feed, "final.items") == [(2,)]

"""Backfills of lakes in a REST catalog: the tests of the embedded catalog over Iceberg's own server."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema

from lake_assets import Lake
from lake_assets.backfill import publishing
from lake_assets.backfill.backfill_record import Records
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.publishing import settled
from lake_assets.errors import BackfillError, TableNotFoundError
from lake_assets.health.lake_status import own_tables
from lake_assets.lake.metadata import rest_commits
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from tests.support.backfill_histories import go_through
from tests.support.backfilled_people import TABLES, History, begin, cities_of, complete, damaged
from tests.support.damages import Damages
from tests.support.killed_backfills import (
    around_backfills,
    killed_backfill,
    killed_discard,
    killed_undo,
    published_all_at_once,
)
from tests.support.kills import Killed, Points
from tests.support.lakes import lake_on
from tests.support.people import AGES, CITIES, OLDEST, People
from tests.support.rest_server import RestServer
from tests.support.seeds import seeds

pytestmark = [pytest.mark.system, pytest.mark.spark]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    server = RestServer(tmp_path_factory.mktemp("rest"))
    yield server
    server.close()


@pytest.fixture
def new_lake(server: RestServer, spark_lake: Lake, tmp_path: Path) -> Iterator[Callable[[str], Lake]]:
    """As in conftest, with each lake in a catalog of its own."""
    with contextlib.ExitStack() as stack:

        def make(name: str) -> Lake:
            folder = tmp_path / f"{name}-server"
            folder.mkdir()
            return lake_on(spark_lake, tmp_path / name, stack.enter_context(server.catalog(folder)))

        yield make


@pytest.fixture
def everywhere(points: Points, monkeypatch: pytest.MonkeyPatch) -> Points:
    return around_backfills(points, monkeypatch)


@pytest.fixture
def lake(new_lake: Callable[[str], Lake]) -> Lake:
    return new_lake("lake")


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(100, 3))
def test_a_random_history_over_rest(lake: Lake, seed: int) -> None:
    go_through(lake, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(106, 2))
def test_a_random_history_published_one_table_after_the_other(lake: Lake, one_by_one: OneByOne, seed: int) -> None:
    go_through(lake, seed)


class OneByOne:
    """A server without transactions, and a process that ends after it has published so many tables (None: never)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends_after: int | None = None
        self._published: int | None = None
        self._commit, self._together = rest_commits.commit, publishing.commit_together
        monkeypatch.setattr(rest_commits, "has_transactions", lambda catalog: False)
        monkeypatch.setattr(rest_commits, "commit", self._counted)
        monkeypatch.setattr(publishing, "commit_together", self._publishing)

    def _publishing(self, changes: Any) -> None:
        self._published = 0
        self._together(changes)
        self._published = None

    def _counted(self, catalog: Any, changes: Any) -> None:
        self._commit(catalog, changes)
        if self._published is not None:
            self._published += 1
            if self._published == self.ends_after:
                self._published = self.ends_after = None
                raise Killed


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> OneByOne:
    return OneByOne(monkeypatch)


# A model that reads a table that the backfill does not redo.
EVENTS = {
    "name": "agg.events",
    "sql": "SELECT p.id, count(*) AS events FROM final.people p JOIN staging.people s ON s.id = p.id GROUP BY p.id",
}


def killed_while_publishing(
    lake: Lake, one_by_one: OneByOne, tables: int, *models: dict[str, Any]
) -> tuple[People, Backfill]:
    """A backfill of at least four tables whose process ended when it had published some of them."""
    people, _ = damaged(lake)
    if models:
        people.declare(CITIES, OLDEST, AGES, *models)
        people.run()
    backfill = begin(people)
    backfill.build()
    one_by_one.ends_after = tables
    with pytest.raises(Killed):
        backfill.publish()
    return people, backfill


@pytest.mark.long  # as without transactions
@pytest.mark.parametrize("beside_batches", [False, pytest.param(True, marks=pytest.mark.long)])
def test_all_tables_are_published_in_one_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, beside_batches: bool
) -> None:
    commit, sent = rest_commits.commit, list[int]()

    def noted(catalog: Any, changes: Any) -> None:
        sent.append(len(changes))
        commit(catalog, changes)

    monkeypatch.setattr(rest_commits, "commit", noted)
    history = damaged(lake)
    if beside_batches:
        published_all_at_once(history)
    else:
        complete(begin(history[0]))
        history[0].check()
    assert [n for n in sent if n > 1] == [len(TABLES)]
    assert [*(lake.config.home / "backfills").glob("*.db*")] == []


@pytest.mark.long
def test_changed_columns_are_published_too(lake: Lake) -> None:
    people, _ = damaged(lake)
    people.declare({**CITIES, "sql": "SELECT city, count(*) AS n, max(age) AS oldest FROM final.people GROUP BY city"})
    complete(begin(people))
    people.run()
    people.check()
    assert "oldest" in [f.name for f in lake.table("agg.cities").schema().fields]


@pytest.mark.long
def test_without_transactions_whoever_looks_next_publishes_the_rest(lake: Lake, one_by_one: OneByOne) -> None:
    people, backfill = killed_while_publishing(lake, one_by_one, 2)
    record = settled(lake, Records(lake).get(backfill.record.id))
    assert (record.state, record.error) == ("published", "")
    assert {o.status for o in people.run().values()} == {"nothing"}
    people.check()
    complete(undo(lake, people.feed.pipeline, record.id))
    assert Records(lake).get(record.id).state == "undone"
    people.land(4)
    people.run()


@pytest.mark.long
def test_micro_batches_between_two_tables_are_absorbed_before_the_rest_is_published(
    lake: Lake, one_by_one: OneByOne
) -> None:
    people, backfill = killed_while_publishing(lake, one_by_one, 3, EVENTS)
    people.land(6)
    people.run()
    loaded = Backfill.load(lake, people.feed.pipeline, backfill.record.id)
    # A table that is left reads more than tables of the backfill.
    assert loaded.record.state == "publishing"
    with pytest.raises(BackfillError, match=f"`lake-assets publish {loaded.record.id}` publishes the other tables"):
        loaded.discard()
    loaded.build()
    loaded.publish()
    assert Records(lake).get(loaded.record.id).state == "published"
    people.run()
    people.check()


@pytest.mark.long
def test_a_table_that_others_write_to_between_two_tables_keeps_nobody_waiting(lake: Lake, one_by_one: OneByOne) -> None:
    people, backfill = killed_while_publishing(lake, one_by_one, 1)
    people.sql(f"DELETE FROM {lake.sql_name('agg.ages')}")
    record = settled(lake, Records(lake).get(backfill.record.id))
    assert record.state == "published"
    assert "agg.ages has changed since the backfill" in record.error
    assert [t.table for t in record.tables if t.after is None] == ["agg.ages"]
    people.run()
    assert people.rows("agg.cities") == Counter(cities_of(Damages(people, 1)).items())


@pytest.mark.long
@pytest.mark.parametrize(
    "test",
    [
        pytest.param(killed_backfill, id="test_a_backfill_that_is_killed_at_any_point_is_continued_and_published_once"),
        pytest.param(killed_undo, id="test_an_undo_that_is_killed_at_any_point_is_completed"),
        pytest.param(killed_discard, id="test_a_discard_that_is_killed_can_only_be_completed"),
    ],
)
def test_readers_see_all_of_a_killed_backfill_or_nothing(
    test: Callable[[History, Points], None],
    lake: Lake,
    everywhere: Points,
) -> None:
    test(damaged(lake), everywhere)


@pytest.mark.long
def test_all_tables_of_nested_namespaces_are_found(lake: Lake) -> None:
    for name in ("final.shop.users", "final.shop.eu.users"):
        namespace = tuple(name.split(".")[:-1])
        for depth in range(1, len(namespace) + 1):
            lake.ensure_namespace(namespace[:depth])
        lake.catalog.create_table(name, Schema(), properties={PIPELINE_PROPERTY: "p"})
    assert [str(t) for t in own_tables(lake)] == ["final.shop.users", "final.shop.eu.users"]
    with pytest.raises(TableNotFoundError, match=r"did you mean final\.shop\.eu\.users"):
        lake.table("finale.shop.eu.users")

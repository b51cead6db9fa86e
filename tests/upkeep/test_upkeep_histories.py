"""Upkeep at any point of a pipeline's life, also killed: tables hold what they held, and captures see nothing of it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.lake import TableId
from lake_assets.tables import table_lock
from lake_assets.tables.upkeep_policy import Budget, UpkeepPolicy
from lake_assets.upkeep import attend as attend_module
from lake_assets.upkeep.attend import attend, look, needs_a_look
from lake_assets.upkeep.attended import Attended
from lake_assets.upkeep.upkept_tables import policies
from tests.support.kills import Killed, Points
from tests.support.people import AGES, CITIES, OLDEST, RANKED, People
from tests.support.seeds import long_seeds

# So eager that a few batches make every kind of action due.
EAGER: dict[str, Any] = {"commits": 3, "small_files": "1%", "deleted_rows": "10%", "keep": "0s", "age": "1d"}
TABLES = ("raw.events", "staging.people", "final.people", "agg.cities", "agg.oldest", "agg.ages", "agg.ranked")


pytestmark = pytest.mark.usefixtures("eager")


class World:
    """A pipeline, and what its tables held before upkeep."""

    def __init__(self, lake: Lake, seed: int = 0, *models: dict[str, Any]) -> None:
        self.lake = lake
        declared = [{}, {"mode": "scd2"}, {"deletes": "soft"}][seed % 3]
        self.people = People(lake, *models, seed=seed, **declared)
        self.people.feed.pipeline.config.upkeep = type(self.people.feed.pipeline.config.upkeep)(**EAGER)

    @property
    def wanted(self) -> Mapping[TableId, UpkeepPolicy]:
        return policies(self.people.feed.pipeline, self.lake)

    def rows(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return {t: self.people.rows(t) for t in TABLES if self.lake.exists(t)}

    def heads(self) -> dict[str, int | None]:
        return {t: self.lake.table(t).metadata.current_snapshot_id for t in TABLES if self.lake.exists(t)}

    def attend(self) -> list[Attended]:
        """Do all that is due, and see that nobody can tell."""
        pending = {(p.table, p.source) for p in self.people.feed.pipeline.pending(self.lake)}
        before, heads = self.rows(), self.heads()
        ids = self.ids()
        done = attend(self.lake, self.wanted, is_forced=True)
        assert [a for a in done if a.done is None or a.done.error] == []
        self.unchanged(before, heads, ids)
        assert {(p.table, p.source) for p in self.people.feed.pipeline.pending(self.lake)} == pending
        return done

    def ids(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """The row ids and versions of tables of format v3."""
        rows = "SELECT _row_id, _last_updated_sequence_number FROM {}"
        tables = [t for t in TABLES if self.lake.exists(t) and self.lake.table(t).format_version >= 3]
        return {
            t: Counter(tuple(r) for r in self.lake.spark().sql(rows.format(self.lake.sql_name(t))).collect())
            for t in tables
        }

    def unchanged(
        self,
        rows: Mapping[str, Counter[tuple[Any, ...]]],
        heads: Mapping[str, int | None],
        ids: Mapping[str, Counter[tuple[Any, ...]]],
    ) -> None:
        assert self.rows() == rows
        assert self.ids() == ids
        for table, head in heads.items():
            if head is not None and self.lake.table(table).snapshot_by_id(head) is not None:
                with self.lake.capture(table, start=head) as captured:
                    assert captured.feed(self.lake.spark()).count() == 0, table


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 12)])
def test_nobody_can_tell_that_tables_were_looked_after(lake: Lake, points: Points, seed: int) -> None:
    models = (CITIES,) if seed == 0 else (CITIES, OLDEST, AGES, RANKED)
    world, choose = World(lake, seed, *models), random.Random(seed)
    tables = [*TABLES[:3], *(m["name"] for m in models)]
    kinds: Counter[str] = Counter()
    for step in range(3 if seed == 0 else 10):
        world.people.land(choose.choice([1, 4, 12]))
        if choose.random() < 0.8:
            world.people.run(*choose.sample(tables, 3) if choose.random() < 0.3 else ())
        is_due = step % 3 == 2
        # In the short history, upkeep is killed when something is certainly due.
        if seed == 0 if is_due else choose.random() < 0.4:
            points.seen, points.armed, points.ended = [], True, False
            skipped = choose.randrange(6)
            points.seen = [f"after {what}" for what in ("CREATE BRANCH", "publishing")][: skipped % 2]
            before, heads, ids = world.rows(), world.heads(), world.ids()
            try:
                attend(lake, world.wanted, is_forced=True)
            except Killed:
                kinds["killed"] += 1
            points.armed = points.ended = False
            world.unchanged(before, heads, ids)
        if is_due:
            kinds.update(a.action.kind for a in world.attend())
    world.people.check()
    if seed:  # in the short history, upkeep was the last thing that happened
        kinds.update(a.action.kind for a in world.attend())
        world.people.check()
    assert kinds["combine"]
    assert kinds["expire"]
    assert kinds["killed"] or seed


@pytest.mark.long  # `lake-assets run` leaves one file, and snapshots expire as counted
def test_files_snapshots_and_deletes_stay_few(lake: Lake) -> None:
    world = World(lake)
    for _ in range(3):
        world.people.land(5)
        world.people.run()
        attend(lake, world.wanted, is_forced=True)
    for table, policy in world.wanted.items():
        found = look(lake, table, policy)
        assert found.due == [], table
        assert found.health.files <= 4, table
        # The newest, those with tags of consumers, and those that were made since the last that expired.
        assert found.health.snapshots <= 3 + len(found.health.holds) + 2 + 2, table
        assert found.health.worn < 3, table
    assert needs_a_look(lake, world.wanted) == []


@pytest.mark.long  # the lock is that of test_a_step_waits_for_upkeep_of_its_table
def test_a_table_that_a_step_holds_is_left_for_later(lake: Lake, points: Points) -> None:
    world = World(lake)
    for _ in range(2):
        world.people.land(5)
        world.people.run()
    world.people.land(5)
    attended: list[Attended] = []

    def meanwhile(what: str) -> None:
        points.hook = None
        attended.extend(attend(lake, world.wanted, is_forced=True))

    # Within the step of the final table.
    world.people.run("raw.events", "staging.people")
    points.hook = meanwhile
    world.people.run("final.people")
    left = {a.action.table for a in attended if a.done is None}
    assert left == {"final.people"}
    assert all(a.why_not == "a step is at work on the table" for a in attended if a.done is None)
    assert {a.action.table for a in attended if a.done} >= {"raw.events", "staging.people"}
    world.people.check()


def test_a_step_waits_for_upkeep_of_its_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lake)
    for _ in range(2):
        world.people.land(5)
        world.people.run()
    world.people.land(5)
    world.people.run("raw.events", "staging.people")
    real, started, outcomes = attend_module.carry_out, threading.Event(), list[Any]()
    step = threading.Thread(target=lambda: outcomes.append(world.people.run("final.people")))

    def slow(*args: Any) -> Any:
        if str(args[1]) == "final.people" and not started.is_set():
            started.set()
            step.start()
            step.join(2)
            assert step.is_alive()
        return real(*args)

    monkeypatch.setattr(attend_module, "carry_out", slow)
    done = attend(lake, world.wanted, is_forced=True)
    step.join(120)
    assert started.is_set()
    assert outcomes[0]["final.people"].status == "absorbed"
    assert not [a for a in done if a.action.table == "final.people" and a.action.kind == "combine" and not a.done]
    world.people.check()


@pytest.mark.long
def test_two_deployments_look_after_a_lake_while_it_changes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """On machines that share no folder: nothing but the checks of every commit keeps them apart."""
    monkeypatch.setattr(table_lock, "_opened", lambda *_: contextlib.nullcontext(None))
    world, kinds = World(lake, 0, CITIES, OLDEST), Counter[str]()
    for _ in range(2):
        world.people.land(5)
        world.people.run()
    for _ in range(2):
        world.people.land(5)
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(attend, lake, world.wanted, is_forced=True) for _ in range(2)]
            outcomes = world.people.run()
        assert [o for o in outcomes.values() if o.status == "failed"] == []
        attended = [a for each in both for a in each.result()]
        assert [a.text for a in attended if a.done and a.done.error] == []
        kinds.update(a.action.kind for a in attended if a.done)
        world.people.check()
    assert kinds["combine"]


@pytest.mark.long
def test_budget_and_quiet_hours_hold_back_what_nobody_asked_for(lake: Lake) -> None:
    world = World(lake)
    for _ in range(3):
        world.people.land(5)
        world.people.run()
    tiny = {t: replace(p, budget=Budget(bytes_an_hour=1)) for t, p in world.wanted.items()}
    done = attend(lake, tiny)
    assert len([a for a in done if a.done and a.done.bytes]) == 1
    assert {a.why_not for a in done if a.done is None} == {
        "the budget of 9.31e-10 GiB an hour is used up for this hour"
    }
    assert attend(lake, world.wanted, seconds=0)[0].why_not == "there was no time left"
    assert all(a.done for a in attend(lake, tiny, is_forced=True))

"""Targets are kept by as few absorptions as their readers need, or reported: days of arrivals, simulated."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from lake_assets.lake import thresholds
from lake_assets.pipeline.target_lag import LagPlan, TableLag, plan, unkept
from tests.support.seeds import long_seeds

DAY = 86_400.0
INTERVAL = 15.0


@dataclass
class Lake:
    """Tables whose steps take a known time, and changes that arrive in the first ones.

    A table has absorbed its sources up to a moment. What it holds is the arrival of the oldest change in each commit.
    Nothing is planned while a run is under way.

    Attributes:
        queues: by source and reader, what the reader has not absorbed: when it was committed, and when it arrived.
        reported: the tables whose targets were found not to be kept, by somebody who looks at each interval.
        untold: by table, by how much a lag exceeded its target without being found until then.
    """

    tables: list[TableLag]
    interval: float = INTERVAL
    now: float = 0.0
    queues: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    lags: dict[str, list[float]] = field(default_factory=dict)
    absorbed: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    reported: set[str] = field(default_factory=set)
    untold: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readers: dict[str, list[str]] = {t.table: [] for t in self.tables}
        for t in self.tables:
            for s in t.sources:
                self.readers[s].append(t.table)

    def arrive(self, table: str, at: float) -> None:
        self.queues.setdefault(("", table), []).append((at, at))

    def state(self) -> list[TableLag]:
        found: list[TableLag] = []
        for t in self.tables:
            arrived = [a for s in (*t.sources, "") for _, a in self.queues.get((s, t.table), ())]
            found.append(TableLag(t.table, t.sources, t.target, min(arrived, default=None), t.seconds))
        return found

    def tick(self) -> None:
        """Plan, and carry out the run: the steps of one depth at the same time."""
        state = self.state()
        found = plan(state, self.now, self.interval)
        chosen = set(found.run)
        needed = {s for t in self.tables if t.table in chosen for s in t.sources}
        for t in self.tables:
            if t.table in chosen - needed:
                self.is_due(t, found)
        ends: dict[str, float] = {}
        for t in self.tables:
            if t.table not in chosen:
                continue
            begin = max([self.now, *(ends[s] for s in t.sources if s in ends)])
            ends[t.table] = begin + t.seconds
            self.absorb(t, begin, ends[t.table])
        self.look(state, ends)
        self.runs += bool(chosen)
        self.now = max([self.now + self.interval, *ends.values()])

    def is_due(self, t: TableLag, found: LagPlan) -> None:
        """Check that a table that no other table of the run reads has a reason of its own to be absorbed."""
        if t.target is None:
            assert not self.readers[t.table], t
            return
        left = found.since[t.table] + t.target - found.needs[t.table] - self.interval - self.now
        assert left <= thresholds.TARGET_LAG_SHARE * t.target, t

    def look(self, state: list[TableLag], ends: Mapping[str, float]) -> None:
        """Look for targets that are not kept when a run begins, and while its steps are at work."""
        told: set[str] = set()
        for n in range(int((max(ends.values(), default=self.now) - self.now) / self.interval) + 1):
            at = self.now + n * self.interval
            # What is committed has a new state, which the next run looks at.
            told |= {u.table for u in unkept(state, at, self.interval) if ends.get(u.table, inf) > at}
        self.reported |= told
        for t in self.tables:
            if t.target is not None and t.table in ends and t.table not in told:
                over = self.lags[t.table][-1] - t.target
                self.untold[t.table] = max(self.untold.get(t.table, 0.0), over)

    def absorb(self, t: TableLag, begin: float, end: float) -> None:
        arrived: list[float] = []
        for s in (*t.sources, ""):
            queue = self.queues.get((s, t.table), [])
            arrived += [a for committed, a in queue if committed <= begin]
            self.queues[s, t.table] = [q for q in queue if q[0] > begin]
        if not arrived:
            return
        self.absorbed[t.table] += 1
        self.lags.setdefault(t.table, []).append(end - min(arrived))
        for reader in self.readers[t.table]:
            self.queues.setdefault((t.table, reader), []).append((end, min(arrived)))

    def below(self, table: str) -> set[str]:
        """A table, and everything downstream of it."""
        return {table}.union(*map(self.below, self.readers[table]))

    def exceeded(self) -> set[str]:
        """The tables whose lag has exceeded their target."""
        return {t.table for t in self.tables if t.target is not None and max(self.lags.get(t.table, [0])) > t.target}


def simulated(tables: list[TableLag], arrivals: Mapping[str, list[float]], interval: float = INTERVAL) -> Lake:
    lake = Lake(tables, interval)
    events = sorted(((at, table) for table, times in arrivals.items() for at in times), reverse=True)
    while lake.now < DAY:
        while events and events[-1][0] <= lake.now:
            at, table = events.pop()
            lake.arrive(table, at)
        lake.tick()
    return lake


def random_tables(choose: random.Random, count: int) -> list[TableLag]:
    """Tables in four layers with mixed targets, most of them at the end."""
    tables: list[TableLag] = []
    for n in range(count):
        layer = 0 if n < count // 10 else 1 if n < count // 5 else 2 if n < count // 2 else 3
        above = [t.table for t in tables if t.table.startswith(f"l{layer - 1}")]
        sources = choose.sample(above, min(len(above), choose.choice([1, 1, 1, 2, 3]))) if above else []
        target = choose.choice([None, 300, 300, 900, 3600, 21_600]) if layer >= 2 else None
        if layer == 3 and target is None and choose.random() < 0.9:
            target = 3600
        tables.append(TableLag(f"l{layer}.t{n}", tuple(sources), target, None, choose.choice([1, 2, 5, 10])))
    return tables


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 5)])
def test_two_hundred_tables_keep_their_targets_and_none_is_absorbed_more_often_than_its_readers_need(seed: int) -> None:
    choose = random.Random(seed)
    tables = random_tables(choose, 200)
    roots = [t.table for t in tables if not t.sources]
    arrivals = {r: [choose.uniform(0, DAY) for _ in range(choose.choice([3, 50, 600]))] for r in roots}
    lake = simulated(tables, arrivals, 60.0)
    # No run takes longer than the interval, so none delays another: a target is kept to the second.
    assert not lake.exceeded()
    assert not lake.reported
    with_target = {t.table: t.target for t in tables if t.target is not None}
    once_per_target: dict[str, float] = {}
    for t in lake.readers:
        below = lake.below(t)
        # What is read by a table that does not wait does not wait either.
        if all(d in with_target or lake.readers[d] for d in below):
            # A run begins up to an interval and 40 s before the target: four steps of up to 10 s.
            once_per_target[t] = DAY / (min(with_target[d] for d in below if d in with_target) - 40 - 60) + 1
    ends = [t for t in once_per_target if not lake.readers[t]]
    assert sum(t in with_target for t in once_per_target if t not in ends) > 20
    assert sum(lake.absorbed[t] for t in ends) <= 1.1 * sum(once_per_target[t] for t in ends)
    # A table joins the runs of others early. One with several sources, or readers, does that for each of them.
    assert not {t: most for t, most in once_per_target.items() if lake.absorbed[t] > 2 * most}


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 5)])
def test_targets_that_slow_steps_exceed_are_those_that_are_reported(seed: int) -> None:
    """Also those of tables that have nothing to do with a slow step: one run at a time absorbs a pipeline."""
    choose = random.Random(seed)
    tables = random_tables(choose, 200)
    hurried = [n for n, t in enumerate(tables) if t.target == 300]
    slow = {tables[n].table for n in choose.sample(hurried, 3)}
    tables = [replace(t, seconds=400) if t.table in slow else t for t in tables]
    roots = [t.table for t in tables if not t.sources]
    arrivals = {r: [choose.uniform(0, DAY) for _ in range(choose.choice([3, 20]))] for r in roots}
    lake = simulated(tables, arrivals, 60.0)
    hopeless = unkept(tables, 0.0, 60.0)
    assert slow <= {u.table for u in hopeless}
    assert {u.slowest for u in hopeless} == slow
    # Tables that no run could keep, and others, which were late because of them.
    assert {u.table for u in hopeless} < lake.reported
    assert lake.reported <= lake.exceeded() < {t.table for t in tables if t.target is not None}
    # Whoever looks once in an interval misses a lag that has exceeded its target for less than that.
    assert max(lake.untold.values()) < 60


def test_ten_tables_over_one_source_absorb_it_together() -> None:
    tables = [TableLag("staging.a", (), None, None, 2)]
    tables += [TableLag(f"final.t{n}", ("staging.a",), 300 + n, None, 2) for n in range(10)]
    lake = simulated(tables, {"staging.a": [float(at) for at in range(0, int(DAY), 5)]})
    assert lake.runs <= DAY / 270
    assert {lake.absorbed[t.table] for t in tables} == {lake.runs}
    assert all(max(lake.lags[t.table]) <= 310 for t in tables)


def test_a_long_target_is_not_absorbed_with_a_short_one() -> None:
    tables = [
        TableLag("staging.a", (), None, None, 2),
        TableLag("final.fast", ("staging.a",), 120, None, 2),
        TableLag("agg.slow", ("final.fast",), 3600, None, 2),
    ]
    lake = simulated(tables, {"staging.a": [float(at) for at in range(0, int(DAY), 5)]})
    assert lake.absorbed["agg.slow"] <= DAY / (3600 * 0.8) + 1
    assert max(lake.lags["agg.slow"]) <= 3600
    assert max(lake.lags["final.fast"]) <= 120


def test_tables_without_a_target_do_not_wait_and_what_only_waiting_tables_read_waits() -> None:
    tables = [
        TableLag("staging.a", (), None, 1000.0),
        TableLag("final.now", ("staging.a",)),
        TableLag("staging.b", (), None, 1000.0),
        TableLag("final.later", ("staging.b",), 600.0, None, 10.0),
    ]
    found = plan(tables, 1005.0, INTERVAL)
    assert found.run == ("staging.a", "final.now")
    assert found.waits == {"staging.b": 570.0, "final.later": 570.0}
    assert plan(tables, 1575.0, INTERVAL).run == ("staging.a", "final.now", "staging.b", "final.later")
    assert plan([], 0, INTERVAL).run == ()


def test_a_target_that_no_run_can_keep_names_the_step_that_takes_the_time() -> None:
    tables = [
        TableLag("staging.a", (), None, None, 5),
        TableLag("final.a", ("staging.a",), None, None, 400),
        TableLag("agg.a", ("final.a",), 300, 0.0, 20),
        TableLag("agg.b", ("staging.a",), 300, None, 20),
    ]
    (found,) = unkept(tables, 100.0, INTERVAL)
    assert (found.table, found.slowest, found.needs) == ("agg.a", "final.a", 425)
    assert found.text.startswith("target_lag 5 min cannot be kept: the step of final.a takes 6.67 min of the 7.08 min")
    tables[1] = replace(tables[1], seconds=40)
    assert unkept(tables, 100.0, INTERVAL) == []
    (late,) = unkept(tables, 1000.0, INTERVAL)
    assert late.text.startswith("it is 16.7 min behind, with a target_lag of 5 min: the step of final.a takes 40 s")
    assert "no run has begun in time" in late.text
    # Nothing is pending, and a run alone is fast enough, but not with the time until the sensor looks.
    tables[2] = replace(tables[2], pending_since=None)
    (close,) = unkept(tables, 1000.0, 240.0)
    assert close.text.startswith("target_lag 5 min cannot be kept: the step of final.a takes 40 s of the 65 s")
    assert "the sensor's interval adds to that" in close.text
    assert "behind" not in close.text

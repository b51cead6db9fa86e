"""Targets are kept by as few absorptions as their readers need, or reported: days of arrivals, simulated."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from lake_assets.pipeline.target_lag import TableLag, plan, unkept
from tests.support.seeds import long_seeds

DAY = 86_400.0
INTERVAL = 15.0


@dataclass
class Lake:
    """Tables whose steps take a known time, and changes that arrive in the first ones.

    A table has absorbed its sources up to a moment. What it holds is the arrival of the oldest change in each commit.
    """

    tables: list[TableLag]
    interval: float = INTERVAL
    now: float = 0.0
    # By source and reader, what the reader has not absorbed: when it was committed, and when it arrived.
    queues: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    lags: dict[str, list[float]] = field(default_factory=dict)
    absorbed: Counter[str] = field(default_factory=Counter)
    runs: int = 0

    def arrive(self, table: str, at: float) -> None:
        self.queues.setdefault(("", table), []).append((at, at))

    def state(self) -> list[TableLag]:
        found: list[TableLag] = []
        for t in self.tables:
            arrived = [a for s in (*t.sources, "") for _, a in self.queues.get((s, t.table), [])]
            found.append(replace(t, pending_since=min(arrived, default=None)))
        return found

    def tick(self) -> None:
        """Plan, and carry out the run: the steps of one depth at the same time."""
        chosen = set(plan(self.state(), self.now, self.interval).run)
        needed = {s for t in self.tables if t.table in chosen for s in t.sources}
        for t in self.tables:
            # A table that others read is absorbed for itself, or for one of them.
            is_read = any(t.table in other.sources for other in self.tables) if t.table in chosen - needed else False
            assert t.target is not None or not is_read, t
        ends: dict[str, float] = {}
        for t in self.tables:
            if t.table not in chosen:
                continue
            begin = max([self.now, *(ends[s] for s in t.sources if s in ends)])
            ends[t.table] = begin + t.seconds
            self.absorb(t, begin, ends[t.table])
        self.runs += bool(chosen)
        self.now = max([self.now + self.interval, *ends.values()])

    def absorb(self, t: TableLag, begin: float, end: float) -> None:
        arrived: list[float] = []
        for s in (*t.sources, ""):
            queue = self.queues.get((s, t.table), [])
            arrived += [a for committed, a in queue if committed <= begin]
            self.queues[s, t.table] = [q for q in queue if q[0] > begin]
        if arrived:
            self.absorbed[t.table] += 1
            self.lags.setdefault(t.table, []).append(end - min(arrived))
            for reader in self.tables:
                if t.table in reader.sources:
                    self.queues.setdefault((t.table, reader.table), []).append((end, min(arrived)))


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
    assert not unkept(tables, 0.0, 60.0)
    with_target = {t.table: t.target for t in tables if t.target is not None}
    # A run that is under way delays the next: the steps upstream of any table take at most 40 s.
    assert not [t for t, target in with_target.items() if max(lake.lags.get(t, [0])) > target + 40]
    ends = [t for t in with_target if not any(t in other.sources for other in tables)]
    once_per_target = {t: DAY / (with_target[t] - 40 - 60) + 1 for t in ends}
    assert sum(lake.absorbed[t] for t in ends) <= 1.1 * sum(once_per_target.values())
    assert all(lake.absorbed[t] <= 2 * most for t, most in once_per_target.items())


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

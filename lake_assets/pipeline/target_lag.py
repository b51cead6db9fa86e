"""Which tables to absorb now, so that each keeps its target lag with few runs: pure functions over plain values.

A table with a target waits for as long as the target allows, minus the time that its run takes. Then everything
upstream of it that is behind is absorbed with it, and other tables whose time is nearly over as well, so that tables
over one source absorb it together. A table without a target of its own is absorbed for the tables that read it; if
there are none, it does not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from lake_assets.lake import thresholds


@dataclass(frozen=True)
class TableLag:
    """A table, as far as the plan depends on it.

    Attributes:
        sources: the tables of the pipeline that its step reads.
        target: the declared lag in seconds; None: none.
        pending_since: when the oldest change arrived that it has not absorbed, in seconds since 1970; None: its
            sources hold nothing new for it.
        seconds: how long a step takes, as far as is known.
    """

    table: str
    sources: tuple[str, ...] = ()
    target: float | None = None
    pending_since: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class LagPlan:
    """What to absorb now.

    Attributes:
        run: the tables to absorb, upstream first.
        waits: by table that is behind and not in the run, the seconds that it may still wait.
        since: by table that is behind, also through its upstream tables: when the oldest change arrived.
        needs: by table with a target, the seconds that its run takes from the first step upstream to its commit.
    """

    run: tuple[str, ...]
    waits: Mapping[str, float]
    since: Mapping[str, float]
    needs: Mapping[str, float] = field(default_factory=dict[str, float])


def plan(tables: Sequence[TableLag], now: float, interval: float) -> LagPlan:
    """Return what to absorb now.

    Args:
        tables: all tables of a pipeline, upstream first.
        now: seconds since 1970.
        interval: seconds until it is asked again.
    """
    by_name = {t.table: t for t in tables}
    since, needs = _since(tables), _needs(tables)
    read = {s for t in tables for s in t.sources}
    deadlines = {
        t.table: since[t.table] + t.target - needs[t.table] - interval if t.target is not None else now
        for t in tables
        if t.table in since and (t.target is not None or t.table not in read)
    }
    due = [t for t, at in deadlines.items() if at <= now]
    run = _upstream(due, by_name, since)
    # About when the tables of this run will be due again.
    again = min((target for t in due if (target := by_name[t].target) is not None), default=0.0)
    shared = {s for t in run for s in (t, *by_name[t].sources)}
    joining = [
        t
        for t, at in deadlines.items()
        if at - now <= min(by_name[t].target or 0.0, again) * thresholds.TARGET_LAG_SHARE
        and (t in run or not shared.isdisjoint((*_upstream([t], by_name, since), *by_name[t].sources)))
    ]
    run |= _upstream(joining, by_name, since)
    latest = dict(deadlines)
    for table in reversed(tables):
        for source in table.sources:
            latest[source] = min(latest.get(source, inf), latest.get(table.table, inf))
    waits = {t: max(0.0, latest.get(t, now) - now) for t in since if t not in run}
    return LagPlan(
        tuple(t.table for t in tables if t.table in run),
        waits,
        since,
        {t.table: needs[t.table] for t in tables if t.target is not None},
    )


def _since(tables: Sequence[TableLag]) -> dict[str, float]:
    """Return, by table that is behind, when the oldest change arrived that it or a table upstream has not absorbed."""
    since: dict[str, float] = {}
    for table in tables:
        times = [since[s] for s in table.sources if s in since]
        if table.pending_since is not None:
            times.append(table.pending_since)
        if times:
            since[table.table] = min(times)
    return since


def _needs(tables: Sequence[TableLag]) -> dict[str, float]:
    """Return, by table, the seconds from the first step upstream to its commit: steps of one depth run together."""
    needs: dict[str, float] = {}
    for table in tables:
        needs[table.table] = table.seconds + max((needs[s] for s in table.sources if s in needs), default=0.0)
    return needs


def _upstream(names: Iterable[str], by_name: Mapping[str, TableLag], behind: Mapping[str, float]) -> set[str]:
    """Return tables, and everything upstream of them that is behind."""
    found: set[str] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name not in found and name in behind:
            found.add(name)
            stack += [s for s in by_name[name].sources if s in by_name]
    return found


@dataclass(frozen=True)
class UnkeptTarget:
    """A target that cannot be kept, or has not been.

    Attributes:
        lag: seconds since the arrival of the oldest change that is not absorbed; 0 if all are.
        slowest: the table upstream (or itself) whose step takes most of the time, with its seconds.
    """

    table: str
    target: float
    lag: float
    slowest: str
    seconds: float
    needs: float

    @property
    def text(self) -> str:
        """What is wrong, and what would help, as a sentence."""
        took = f"the step of {self.slowest} takes {_duration(self.seconds)} of the {_duration(self.needs)} of a run"
        if self.needs >= self.target or self.lag <= self.target:
            looks = "" if self.needs >= self.target else ", and the sensor's interval adds to that"
            return (
                f"target_lag {_duration(self.target)} cannot be kept: {took}{looks}. What may help: a longer target, "
                "more cores, Spark that runs before a step begins (`lake-assets spark-server`), and for a model a "
                "cheaper strategy (`lake-assets explain`)"
            )
        return (
            f"it is {_duration(self.lag)} behind, with a target_lag of {_duration(self.target)}: "
            f"{took}, so no run has begun in time, or it failed: is the capture sensor on (or cron), does a table "
            "upstream fail, or does a slow step of another table delay each run of the pipeline?"
        )


def unkept(tables: Sequence[TableLag], now: float, interval: float) -> list[UnkeptTarget]:
    """Return the targets that are exceeded now, or that no run can keep."""
    by_name, since, needs = {t.table: t for t in tables}, _since(tables), _needs(tables)
    found: list[UnkeptTarget] = []
    for table in tables:
        lag = now - since[table.table] if table.table in since else 0.0
        need = needs[table.table]
        if table.target is None or max(lag, need + interval) <= table.target:
            continue
        slowest = max(_path(table, by_name, needs), key=lambda t: t.seconds)
        found.append(UnkeptTarget(table.table, table.target, lag, slowest.table, slowest.seconds, need))
    return found


def _path(table: TableLag, by_name: Mapping[str, TableLag], needs: Mapping[str, float]) -> list[TableLag]:
    """Return the steps for which a table waits longest, itself first."""
    path = [table]
    while sources := [by_name[s] for s in path[-1].sources if s in by_name]:
        path.append(max(sources, key=lambda t: needs[t.table]))
    return path


def _duration(seconds: float) -> str:
    """Format seconds as people write durations: 45 s, 5 min, 1.5 h."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (inf, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError("unreachable: the last limit is infinite")

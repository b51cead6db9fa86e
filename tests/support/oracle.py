"""What a history of change events leads to, in plain Python."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame

from lake_assets.lake import quote
from tests.support.debezium import Event

Rows = Counter[tuple[Any, ...]]
Key = tuple[Any, ...]
OPEN_END = dt.datetime(9999, 12, 31)  # noqa: DTZ001


@dataclass
class _Life:
    """One row of the source under one key, from its insert to its delete."""

    values: dict[str, Any] = field(default_factory=dict)
    came_from: _Life | None = None

    def all(self) -> dict[str, Any]:
        return {**(self.came_from.all() if self.came_from else {}), **self.values}


@dataclass(frozen=True)
class State:
    """A key after an event."""

    event: Event
    present: bool
    life: _Life | None
    written: dict[str, Any]

    @property
    def row(self) -> dict[str, Any]:
        before = self.life.came_from.all() if self.life and self.life.came_from else {}
        return {**before, **self.written}


def states(delivered: Sequence[Event]) -> dict[Key, list[State]]:
    """The states of every key, in the source's order (ties: as they came); repeated events count once.

    Within a transaction a key may be taken before it is left: the row that goes is the one that was there first.
    """
    once: dict[Any, tuple[Any, Event]] = {}
    for n, e in enumerate(delivered):
        once.setdefault((e.key if e.op != "t" else None, e.sequence, e.op), ((e.sequence, n), e))
    ordered = [e for _, e in sorted(once.values(), key=lambda found: found[0])]
    keys = dict.fromkeys(e.key for e in ordered if e.op != "t")
    found: dict[Key, list[State]] = {}
    took: dict[tuple[Any, Key], _Life | None] = {}
    for key in keys:
        mine = [e for e in ordered if e.op == "t" or e.key == key]
        found[key] = list(_of_key(mine, took))
    for key, key_states in found.items():
        for s in key_states:
            if s.event.op == "c" and s.event.absent and s.life:
                others = [(k, life) for (at, k), life in took.items() if at == s.event.sequence and k != key]
                s.life.came_from = others[0][1] if others else None
    return found


def _of_key(events: Sequence[Event], took: dict[tuple[Any, Key], _Life | None]) -> Iterator[State]:
    rows: list[_Life] = []
    there = False
    for _, group in groupby(_grouped(events), key=lambda e: e[0]):
        batch = [e for _, e in group]
        ops = "".join(e.op for e in batch)
        mixed = "d" in ops[ops.find("c") :] if "c" in ops else False
        held = 1 if ops[0] in "du" else int(there)
        if ops[0] in "du" and not rows:
            rows.append(_Life())
        count, first = held, len(rows)
        left = 0
        for e in batch:
            if e.op in "cr" or (e.op == "u" and not mixed and not there):
                rows.append(_Life())
            if e.op in "cru":
                stored = {c: e.row.get(c) for c in e.table.columns if c not in e.absent}
                rows[-1].values.update(stored)
            if e.op in "cr":
                count += 1
            if e.op == "d":
                count -= 1
                gone = first - held + left if mixed else len(rows) - 1
                took[e.sequence, e.key] = rows[gone] if 0 <= gone < len(rows) else None
                left += 1
            present = count > 0 if mixed else e.op not in "dt"
            yield State(e, present, rows[-1] if rows else None, dict(rows[-1].values) if rows else {})
            there = present


def _grouped(events: Sequence[Event]) -> Iterator[tuple[Any, Event]]:
    cuts = 0
    for e in events:
        alone = e.op in "rt" or e.sequence[0] == 0
        cuts += alone
        yield (cuts, None if alone else e.sequence[0]), e


Made = Callable[[dict[str, Any]], dict[str, Any]]


def final_rows(
    delivered: Sequence[Event], columns: Sequence[str], deletes: str = "hard", made: Made = lambda row: row
) -> Rows:
    """The rows of an scd1 table with a key after `delivered`.

    Args:
        delivered: every event so far, repeated ones as often as they came.
        columns: which columns, in which order.
        deletes: what becomes of deleted rows.
        made: the table's row, of one of the source.
    """
    rows: list[dict[str, Any]] = []
    for found in states(delivered).values():
        last = found[-1]
        if deletes == "ignore":
            last = next((s for s in reversed(found) if s.event.op in "cru"), last)
        written = any(s.event.op in "cru" for s in found)
        if (last.present and deletes != "ignore") or (deletes != "hard" and written):
            rows.append({**made(last.row), "__deleted": not last.present})
    return Counter(tuple(row.get(c) for c in columns) for row in rows)


def versions(
    delivered: Sequence[Event],
    columns: Sequence[str],
    track: Sequence[str] | None = None,
    made: Made = lambda row: row,
) -> Rows:
    """The rows of an scd2 table after `delivered`: `columns`, from, to, is current."""
    rows: Rows = Counter()
    for found in states(delivered).values():
        key = found[0].event.table.key
        now: dt.datetime | None = None
        moments: dict[dt.datetime, State] = {}
        for s in found:
            now = max(filter(None, (now, happened(s.event))))
            moments[now] = s
        current: tuple[dict[str, Any], dt.datetime] | None = None
        for at, s in moments.items():
            row = made(s.row) if s.present else None
            if current and row is not None and all(
                current[0].get(c) == row.get(c) for c in track or columns if c not in key
            ):  # fmt: skip
                current = row, current[1]
                continue
            if current:
                rows[(*(current[0].get(c) for c in columns), current[1], at, False)] += 1
            current = (row, at) if row is not None else None
        if current:
            rows[(*(current[0].get(c) for c in columns), current[1], OPEN_END, True)] += 1
    return rows


def happened(event: Event) -> dt.datetime:
    """The time that an event says (UTC, without zone, as Spark's sessions of the tests show it)."""
    ms = event.time if event.time is not None else 1_700_000_000_000 + event.sequence[1]
    return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)  # noqa: DTZ001


def rows_of(frame: DataFrame, columns: Sequence[str] | None = None) -> Rows:
    """The rows of a DataFrame as a multiset."""
    return bag(frame.select(*(quote(c) for c in columns or frame.columns)).collect())


def bag(rows: Iterable[Iterable[Any]]) -> Rows:
    return Counter(tuple(r) for r in rows)

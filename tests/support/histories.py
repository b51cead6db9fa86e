"""Random histories of a source table, and how a stream that delivers at least once may bring them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.debezium import Event, Table

Batches = list[list[Event]]


@dataclass
class Source:
    """A table of a database and its log: every change is an event, with what the row was after it.

    Attributes:
        choose: the only source of chance.
        value: makes a value of a column.
        toasted: columns that updates may leave out, and the inserts of key changes.
        clock: the time that a transaction with this LSN says, in milliseconds; None: as the LSN.
    """

    table: Table
    choose: random.Random
    value: Callable[[random.Random, str], Any]
    toasted: frozenset[str] = frozenset()
    rows: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    lsn: int = 100
    commit: int = 90
    clock: Callable[[int], int] | None = None

    def transaction(self, keys: Sequence[tuple[Any, ...]]) -> None:
        """One to four changes of a few keys, in one transaction."""
        for _ in range(self.choose.randint(1, 4)):
            self._change(self.choose.choice(keys), keys)
        self.commit = self.lsn

    def truncate(self) -> None:
        """Empty the table."""
        self.rows.clear()
        self._write("t", {})
        self.commit = self.lsn

    def _change(self, key: tuple[Any, ...], keys: Sequence[tuple[Any, ...]]) -> None:
        at = dict(zip(self.table.key, key, strict=True))
        held = self.rows.get(key)
        if held is None:
            self.rows[key] = self._new(at)
            self._write("c", self.rows[key])
            return
        free = [k for k in keys if k not in self.rows and k[:-1] == key[:-1]]
        what = self.choose.choice(["update", "update", "update", "delete", "delete and insert", "change key"])
        if what == "update":
            row = self._new(at)
            kept = self._left_out()
            self.rows[key] = row | {c: held[c] for c in kept}
            self._write("u", self.rows[key], kept)
        elif what == "change key" and free:
            del self.rows[key]
            new = self.choose.choice(free)
            self.rows[new] = {**held, **dict(zip(self.table.key, new, strict=True))}
            self._write("d", at)
            self.lsn -= 1  # one change, one LSN: the delete and the create share it
            self._write("c", self.rows[new], self._left_out())
        else:
            del self.rows[key]
            self._write("d", at)
            if what == "delete and insert":
                self.rows[key] = self._new(at)
                self._write("c", self.rows[key])

    def _left_out(self) -> frozenset[str]:
        return frozenset(c for c in self.toasted if self.choose.random() < 0.5)

    def _new(self, at: dict[str, Any]) -> dict[str, Any]:
        rest = [c for c in self.table.columns if c not in self.table.key]
        return at | {c: None if self.choose.random() < 0.2 else self.value(self.choose, c) for c in rest}

    def _write(self, op: Any, row: dict[str, Any], absent: frozenset[str] = frozenset()) -> None:
        self.lsn += 1
        time = self.clock(self.commit) if self.clock else None
        self.log.append(Event(self.table, op, (self.commit, self.lsn), dict(row), absent, time))


def split(choose: random.Random, events: Sequence[Event], batches: int) -> Batches:
    """The events in their order, cut at random places; some batches may be empty."""
    cuts = sorted(choose.randint(0, len(events)) for _ in range(batches - 1))
    return [list(events[a:b]) for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]


def redelivered(choose: random.Random, batches: Batches) -> Batches:
    """At least once: after some batches, a stretch of what was delivered already comes again."""
    out: Batches = []
    for n, batch in enumerate(batches):
        sent = [e for b in batches[: n + 1] for e in b]
        again: list[Event] = []
        if sent and choose.random() < 0.6:
            start = choose.randrange(len(sent))
            again = sent[start : start + choose.randint(1, 8)]
        out.append([*again, *batch] if choose.random() < 0.3 else [*batch, *again])
    return out


def shuffled(choose: random.Random, batches: Batches) -> Batches:
    """Out of order: some events swap their batches, and places within them."""
    out = [list(b) for b in batches]
    for batch in out:
        if batch and choose.random() < 0.5:
            choose.choice(out).append(batch.pop(choose.randrange(len(batch))))
        if choose.random() < 0.5:
            choose.shuffle(batch)
    return out

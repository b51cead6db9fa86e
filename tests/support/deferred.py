"""A table whose unique key is checked when a transaction ends, in plain Python, and the events that it logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.debezium import Event, Table

Row = dict[str, Any]


@dataclass
class Deferred:
    """Rows with an identity that no event shows, under keys `k` that may be taken twice within a transaction.

    Attributes:
        toasted: a column that events leave out where its value is the one before.
        part: columns of the key that stay the same for all rows.
    """

    table: Table
    choose: random.Random
    value: Callable[[random.Random, str], Any]
    part: Row = field(default_factory=dict)
    toasted: str = "name"
    rows: list[Row] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    lsn: int = 100
    commit: int = 90

    def transaction(self) -> None:
        """One to three statements, as one transaction."""
        for _ in range(self.choose.randint(1, 3)):
            self.choose.choice([self.insert, self.insert, self.update, self.delete, self.again, self.shift_up,
                                self.shift_down, self.rotate, self.swap, self.swap_through, self.chain])()  # fmt: skip
        assert len({r["k"] for r in self.rows}) == len(self.rows)
        self.commit = self.lsn

    # --- statements ---------------------------------------------------------------------------------------------

    def insert(self) -> None:
        if free := [k for k in range(6) if k not in {r["k"] for r in self.rows}]:
            self._insert(self.choose.choice(free))

    def update(self) -> None:
        if self.rows:
            self._change(self.choose.choice(self.rows), n=self.value(self.choose, "n"))

    def delete(self) -> None:
        if self.rows:
            self._delete(self.choose.choice(self.rows))

    def again(self) -> None:
        """Delete a row and insert another one under its key."""
        if self.rows:
            row = self.choose.choice(self.rows)
            self._delete(row)
            self._insert(row["k"])

    def shift_up(self) -> None:
        self._move_all({r["k"]: r["k"] + 1 for r in self.rows})

    def shift_down(self) -> None:
        self._move_all({r["k"]: r["k"] - 1 for r in self.rows})

    def rotate(self) -> None:
        keys = sorted(r["k"] for r in self.rows)
        self._move_all(dict(zip(keys, [*keys[1:], *keys[:1]], strict=True)))

    def swap(self) -> None:
        """Without a third key: for a moment both rows are under one."""
        if len(self.rows) > 1:
            one, two = self.choose.sample(self.rows, 2)
            self._move_all({one["k"]: two["k"], two["k"]: one["k"]})

    def swap_through(self) -> None:
        if len(self.rows) > 1:
            one, two = self.choose.sample(self.rows, 2)
            a, b = one["k"], two["k"]
            self._change(one, k=-99)
            self._change(two, k=a)
            self._change(one, k=b)

    def chain(self) -> None:
        """One row through keys that are free."""
        if self.rows:
            row = self.choose.choice(self.rows)
            free = [k for k in range(20, 40) if k not in {r["k"] for r in self.rows}]
            for k in self.choose.sample(free, 2):
                self._change(row, k=k, **({"n": 7} if self.choose.random() < 0.3 else {}))

    def _move_all(self, to: dict[int, int]) -> None:
        """One statement: rows in whatever order they are stored."""
        rows = [r for r in self.rows if to.get(r["k"], r["k"]) != r["k"]]
        for row in self.choose.sample(rows, len(rows)):
            self._change(row, k=to[row["k"]])

    # --- rows ---------------------------------------------------------------------------------------------------

    def _insert(self, k: int) -> None:
        row = {"k": k, **{c: self.value(self.choose, c) for c in self._rest}}
        self.rows.append(row)
        self._write("c", row)

    def _delete(self, row: Row) -> None:
        self.rows.remove(row)
        self._write("d", {"k": row["k"]})

    def _change(self, row: Row, **to: Any) -> None:
        absent = frozenset({self.toasted}) if self.choose.random() < 0.7 else frozenset[str]()
        if "k" in to:
            self._write("d", {"k": row["k"]})
            row.update(to)
            self.lsn -= 1  # one change, one LSN
            self._write("c", row, absent)
        else:
            row.update(to)
            self._write("u", row, absent)

    @property
    def _rest(self) -> Sequence[str]:
        return [c for c in self.table.columns if c not in self.table.key]

    def _write(self, op: Any, row: Row, absent: frozenset[str] = frozenset()) -> None:
        self.lsn += 1
        self.log.append(Event(self.table, op, (self.commit, self.lsn), {**row, **self.part}, absent))

"""Made-up change events: a seeded workload on one table, as transactions in the order of their commits.

The source keeps the rows that the table holds, which is the oracle for whoever reads its events: memory grows with the
number of keys, not with the number of events. What the transport does to a stream (late and repeated deliveries) is
done to its transactions afterwards; `stream_writers` writes them in any of the formats.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from lake_assets.errors import ConfigError
from lake_assets.formats.event_model import DELETE, INSERT, UPDATE

Row = Mapping[str, Any]
KEY = "id"
TOASTED = "note"

COLUMNS: Mapping[str, str] = {
    KEY: "bigint",
    "name": "text",
    "quantity": "integer",
    "amount": "numeric(12,2)",
    "score": "double precision",
    "born": "date",
    "seen": "timestamp with time zone",
    "active": "boolean",
    "ref": "uuid",
    "raw": "bytea",
    "tags": "text[]",
    TOASTED: "text",
}
# What happens to the table, one after the other and around again: each change makes more values possible.
_ALTERATIONS = ("add", "widen quantity", "widen amount", "drop")
_EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
_NAMES = (
    "Ann",
    "Çelik",
    "O'Neil",
    "张伟",
    "Zoë 🚲",
    'Quote "Q"',
    "Back\\slash",
    "",
    "a,b",
    "line\nbreak",
    "null",
    "007",
)


@dataclass(frozen=True)
class Workload:
    """What happens to the table, and to its events on their way.

    Attributes:
        seed: the same seed gives the same events.
        events: number of changes; a stream ends with the transaction that reaches it.
        keys: how many rows there are at most; identifiers of deleted rows are used again.
        distribution: which rows change: `uniform`, or `zipf` (the row in the n-th place with 1/n; the
            last row takes the place of one that goes).
        inserts, updates, deletes: shares of the changes, as weights.
        key_changes: share of the updates that change the key.
        unchanged: share of the updates that leave the long text as it is and do not send it.
        nulls: share of nulls among values that may be null.
        transaction: changes of a transaction at most.
        late: share of the transactions that are delivered late.
        lateness: how many transactions later at most.
        duplicates: share of the transactions that are delivered twice.
        schema_changes: how many times the table is altered, spread evenly.
        table: the source table, as schema and name.
    """

    seed: int = 0
    events: int = 1_000
    keys: int = 100
    distribution: Literal["uniform", "zipf"] = "uniform"
    inserts: float = 0.3
    updates: float = 0.5
    deletes: float = 0.2
    key_changes: float = 0.0
    unchanged: float = 0.0
    nulls: float = 0.1
    transaction: int = 3
    late: float = 0.0
    lateness: int = 20
    duplicates: float = 0.0
    schema_changes: int = 0
    table: tuple[str, str] = ("public", "items")

    def __post_init__(self) -> None:
        shares = ("key_changes", "unchanged", "nulls", "late", "duplicates")
        wrong = [s for s in shares if not 0 <= getattr(self, s) <= 1]
        wrong += [s for s in ("inserts", "updates", "deletes") if getattr(self, s) < 0]
        wrong += [s for s in ("events", "schema_changes") if getattr(self, s) < 0]
        wrong += [s for s in ("keys", "transaction", "lateness") if getattr(self, s) < 1]
        if wrong or self.inserts + self.updates + self.deletes <= 0:
            raise ConfigError(f"{', '.join(wrong) or 'inserts, updates, deletes'}: no share, or no count of anything")


@dataclass(frozen=True)
class Change:
    """One change of one row, with the table's columns (names and Postgres types) at that time.

    `absent` are columns of `after` that the event leaves out, because their values did not change.
    """

    op: str
    lsn: int
    columns: Mapping[str, str]
    before: Row | None
    after: Row | None
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Transaction:
    """Changes that were committed together; `last` is the commit before."""

    xid: int
    commit: int
    last: int
    time: dt.datetime
    changes: tuple[Change, ...]


@dataclass
class Source:
    """The table, its rows as the last transaction that was taken left them, and the transactions to come."""

    workload: Workload
    rows: dict[int, Row] = field(default_factory=dict[int, Row])

    def __post_init__(self) -> None:
        self._random = random.Random(self.workload.seed)
        self._live: list[int] = []
        self._place: dict[int, int] = {}
        self._free = list(range(1, self.workload.keys + 1))
        self._columns = dict(COLUMNS)
        self._altered = self._lsn = 0

    def __iter__(self) -> Iterator[Transaction]:
        """The transactions in the order of their commits."""
        spec, made, xid, last = self.workload, 0, 700, 0
        self._lsn = 1 << 24
        while made < spec.events:
            xid += 1
            size = min(self._random.randint(1, spec.transaction), spec.events - made)
            changes = tuple(self._change(made + i) for i in range(size))
            made += size
            self._lsn += 48
            yield Transaction(xid, self._lsn, last, _EPOCH + dt.timedelta(milliseconds=made), changes)
            last = self._lsn

    def _change(self, number: int) -> Change:
        spec, rand = self.workload, self._random
        if spec.schema_changes and number * (spec.schema_changes + 1) // spec.events > self._altered:
            self._alter()
        self._lsn += rand.randint(40, 400)
        weights = (spec.inserts if self._free else 0.0, spec.updates, spec.deletes)
        if not self._live or not any(weights):
            weights = (1.0, 0.0, 0.0) if self._free else (0.0, 1.0, 0.0)
        op = rand.choices((INSERT, UPDATE, DELETE), weights)[0]
        if op == INSERT:
            return self._changed(INSERT, None, self._new_row(self._take_free()))
        before = self.rows[self._chosen()]
        if op == DELETE:
            return self._changed(DELETE, before, None)
        moves = self._free and rand.random() < spec.key_changes
        after = self._new_row(self._take_free() if moves else before[KEY])
        absent: frozenset[str] = frozenset()
        if rand.random() < spec.unchanged and before.get(TOASTED) is not None:
            after[TOASTED] = before[TOASTED]
            absent = frozenset({TOASTED}) if not moves else frozenset()
        return self._changed(UPDATE, before, after, absent)

    def _changed(self, op: str, before: Row | None, after: Row | None, absent: frozenset[str] = frozenset()) -> Change:
        if before is not None:
            key = before[KEY]
            del self.rows[key]
            if after is None or after[KEY] != key:
                self._free.append(key)
                place, moved = self._place.pop(key), self._live.pop()
                if moved != key:
                    self._live[place], self._place[moved] = moved, place
        if after is not None:
            key = after[KEY]
            self.rows[key] = after
            if key not in self._place:
                self._place[key] = len(self._live)
                self._live.append(key)
        return Change(op, self._lsn, dict(self._columns), before, after, absent)

    def _take_free(self) -> int:
        i = self._random.randrange(len(self._free))
        self._free[i], self._free[-1] = self._free[-1], self._free[i]
        return self._free.pop()

    def _chosen(self) -> int:
        count = len(self._live)
        if self.workload.distribution == "zipf":
            return self._live[min(int(count ** self._random.random()) - 1, count - 1)]
        return self._live[self._random.randrange(count)]

    def _new_row(self, key: int) -> dict[str, Any]:
        return {KEY: key} | {n: self._value(n, kind) for n, kind in self._columns.items() if n != KEY}

    def _value(self, name: str, kind: str) -> Any:
        rand = self._random
        if rand.random() < self.workload.nulls:
            return None
        match kind.partition("(")[0]:
            case "integer":
                return rand.randint(-(2**31), 2**31 - 1)
            case "bigint":
                return rand.randint(-(2**63), 2**63 - 1)
            case "numeric":
                precision, scale = map(int, kind[8:-1].split(","))
                return Decimal(rand.randint(1 - 10**precision, 10**precision - 1)).scaleb(-scale)
            case "double precision":
                return rand.choice((0.1, -0.0, 1e300, 5e-324, 2.0**53, rand.random(), rand.gauss(0, 1e6)))
            case "date":
                return dt.date(1900, 1, 1) + dt.timedelta(days=rand.randint(0, 70_000))
            case "timestamp with time zone":
                return _EPOCH + dt.timedelta(microseconds=rand.randint(-(10**15), 10**15))
            case "boolean":
                return rand.random() < 0.5
            case "uuid":
                digits = f"{rand.getrandbits(128):032x}"
                return "-".join(digits[i:j] for i, j in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
            case "bytea":
                return rand.randbytes(rand.randint(0, 12))
            case "text[]":
                return [rand.choice((*_NAMES, None)) for _ in range(rand.randint(0, 3))]
            case _:
                return rand.choice(_NAMES) * (40 if name == TOASTED else 1)

    def _alter(self) -> None:
        """Alter the table; the rows it holds follow, as Postgres's do."""
        what, turn = _ALTERATIONS[self._altered % len(_ALTERATIONS)], self._altered // len(_ALTERATIONS)
        self._altered += 1
        match what:
            case "add":
                self._columns[f"added_{turn}"] = "text"
                self.rows = {k: {**row, f"added_{turn}": None} for k, row in self.rows.items()}
            case "drop":
                self._columns.pop(f"added_{turn}")
                self.rows = {k: {n: v for n, v in r.items() if n in self._columns} for k, r in self.rows.items()}
            case "widen quantity":
                self._columns["quantity"] = "bigint"
            case _:
                scale = min(4 + turn, 6)
                self._columns["amount"] = f"numeric({18 + turn},{scale})"


def delivered(workload: Workload, transactions: Iterable[Transaction]) -> Iterator[Transaction]:
    """The transactions as they arrive: some later than others, some twice. Holds back `lateness` of them at most."""
    rand = random.Random(workload.seed + 1)
    waiting: deque[tuple[int, Transaction]] = deque()
    number = 0
    for number, transaction in enumerate(transactions):
        while waiting and waiting[0][0] <= number:
            yield waiting.popleft()[1]
        late, again = rand.random() < workload.late, rand.random() < workload.duplicates
        if not late:
            yield transaction
        for _ in range(late + again):
            waiting.append((number + rand.randint(1, workload.lateness), transaction))
            waiting = deque(sorted(waiting, key=lambda w: w[0]))
    for _, transaction in waiting:
        yield transaction


def replay(transactions: Iterable[Transaction]) -> dict[int, Row]:
    """The rows after these transactions, in whatever order (and however often) they come: the oracle for readers."""
    rows: dict[int, Row] = {}
    changes = {change.lsn: change for t in transactions for change in t.changes}
    for lsn in sorted(changes):
        change = changes[lsn]
        old = rows.pop(change.before[KEY], {}) if change.before is not None else {}
        if change.after is not None:
            kept = {c: old.get(c) for c in change.absent}
            rows[change.after[KEY]] = {**change.after, **kept}
    return rows

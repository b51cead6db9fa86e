"""Generate change events: a seeded workload on one table, as transactions in commit order.

The source keeps the current rows of the table, the oracle for readers of its events: memory grows with the number of
keys, not of events. Effects of the transport (late and repeated deliveries) are applied to the transactions afterwards;
`stream_writers` writes them in any of the formats.
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
# Alterations of the table, repeated in this order.
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
    """The changes of the table, and the transport of its events.

    Attributes:
        seed: the same seed gives the same events.
        events: number of changes; a stream ends with the transaction that reaches it.
        keys: largest number of rows; keys of deleted rows are reused.
        distribution: which rows change: `uniform`, or `zipf` (the n-th row with probability ~1/n; the last row takes
            the position of a deleted one).
        inserts, updates, deletes: shares of the changes, as weights.
        key_changes: share of the updates that change the key.
        unchanged: share of the updates that do not change the long text, and do not send it.
        nulls: share of nulls among values that may be null.
        transaction: most changes per transaction.
        late: share of the transactions that are delivered late.
        lateness: largest delay, in transactions.
        duplicates: share of the transactions that are delivered twice.
        schema_changes: number of alterations of the table, spread evenly.
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
            raise ConfigError(
                f"{', '.join(wrong) or 'inserts, updates, deletes'}: not a share from 0 to 1, or not a positive count"
            )


@dataclass(frozen=True)
class Change:
    """One change of one row, with the table's columns (names and Postgres types) at that time.

    `absent` are columns of `after` that the event leaves out, since their values did not change.
    """

    op: str
    lsn: int
    columns: Mapping[str, str]
    before: Row | None
    after: Row | None
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Transaction:
    """Changes that were committed together; `last` is the LSN of the commit before."""

    xid: int
    commit: int
    last: int
    time: dt.datetime
    changes: tuple[Change, ...]


@dataclass
class Source:
    """The table: iterating over it yields its transactions; `rows` are its rows after the last one yielded."""

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
        """Yield the transactions in commit order."""
        spec, count, xid, last = self.workload, 0, 700, 0
        self._lsn = 1 << 24
        while count < spec.events:
            xid += 1
            size = min(self._random.randint(1, spec.transaction), spec.events - count)
            changes = tuple(self._change(count + i) for i in range(size))
            count += size
            self._lsn += 48
            yield Transaction(xid, self._lsn, last, _EPOCH + dt.timedelta(milliseconds=count), changes)
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
        before = self.rows[self._random_key()]
        if op == DELETE:
            return self._changed(DELETE, before, None)
        new_key = self._free and rand.random() < spec.key_changes
        after = self._new_row(self._take_free() if new_key else before[KEY])
        absent: frozenset[str] = frozenset()
        if rand.random() < spec.unchanged and before.get(TOASTED) is not None:
            after[TOASTED] = before[TOASTED]
            absent = frozenset({TOASTED}) if not new_key else frozenset()
        return self._changed(UPDATE, before, after, absent)

    def _changed(self, op: str, before: Row | None, after: Row | None, absent: frozenset[str] = frozenset()) -> Change:
        if before is not None:
            key = before[KEY]
            del self.rows[key]
            if after is None or after[KEY] != key:
                self._free.append(key)
                place, last = self._place.pop(key), self._live.pop()
                if last != key:
                    self._live[place], self._place[last] = last, place
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

    def _random_key(self) -> int:
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
        """Alter the table and its existing rows, as in Postgres."""
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
    """Yield the transactions as they arrive: some late, some twice. Delays at most `lateness` of them at a time."""
    rand = random.Random(workload.seed + 1)
    waiting: deque[tuple[int, Transaction]] = deque()
    number = 0
    for number, transaction in enumerate(transactions):
        while waiting and waiting[0][0] <= number:
            yield waiting.popleft()[1]
        is_late, is_duplicate = rand.random() < workload.late, rand.random() < workload.duplicates
        if not is_late:
            yield transaction
        for _ in range(is_late + is_duplicate):
            waiting.append((number + rand.randint(1, workload.lateness), transaction))
            waiting = deque(sorted(waiting, key=lambda w: w[0]))
    for _, transaction in waiting:
        yield transaction

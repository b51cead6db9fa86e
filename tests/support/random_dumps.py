"""Random dumps of a table with a key, or of rows without one, and what differs between two of them, in plain Python."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
# A row as pairs of names and values without nulls, in one form for all types that may hold a value.
Plain = tuple[tuple[str, Any], ...]
_NUMBERS = (pa.int32(), pa.int64(), pa.decimal128(12, 2), pa.decimal128(24, 6))
_TIMES = (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("ms"))
_TEXTS = (None, "", "a", 'quo"te', "back\\slash", "line\nbreak", "ünï", "null", "\x01", "{}", "1")
_FLOATS = (None, 0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e300, 0.1)


def plain(row: Mapping[str, Any]) -> Plain:
    """A row as it is compared: no nulls, and equal numbers are equal whatever their types."""
    return tuple((n, plain_value(v)) for n, v in sorted(row.items()) if v is not None)


def plain_value(value: Any) -> Any:
    """A value that equals itself only: NaN equals NaN, and 0.0 and -0.0 differ."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return Decimal(value).normalize() + 0
    return tuple(map(plain_value, value)) if isinstance(value, list | tuple) else value


@dataclass
class Columns:
    """The columns of a table as of a dump: their types, in their order."""

    types: dict[str, pa.DataType]
    numbers: Sequence[pa.DataType] = _NUMBERS

    def value(self, name: str, random: Random) -> Any:
        if name == "n":
            return random.choice((None, 0, 1, -7, 12))
        if name == "f":
            return random.choice(_FLOATS)
        if name == "at":
            return random.choice((None, dt.datetime(2026, 11, 1), dt.datetime(1969, 12, 31, 23, 59, 59)))  # noqa: DTZ001
        if name == "l":
            return random.choice((None, [], [1], [1, None]))
        return random.choice(_TEXTS)

    def changed(self, random: Random) -> Columns:
        """The columns of the next dump: perhaps wider types, others, in another order."""
        types = dict(self.types)
        if random.random() < 0.3:
            types["n"] = random.choice(self.numbers[self.numbers.index(types["n"]) :])
        if random.random() < 0.3:
            types["at"] = random.choice(_TIMES)
        if random.random() < 0.2:
            types.setdefault("extra", pa.string())
        elif random.random() < 0.2:
            types.pop("extra", None)
        names = list(types)
        random.shuffle(names)
        return Columns({n: types[n] for n in names}, self.numbers)


def first_columns(numbers: Sequence[pa.DataType] = _NUMBERS) -> Columns:
    return Columns(
        {
            "id": pa.int64(), "n": _NUMBERS[0], "f": pa.float64(), "s": pa.string(), "at": _TIMES[0],
            "l": pa.list_(pa.int64()),
        },
        numbers,
    )  # fmt: skip


@dataclass
class RandomDumps:
    """A table of a source whose rows change from dump to dump.

    Attributes:
        is_keyed: whether `id` identifies a row; otherwise rows have copies.
        nulls: whether the key of some rows is null.
    """

    random: Random
    is_keyed: bool = True
    nulls: bool = False
    columns: Columns = field(default_factory=first_columns)
    rows: list[Row] = field(default_factory=list[Row])

    def step(self) -> pa.Table:
        """Change the table, and return its next dump."""
        random = self.random
        self.columns = self.columns.changed(random)
        fate = random.random()
        if fate < 0.1:
            self.rows = []
        elif fate > 0.15:  # otherwise the dump is the same again
            self._change()
        self.rows = [{n: row.get(n) for n in self.columns.types} for row in self.rows]
        shuffled = random.sample(self.rows, len(self.rows))
        return pa.Table.from_pylist(shuffled, pa.schema(list(self.columns.types.items())))

    def _change(self) -> None:
        random = self.random
        self.rows = [row for row in self.rows if random.random() > 0.2]
        for row in self.rows:
            if random.random() < 0.3:
                name = random.choice([n for n in self.columns.types if n != "id"])
                row[name] = self.columns.value(name, random)
        for _ in range(random.randrange(5)):
            self.rows.append(self._new_row())
        if not self.is_keyed and self.rows:
            self.rows += [dict(random.choice(self.rows)) for _ in range(random.randrange(3))]

    def _new_row(self) -> Row:
        taken = {row["id"] for row in self.rows}
        free = [n for n in range(30) if n not in taken or not self.is_keyed]
        key = None if self.nulls and self.random.random() < 0.2 else self.random.choice(free)
        if key is None and self.random.random() < 0.3:
            return dict.fromkeys(self.columns.types)
        return {n: key if n == "id" else self.columns.value(n, self.random) for n in self.columns.types}

    def counted(self) -> Counter[Plain]:
        """The rows of the table, with the number of copies."""
        return Counter(map(plain, self.rows))


@dataclass
class Versions:
    """The versions of rows by key, as dumps bring them: rows with the time from which they are valid, and until when."""

    closed: Counter[tuple[Plain, dt.datetime, dt.datetime]] = field(default_factory=Counter)
    current: dict[Any, tuple[Plain, dt.datetime]] = field(default_factory=dict)

    def absorb(self, rows: Iterable[Plain], at: dt.datetime) -> None:
        """Take a dump into account that was made at a time."""
        new = {key: row for row in rows if (key := dict(row).get("id")) is not None}
        for key, (row, since) in list(self.current.items()):
            if new.get(key) != row:
                self.closed[row, since, at] += 1
                del self.current[key]
        for key in new.keys() - self.current.keys():
            self.current[key] = (new[key], at)

    def all(self, end: dt.datetime) -> Counter[tuple[Plain, dt.datetime, dt.datetime]]:
        """All versions; `end` is where current ones end."""
        return self.closed + Counter((row, since, end) for row, since in self.current.values())


Changes = Counter[tuple[str, Plain]]


def differences(before: Counter[Plain], after: Counter[Plain], *, is_keyed: bool) -> Changes:
    """The events of a dump, by type: what the product has to write, exactly."""
    found: Changes = Counter()
    keyed = [{dict(r)["id"]: r for r in side if is_keyed and "id" in dict(r)} for side in (before, after)]
    for key in keyed[0].keys() | keyed[1].keys():
        old, new = keyed[0].get(key), keyed[1].get(key)
        if old != new:
            found.update(_of_one(old, new))
    others = [
        Counter({r: n for r, n in side.items() if not is_keyed or "id" not in dict(r)}) for side in (before, after)
    ]
    found.update({("delete", r): n for r, n in (others[0] - others[1]).items()})
    found.update({("insert", r): n for r, n in (others[1] - others[0]).items()})
    return found


def _of_one(old: Plain | None, new: Plain | None) -> Iterator[tuple[str, Plain]]:
    if old is None or new is None:
        yield ("insert", new) if new is not None else ("delete", old or ())
        return
    yield from (("update_preimage", old), ("update_postimage", new))


def read_change(kind: str, row: str) -> tuple[str, Plain]:
    """A record of raw as `differences` gives it; all of its values are texts, but lists."""
    return kind, plain({n: _read(n, v) for n, v in json.loads(row).items()})


def _read(name: str, text: Any) -> Any:
    if name in ("id", "n"):
        return Decimal(text)
    if name == "f":
        return float(text)
    if name == "at":
        return dt.datetime.fromisoformat(text)
    return text


def all_changes(events: Iterable[Sequence[str]]) -> Changes:
    """Records of raw, counted."""
    return Counter(read_change(kind, row) for kind, row in events)

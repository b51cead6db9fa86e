"""Tables of one stream whose columns are renamed, added and dropped, with a plain model of what they hold.

Each table has its own history. The model knows the source: what its rows are, by the last names of its columns.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.support.debezium import UNAVAILABLE
from tests.support.oracle import OPEN_END, Rows

Row = dict[str, Any]
FIRST = ["id", "a", "n"]
# One column is renamed twice, another one once; the declarations of both steps of the chain are literal.
CHAIN = {"a": "b", "b": "c"}
OTHER = {"n": "m"}
LAST = {"a": "c", "b": "c", "n": "m"}
MODES: dict[str, dict[str, Any]] = {
    "hard": {},
    "soft": {"deletes": "soft"},
    "versions": {"mode": "scd2"},
    "inserts": {"mode": "append", "on_change": "ignore"},
    "copies": {"key": "*"},
    "made": {},
}


@dataclass
class Renamed:
    """A source table, its rows and versions by the last names of its columns, and the events that are not sent yet."""

    mode: str
    choose: random.Random
    columns: list[str] = field(default_factory=lambda: list(FIRST))
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    deleted: dict[int, Row] = field(default_factory=dict[int, Row])
    inserted: list[Row] = field(default_factory=list[Row])
    versions: list[tuple[Row, int, int | None]] = field(default_factory=list[tuple[Row, int, "int | None"]])
    lines: list[str] = field(default_factory=list[str])
    at: int = 100
    next_id: int = 0
    is_dropped: bool = False

    @property
    def name(self) -> str:
        return f"public.{self.mode}"

    def alter(self) -> None:
        """Rename, add or drop a column, whichever is left to do."""
        pending = {**CHAIN, **OTHER}
        possible = [("rename", old, new) for old, new in pending.items() if old in self.columns]
        if "x" not in self.columns and not self.is_dropped:
            possible.append(("add", "", "x"))
        if self.mode != "copies" and "x" in self.columns:
            possible.append(("drop", "x", ""))
        if not possible:
            return
        what, old, new = self.choose.choice(possible)
        if what == "add":
            self.columns.append(new)
        elif what == "drop":
            self.columns.remove(old)
            self.is_dropped = True
        else:
            self.columns = [new if c == old else c for c in self.columns]

    def change(self) -> None:
        """Insert, update or delete a row; nulls are explicit, and an update may leave out a text that is unchanged."""
        ids = list(self.rows)
        op = self.choose.choice(["c", "u", "u", "u", "d"]) if ids else "c"
        if op == "c":
            gone = [i for i in self.deleted if i not in self.rows]
            again = self.choose.choice(gone) if gone and self.choose.random() < 0.3 else None
            id_ = self.next_id if again is None else again
            self.next_id += again is None
            self._write("c", id_, None, self._values(id_), frozenset())
            return
        id_ = self.choose.choice(ids)
        old = self.rows[id_]
        if op == "d":
            self._write("d", id_, old, None, frozenset())
            return
        new = self._values(id_)
        text = next(c for c in self.columns if c in ("a", "b", "c"))
        kept = frozenset({text} if self.mode != "copies" and self.choose.random() < 0.4 else ())
        for c in kept:
            new[LAST.get(c, c)] = old.get(LAST.get(c, c))
        self._write("u", id_, old, new, kept)

    def _values(self, id_: int) -> Row:
        """A row by the last names."""
        values = {LAST.get(c, c): self.choose.choice([None, self._value(c)]) for c in self.columns if c != "id"}
        return {"id": id_, **values}

    def _value(self, column: str) -> Any:
        return self.choose.choice("pqr") if column in ("a", "b", "c") else self.choose.randint(0, 3)

    def _write(self, op: str, id_: int, old: Row | None, new: Row | None, kept: frozenset[str]) -> None:
        self.at += 10
        source = {"schema": "public", "table": self.mode, "lsn": self.at, "sequence": f'["{self.at}","{self.at}"]',
                  "ts_ms": self.at}  # fmt: skip
        before, after = (
            row and {c: UNAVAILABLE if c in cut else row.get(LAST.get(c, c)) for c in self.columns}
            for row, cut in ((old, frozenset[str]()), (new, kept))
        )
        fields = [
            {"type": "string" if c in ("a", "b", "c") else "int32" if c != "id" else "int64", "optional": c != "id",
             "field": c}
            for c in self.columns
        ]  # fmt: skip
        images = [{"type": "struct", "optional": True, "field": i, "fields": fields} for i in ("before", "after")]
        schema = {"type": "struct", "fields": [*images, {"type": "string", "field": "op", "optional": False}]}
        payload = {"op": op, "before": before, "after": after, "source": source}
        self.lines.append(json.dumps({"value": {"schema": schema, "payload": payload}, "key": {
            "schema": {"type": "struct", "optional": False, "fields": [f for f in fields if f["field"] == "id"]},
            "payload": {"id": id_},
        }} if self.mode != "copies" else {"value": {"schema": schema, "payload": payload}}))  # fmt: skip
        # Columns that are gone keep their values; those that are not there yet are null.
        held = new and {"c": None, "m": None, "x": None, **(old or {}), **new}
        if old is not None and self.mode == "versions":
            row, since, _ = next(v for v in reversed(self.versions) if v[0]["id"] == id_ and v[2] is None)
            if held != row:
                self.versions[self.versions.index((row, since, None))] = (row, since, self.at)
        if held is not None and held != old:
            self.versions.append((held, self.at, None))
        if op == "c" and held:
            self.inserted.append(held)
        if held is None:
            self.deleted[id_] = self.rows.pop(id_)
        else:
            self.rows[id_] = held
            self.deleted.pop(id_, None)

    def expected(self, columns: list[str]) -> Rows:
        """The rows of the final table, if the renames had been declared from the start."""

        def row(values: Row) -> tuple[Any, ...]:
            loud = values.get("c") and values["c"].upper()
            return tuple({**values, "loud": loud}.get(c) for c in columns)

        match self.mode:
            case "soft":
                both = [(r, False) for r in self.rows.values()] + [(r, True) for r in self.deleted.values()]
                return Counter(row({**values, "__deleted": gone}) for values, gone in both)
            case "versions":
                return Counter(
                    row({**v, "effective_from": _moment(since), "effective_to": _moment(to) if to else OPEN_END,
                         "is_current": to is None})
                    for v, since, to in self.versions
                )  # fmt: skip
            case "inserts":
                return Counter(map(row, self.inserted))
            case _:
                return Counter(map(row, self.rows.values()))

    def declared(self, renamed: bool) -> dict[str, Any]:
        """The table's declaration, before or after the renames are declared, one rename a line as notices propose."""
        options = MODES[self.mode] | ({"rename": {**CHAIN, **OTHER}} if renamed else {})
        if self.mode == "made" and renamed:
            options |= {"columns": "* EXCEPT (c), upper(c) AS loud"}
        return {"table": self.name, **options}


def _moment(ms: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)  # noqa: DTZ001

"""Rows of a source as Debezium's streams have them, with each way to send deletes (`delete.tombstone.handling.mode`)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Row = dict[str, Any]
Form = Literal["flat", "flat with schemas", "flat rewritten", "envelope"]
_TYPES = {"id": "int64", "email": "string", "n": "int32"}


def _schema(names: Iterator[str] | list[str]) -> Row:
    fields = [{"field": n, "type": _TYPES.get(n, "string"), "optional": n != "id"} for n in names]
    return {"type": "struct", "optional": True, "fields": fields}


@dataclass
class Unwrapped:
    """A source table and the records about it.

    Attributes:
        table: its name, in the schema public.
        form: `flat` and `flat with schemas` send a delete as a tombstone only, the others as an event and a tombstone.
        topic: the topic of its records; None: they have none.
        rows: its rows by id.
    """

    table: str
    form: Form
    topic: str | None
    lsn: int = 1_000
    rows: dict[int, Row] = field(default_factory=dict)

    def change(self, choose: random.Random, ids: range) -> list[str]:
        """Change a row at random; return the records of the change."""
        of_row = choose.choice(ids)
        if of_row not in self.rows:
            return self.write("c", {"id": of_row, "email": f"{of_row}@x", "n": choose.randint(0, 9)})
        if choose.random() < 0.4:
            return self.delete(of_row)
        return self.write("u", {**self.rows[of_row], "n": choose.randint(0, 9)})

    def write(self, op: str, row: Row) -> list[str]:
        """Insert or update a row."""
        self.rows[row["id"]] = row
        return [self._record(row["id"], self._value(op, None, row))]

    def delete(self, of_row: int) -> list[str]:
        """Delete a row."""
        row = self.rows.pop(of_row)
        tombstone = self._record(of_row, None)
        if self.form == "flat":
            return [self._record(of_row, None)]
        if self.form == "flat with schemas":
            # The transform replaces the value, but not its schema.
            return [self._record(of_row, {**self._value("c", None, row), "payload": None})]
        return [self._record(of_row, self._value("d", row, None)), tombstone]

    def _value(self, op: str, before: Row | None, after: Row | None) -> Row:
        self.lsn += 1
        place = {"schema": "public", "table": self.table, "sequence": f'["{self.lsn}","{self.lsn}"]', "ts_ms": self.lsn}
        if self.form == "envelope":
            return {"op": op, "before": before, "after": after, "source": place}
        row = {**(after or before or {}), "__op": op} | {f"__source_{name}": value for name, value in place.items()}
        if self.form == "flat rewritten":
            row["__deleted"] = "true" if op == "d" else "false"
        return {"schema": _schema(list(row)), "payload": row} if self.form == "flat with schemas" else row

    def _record(self, of_row: int, value: Row | None) -> str:
        key: Row = {"id": of_row}
        if self.form == "flat with schemas":
            key = {"schema": _schema(["id"]), "payload": key}
        return json.dumps({**({"topic": self.topic} if self.topic else {}), "key": key, "value": value})

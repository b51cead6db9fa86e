"""Rows of a final table that are wrong, as after a bug of the past, and what a backfill makes of them: the model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.support.debezium import Event
from tests.support.oracle import final_rows
from tests.support.people import PEOPLE, People

COLUMNS = list(PEOPLE.columns)
Row = tuple[Any, ...]


class Damages:
    """Wrong rows of `final.people`, by id: until an event or a backfill concerns the id.

    A row is wrong by its age (99), or missing (None).
    """

    def __init__(self, people: People, seed: int) -> None:
        self.people, self.choose = people, random.Random(seed)
        self.wrong: dict[int, Row | None] = {}
        self.absorbed = 0

    def happen(self) -> None:
        """Change and delete some rows behind the pipeline's back."""
        rows = {r[0]: r for r in self.expected()}
        name = self.people.lake.sql_name("final.people")
        chosen = [i for i in rows if self.choose.random() < 0.3] or [*rows][:1]
        for id_ in chosen:
            if self.choose.random() < 0.3:
                self.people.sql(f"DELETE FROM {name} WHERE id = {id_}")
                self.wrong[id_] = None
            else:
                self.people.sql(f"UPDATE {name} SET age = 99 WHERE id = {id_}")
                self.wrong[id_] = (*rows[id_][:2], 99)

    def events_absorbed(self) -> None:
        """All events of the log are absorbed: their rows are right."""
        for event in self.people.log[self.absorbed :]:
            self.wrong.pop(_id(event), None)
        self.absorbed = len(self.people.log)

    def truth(self) -> Counter[Row]:
        """The rows without damage."""
        return Counter({tuple(r): n for r, n in final_rows(self.people.log, COLUMNS).items()})

    def expected(self) -> Counter[Row]:
        """The rows with damage."""
        rows = {r[0]: r for r in self.truth()}
        for id_, wrong in self.wrong.items():
            rows.pop(id_, None)
            if wrong is not None:
                rows[id_] = wrong
        return Counter(rows.values())

    def healed(self, ids: Iterable[int] | None = None, ages: range | None = None) -> dict[int, Row | None]:
        """What stays wrong after all rows were redone, or those with some ids, or with ages in a range."""
        if ids is not None:
            return {i: r for i, r in self.wrong.items() if i not in set(ids)}
        if ages is None:
            return {}
        truth = {r[0]: r[2] for r in self.truth()}
        return {i: r for i, r in self.wrong.items() if truth.get(i) not in ages and (r is None or r[2] not in ages)}

    def check(self) -> None:
        """The table has exactly the damage that it should have."""
        found, expected = self.people.rows("final.people"), self.expected()
        assert found == expected, f"instead: {found - expected}, missing: {expected - found}"


def _id(event: Event) -> int:
    return event.row["id"]

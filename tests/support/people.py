"""A stream of people, a final table of them and models on top of it, over random histories, with their oracle."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lake_assets import Lake
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.final_step import all_rows
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.verification import verify
from tests.support.debezium import BIGINT, TEXT, Event, Table
from tests.support.oracle import final_rows, rows_of
from tests.support.streams import Feed

PEOPLE = Table({"id": BIGINT, "city": TEXT, "age": BIGINT}, name="public.people")
TABLE: dict[str, Any] = {"table": "public.people"}
CITIES = {"name": "agg.cities", "sql": "SELECT city, count(*) AS n FROM final.people GROUP BY city"}
OLDEST = {"name": "agg.oldest", "sql": "SELECT city, max(age) AS age FROM final.people GROUP BY city"}
# Rows without a key, and copies of them.
AGES = {"name": "agg.ages", "sql": "SELECT city, age FROM final.people"}
# Computed in full, whatever changed.
RANKED = {"name": "agg.ranked", "sql": "SELECT id, row_number() OVER (ORDER BY id) AS place FROM final.people"}
SPAN = {
    "name": "agg.spans",
    "sql": "SELECT age, count(*) AS n FROM final.people GROUP BY age",
    "range": {"column": "age", "back": 0},
}


class People:
    """A stream of one table, with tables made of it, whose runs may be told to leave some of them out."""

    def __init__(
        self, lake: Lake, *models: Mapping[str, Any], seed: int = 1, inserts: bool = False, **declared: Any
    ) -> None:
        self.lake, self.choose = lake, random.Random(seed)
        self.log: list[Event] = []
        self.there: set[int] = set()
        self.inserts = inserts
        self.declare(*models, **declared)

    def declare(self, *models: Mapping[str, Any], **declared: Any) -> None:
        """Declare the tables, for the first time or otherwise than before."""
        files = self.feed.files if hasattr(self, "feed") else 0
        self.models, self.declared = list(models), {**TABLE, **declared}
        self.feed = Feed(self.lake, self.declared, models=self.models)
        self.feed.files = files

    def land(self, changes: int = 8) -> None:
        """Put random changes into the landing folder."""
        events: list[Event] = []
        for _ in range(changes):
            at = len(self.log) + len(events) + 1
            id_ = at if self.inserts else self.choose.randrange(10)
            row = {"id": id_, "city": self.choose.choice(["a", "b", None]), "age": self.choose.randrange(4)}
            op = "c" if id_ not in self.there else self.choose.choice(["u", "u", "d"])
            (self.there.discard if op == "d" else self.there.add)(id_)
            events.append(Event(PEOPLE, op, (at, at), row))  # type: ignore[arg-type]
        self.log += events
        self.feed.land(events)

    def run(self, *tables: str) -> dict[str, Any]:
        """Run the pipeline, or some of its tables; failures are outcomes."""
        return {o.table: o for o in self.feed.pipeline.run(self.lake, tables or None)}

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(r) for r in self.feed.rows(table).collect())

    def sql(self, text: str) -> None:
        self.lake.spark().sql(text)

    def check(self) -> None:
        """Every table is up to date, and equals what computing it from its sources gives."""
        failed = {t: o.error for t, o in self.run().items() if o.status == "failed"}
        assert not failed, failed
        assert self.feed.pipeline.pending(self.lake) == []
        if self.declared.keys().isdisjoint(("mode", "deletes")):
            columns = list(PEOPLE.columns)
            assert rows_of(self.feed.rows("final.people"), columns) == final_rows(self.log, columns)
        for spec in self.feed.pipeline.specs(self.lake):
            if isinstance(spec, FinalSpec):
                with contextlib.ExitStack() as scope:
                    _, expected = all_rows(self.lake, spec, self.lake.table(spec.table), scope)
                    assert self.rows(str(spec.table)) == Counter(tuple(r) for r in expected.collect())
            if isinstance(spec, ModelSpec):
                found = verify(self.lake, spec)
                assert found.equal, found

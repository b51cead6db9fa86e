"""A table whose source has lost its history is rebuilt as declared, and only rows that differ are written: whatever
reads it sees nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.final.final_spec import FinalSpec
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.verification import verify
from tests.support.people import AGES, CITIES, OLDEST, RANKED, SPAN, People
from tests.support.upkeep import forget_history

GAP = {"on_gap": "rebuild"}
# By the strategy that absorbs a change otherwise.
MODELS: dict[str, dict[str, Any]] = {
    "retract": CITIES,
    "keys": OLDEST,
    "copies": AGES,
    "full": {**RANKED, "sql": RANKED["sql"].replace("BY id)", "BY id DESC)")},
    "ranges": SPAN,
    "outer": {
        "name": "agg.outer",
        "sql": "SELECT p.id, p.age, c.n FROM final.people p LEFT JOIN (SELECT city, count(*) AS n FROM final.people "
        "GROUP BY city) c ON p.city = c.city",
    },
    "keyed": {"name": "agg.keyed", "key": ["id"], "sql": "SELECT id, upper(city) AS city, age FROM final.people"},
    "parts": {
        "name": "agg.parts",
        "sql": "SELECT id, city, age FROM final.people WHERE age > 0",
        "partitions": {"by": "age"},
    },
}
KINDS: dict[str, dict[str, Any]] = {
    "hard": {},
    "versions": {"mode": "scd2"},
    "soft": {"deletes": "soft"},
    "appended": {"mode": "append", "inserts": True},
    "columns": {"columns": ["* EXCEPT (age)", "age + 1 AS older"]},
    "parts": {"partition_by": ["city"], "write": "overwrite-partitions"},
}


class Watch:
    """A table before a step, to tell which rows the step has written."""

    def __init__(self, people: People, table: str) -> None:
        self.people, self.table = people, table
        loaded = people.lake.table(table)
        current = loaded.current_snapshot()
        assert current is not None
        assert current.sequence_number is not None
        self.uuid, self.sequence, self.head = loaded.metadata.table_uuid, current.sequence_number, current.snapshot_id
        self.rows = people.rows(table)

    def check(self) -> None:
        """Only rows that differ were written, and readers see these."""
        lake, spark, now = self.people.lake, self.people.lake.spark(), self.people.rows(self.table)
        loaded = lake.table(self.table)
        assert loaded.metadata.table_uuid == self.uuid
        assert loaded.snapshot_by_id(self.head) is not None, "its readers' history is lost as well"
        come, gone = now - self.rows, self.rows - now
        assert come or gone
        assert now & self.rows, "every row differs"
        sql = f"SELECT * FROM {lake.sql_name(self.table)} WHERE _last_updated_sequence_number > {self.sequence}"
        written = Counter(tuple(r) for r in spark.sql(sql).collect())
        # Where some rows have fewer copies now, all copies of a row that has more or fewer are written again.
        assert come <= written <= Counter({r: now[r] for r in (*come, *gone)}), self.table
        with lake.capture(self.table, start=self.head) as captured:
            feed = captured.feed(spark)
            images = [(r["_change_type"], tuple(r[c] for c in spark.table(lake.sql_name(self.table)).columns))
                      for r in feed.collect()]  # fmt: skip
        assert Counter(row for kind, row in images if kind in ("insert", "update_after")) == come
        assert Counter(row for kind, row in images if kind in ("delete", "update_before")) == gone


def rebuilt(people: People, table: str, source: str) -> None:
    """Let a table lose the history of its source, and be rebuilt."""
    watch = Watch(people, table)
    forget_history(people.lake, source)
    outcome = people.run(table)[table]
    assert outcome.status == "absorbed", outcome
    assert "has expired" in outcome.why, outcome
    watch.check()


def world(lake: Lake, *models: dict[str, Any], **declared: Any) -> People:
    people = People(lake, *({**m, **GAP} for m in models), seed=3, **declared, **GAP)
    people.land(40)
    assert not [o for o in people.run().values() if o.status == "failed"]
    return people


def equal(people: People) -> None:
    """All tables are what computing them from their sources gives."""
    assert not [o for o in people.run().values() if o.status == "failed"]
    for spec in people.feed.pipeline.specs(people.lake):
        if isinstance(spec, FinalSpec | ModelSpec):
            assert verify(people.lake, spec).equal, spec.table


@pytest.mark.long  # as rebuilt models
@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuilt_final_table_writes_what_differs(lake: Lake, kind: str) -> None:
    people = world(lake, **KINDS[kind])
    people.land(3)
    people.run("raw.events", "staging.people")
    rebuilt(people, "final.people", "staging.people")
    equal(people)


@pytest.mark.long
def test_staging_writes_new_events_alone_after_its_raw_table_has_lost_its_history(lake: Lake) -> None:
    people = world(lake)
    people.land(3)
    people.run("raw.events")
    watch = Watch(people, "staging.people")
    forget_history(lake, "raw.events")
    assert people.run("staging.people")["staging.people"].inserted == 3
    watch.check()
    equal(people)


@pytest.mark.parametrize(
    "names",
    [["retract"], *(pytest.param([n], marks=pytest.mark.long) for n in MODELS if n != "retract")],
    ids="+".join,
)
def test_rebuilt_models_write_what_differs(lake: Lake, names: list[str]) -> None:
    models = [MODELS[n] for n in names]
    people = world(lake, *models)
    people.land(8)
    people.run("raw.events", "staging.people", "final.people")
    for model in models:
        rebuilt(people, model["name"], "final.people")
    equal(people)

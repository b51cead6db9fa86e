"""Recomputed partitions: after any damage they equal the sources again, and other partitions do not change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import NotRunError, PipelineError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.redo import redo_partitions
from lake_assets.tables.partitioning.table_partitions import Partitions
from tests.support.debezium import BIGINT, TEXT, Event, Table
from tests.support.streams import Feed

PEOPLE = Table({"id": BIGINT, "city": TEXT, "age": BIGINT}, name="public.people")
CITIES = ["a", "b", "c", None]
MODELS = [
    {"name": "agg.ages", "sql": "SELECT city, age FROM final.people", "partitions": "city"},
    {"name": "agg.cities", "sql": "SELECT city, count(*) AS n FROM final.people GROUP BY city", "partitions": "city"},
]


def people(lake: Lake, seed: int, declared: Mapping[str, Any], *, changes: bool = True) -> Feed:
    """Return a pipeline that has absorbed a random history, in three pieces."""
    feed, choose, there, lsn = (
        Feed(lake, {"table": "public.people", **declared}, models=MODELS),
        random.Random(seed),
        set[int](),
        0,
    )
    for _ in range(3):
        events: list[Event] = []
        for _ in range(14):
            lsn += 1
            id_ = choose.randrange(12) if changes else lsn
            row = {"id": id_, "city": choose.choice(CITIES), "age": choose.randrange(3)}
            op = "c" if id_ not in there else choose.choice(["u", "u", "d"])
            (there.discard if op == "d" else there.add)(id_)
            events.append(Event(PEOPLE, op, (lsn, lsn), row))  # type: ignore[arg-type]
        feed.deliver(events)
    return feed


def rows(feed: Feed, table: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(r) for r in feed.rows(table).collect())


def damage(feed: Feed, table: str) -> None:
    """Missing, duplicated and changed rows, and rows in wrong partitions."""
    name = feed.lake.sql_name(table)
    columns = [c for c, _ in feed.rows(table).dtypes if c != "city"]
    feed.lake.spark().sql(f"UPDATE {name} SET city = 'a' WHERE city = 'b'")
    feed.lake.spark().sql(f"UPDATE {name} SET {columns[-1]} = {columns[-1]} WHERE city IS NULL")
    feed.lake.spark().sql(f"DELETE FROM {name} WHERE city = 'c'")


@pytest.mark.long
@pytest.mark.parametrize(
    "declared",
    [
        pytest.param({"partitions": "city"}, id="scd1"),
        pytest.param({"partitions": {"by": "city", "values": ["a", "b"]}, "deletes": "soft"}, id="soft",
                     marks=pytest.mark.long),
        pytest.param({"partitions": "city", "mode": "scd2"}, id="scd2", marks=pytest.mark.long),
        pytest.param({"partitions": "city", "mode": "append"}, id="append", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_damaged_partitions_are_as_their_sources_say_again(lake: Lake, declared: dict[str, Any]) -> None:
    feed = people(lake, 1, declared, changes=declared.get("mode") != "append")
    specs = {str(s.table): s for s in feed.pipeline.specs(lake)}
    tables = ["final.people", "agg.ages", "agg.cities"] if declared == {"partitions": "city"} else ["final.people"]
    for table in tables:
        spec = specs[table]
        assert isinstance(spec, FinalSpec | ModelSpec)
        assert isinstance(spec.partitions, Partitions)
        good, marks = rows(feed, table), read_marks(lake.table(table))
        damage(feed, table)
        assert rows(feed, table) != good
        head = len(lake.table(table).history())
        keys = {str(spec.partitions.key_of(v)) for v in CITIES}
        outcome = redo_partitions(lake, spec, sorted(keys))
        assert rows(feed, table) == good, outcome
        assert len(lake.table(table).history()) == head + 1
        assert outcome.strategy == "recompute"
        assert outcome.changed
        assert read_marks(lake.table(table)) == marks
        again = redo_partitions(lake, spec, sorted(keys))
        assert again.snapshot is None
        assert len(lake.table(table).history()) == head + 1
    # Later changes apply to it.
    feed.deliver([Event(PEOPLE, "c", (99, 99), {"id": 99, "city": "b", "age": 1})])
    assert sum(n for row, n in rows(feed, "final.people").items() if 99 in row) == 1


@pytest.mark.long
def test_partitions_whose_rows_depend_on_each_other_by_ties_are_recomputed_together(lake: Lake) -> None:
    lake.ensure_namespace(("final",))
    numbered = "SELECT id, p, row_number() OVER (PARTITION BY g ORDER BY v) AS n FROM final.t"
    models = [
        {"name": "agg.numbered", "sql": numbered, "partitions": "p"},
        {"name": "agg.within", "sql": numbered.replace("BY g", "BY p"), "partitions": "p"},
    ]
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "models": models}))
    spark = lake.spark()
    spark.sql("CREATE TABLE final.t (id INT, g INT, p STRING, v INT) USING iceberg")
    spark.sql("INSERT INTO final.t SELECT /*+ COALESCE(1) */ id, 1, IF(id % 2 = 0, 'a', 'b'), 1 FROM range(8)")
    pipeline.run(lake)
    # If the rows are read in another order, they get other numbers.
    spark.sql(
        "CALL lake.system.rewrite_data_files(table => 'final.t', strategy => 'sort', sort_order => 'id DESC', "
        "options => map('rewrite-all', 'true'))"
    )
    pipeline.run(lake)
    whole, within = (redo_partitions(lake, s, ["a"]) for s in pipeline.specs(lake) if isinstance(s, ModelSpec))
    assert sorted(r["n"] for r in spark.table("agg.numbered").collect()) == list(range(1, 9))
    assert "all rows are computed, because" in whole.why
    assert "all partitions" not in within.why
    for p in "ab":
        assert sorted(r["n"] for r in spark.table("agg.within").where(f"p = '{p}'").collect()) == [1, 2, 3, 4]


@pytest.mark.long
def test_what_cannot_be_recomputed_is_named(lake: Lake) -> None:
    feed = Feed(lake, {"table": "public.people", "partitions": "city"})
    (spec,) = (s for s in feed.pipeline.specs(lake, alone=False) if isinstance(s, FinalSpec))
    with pytest.raises(NotRunError, match="never run"):
        redo_partitions(lake, spec, ["a"])
    feed.deliver([Event(PEOPLE, "c", (1, 1), {"id": 1, "city": "a", "age": 1})])
    wrong = Feed(lake, {"table": "public.people", "partitions": "nowhere"})
    with pytest.raises(PipelineError, match="`partitions` names nowhere"):
        wrong.run()
    # Another field rebuilds the table; another list of values does not.
    for partitions, transform in (("age", "age"), ({"by": "city", "values": ["a"]}, "city")):
        changed = Feed(lake, {"table": "public.people", "partitions": partitions})
        assert changed.run()["final.people"].strategy == "rebuild"
        assert [f.name for f in lake.table("final.people").spec().fields] == [transform]
        assert rows(changed, "final.people") == Counter([(1, "a", 1)])
    assert Feed(lake, {"table": "public.people", "partitions": "city"}).run()["final.people"].status == "nothing"

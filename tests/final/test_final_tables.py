"""Final tables of every kind over one staging table: for any events, batches and order, each equals the rows that plain
Python computes from the events."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import KeyMissingError, PipelineError, UnsupportedEventError
from lake_assets.final.column_selection import read_columns
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.modes import scd2
from lake_assets.lake import TableId, thresholds
from lake_assets.tables.partitioning.partition_fields import PartitionField
from lake_assets.tables.spark_frames import checkpoint
from tests.support.debezium import INT, Event, Table
from tests.support.final_kinds import (
    MADE_NAMES,
    NAMES,
    SPECS,
    START,
    T,
    emptied,
    expected,
    in_order,
    scattered,
    shifted,
    shifted_and_scattered,
)
from tests.support.histories import Batches
from tests.support.oracle import final_rows, rows_of, versions
from tests.support.seeds import any_seed
from tests.support.streams import Feed, absorb_changes, pipeline


class Tables:
    """Final tables of several kinds over one stream."""

    def __init__(self, lake: Lake, kinds: list[str]) -> None:
        self.lake, self.kinds = lake, kinds
        self.feed = Feed(lake, {"table": "public.t", "final": False})
        self.delivered: list[Event] = []

    def spec(self, kind: str) -> FinalSpec:
        return FinalSpec(TableId(("final",), kind), TableId(("staging",), "t"), "made_up", **SPECS[kind])

    def deliver(self, batch: list[Event]) -> None:
        self.delivered += batch
        self.feed.deliver(batch)
        for kind in self.kinds:
            with pytest.MonkeyPatch.context() as patched:
                if kind == "large":
                    patched.setattr(thresholds, "HASHES_TARGET_ROWS", 0)
                    patched.setattr(thresholds, "LARGE_TARGET_ROWS", 0)
                    patched.setattr(thresholds, "HASHES_ROWS_A_KEY", 0)
                outcome = absorb_changes(self.lake, self.spec(kind))
            if self.delivered:
                self.compare(kind, f"{outcome.why}, {outcome.details}")

    def compare(self, kind: str, context: str) -> None:
        rows = self.feed.rows(f"final.{kind}")
        names = MADE_NAMES if "made" in kind else NAMES
        own = ["__deleted"] if "soft" in kind else []
        own = ["effective_from", "effective_to", "is_current"] if "versions" in kind else own
        columns = [*names, *own]
        actual, expected_rows = rows_of(rows, columns), expected(kind, self.delivered)
        if actual == expected_rows:
            return
        wrong = {row[:2] for row in (expected_rows - actual) + (actual - expected_rows)}
        key = min(wrong)
        events = [f"  {n} {e.sequence} {e.op} {dict(e.row)} without {set(e.absent)} at {e.time}"
                  for n, e in enumerate(self.delivered) if e.op == "t" or (e.key in wrong and e.key[0] == key[0])]  # fmt: skip
        mine = [sorted(map(str, (r for r in rows.elements() if r[:2] == key))) for rows in (expected_rows, actual)]
        raise AssertionError("\n".join([f"{kind}: {key} of {len(wrong)}; {context}", f"expected {mine[0]}",
                                        f"found {mine[1]}", "as delivered:", *events]))  # fmt: skip


KINDS = [in_order, scattered, emptied, shifted, shifted_and_scattered]
QUICK = [
    (scattered, ["soft", "made_versions", "parts"]),
    (emptied, ["made_soft"]),
    (in_order, ["large"]),
    (shifted, ["versions"]),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "tables"), QUICK)
def test_tables_of_every_kind_are_what_the_events_make_of_them(
    lake: Lake, kind: Callable[[random.Random], Batches], tables: list[str]
) -> None:
    world = Tables(lake, tables)
    for batch in kind(random.Random(kind.__name__)):
        world.deliver(batch)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_every_kind_are_what_any_events_make_of_them(
    new_lake: Callable[[str], Lake], kind: Callable[[random.Random], Batches]
) -> None:
    @any_seed(3)
    def run(seed: int) -> None:
        examples.append(seed)
        world = Tables(new_lake(f"{kind.__name__}{len(examples)}"), list(SPECS))
        for batch in kind(random.Random(seed)):
            world.deliver(batch)

    examples: list[int] = []
    run()


# --- declarations -----------------------------------------------------------------------------------------------


def test_versions_of_many_columns_are_compared_without_a_condition_per_subset_of_them(spark_lake: Lake) -> None:
    names = [f"c{i}" for i in range(12)]
    own = ["effective_from", "effective_to", "is_current"]
    columns = ["id", *names, *own]
    types = {c: "timestamp" if "effective" in c else "boolean" if c == "is_current" else "string" for c in columns}
    target = SimpleNamespace(columns=["id", *names], own=own, row_key=("id", "effective_from"))
    batch: Any = SimpleNamespace(target=target, types=types)
    spark: Any = spark_lake.spark()
    rows = checkpoint(spark.range(3).selectExpr(*(f"CAST(NULL AS {kind}) AS {c}" for c, kind in types.items())))
    differing: Any = scd2._differing(batch, rows, rows)
    # The optimizer's conclusions from the filter: 2^12 of a condition that names every column.
    assert differing._jdf.queryExecution().optimizedPlan().validConstraints().size() < 100


def write(sequence: int, op: Any, k: int, n: int = 0) -> Event:
    return Event(T, op, (sequence, sequence + 1), {"h": 1, "k": k, "n": n, "name": "a"}, time=START + sequence)


def test_a_table_of_inserts_refuses_or_ignores_what_is_none(lake: Lake) -> None:
    feed = Feed(lake, {"table": "public.t", "mode": "append"})
    first = [write(10, "c", 1), write(20, "c", 2)]
    feed.deliver(first)
    feed.land([write(30, "u", 1, 5), write(40, "c", 3), *first])
    outcome = feed.outcomes()["final.t"]
    assert isinstance(outcome.exception, UnsupportedEventError)
    assert "on_change: ignore" in (outcome.error or "")
    feed.pipeline = pipeline({"table": "public.t", "mode": "append", "on_change": "ignore"})
    outcome = feed.run()["final.t"]
    assert outcome.details == {"events": 4, "ignored": 1}
    assert rows_of(feed.rows("final.t"), ["k", "n"]) == Counter({(1, 0): 1, (2, 0): 1, (3, 0): 1})


def test_repeated_inserts_beside_a_new_column_are_known(lake: Lake) -> None:
    """Repeats are also recognized among events from before the column existed."""
    feed = Feed(lake, {"table": "public.t", "mode": "append"})
    first = [write(10, "c", 1), write(20, "c", 2)]
    feed.deliver(first)
    wider = Table({**T.columns, "more": INT}, key=T.key, name=T.name)
    row = {"h": 1, "k": 3, "n": 0, "name": "a", "more": 5}
    feed.deliver([*first, Event(wider, "c", (30, 31), row, time=START + 30)])
    assert rows_of(feed.rows("final.t"), ["k", "more"]) == Counter({(1, None): 1, (2, None): 1, (3, 5): 1})


@pytest.mark.long
def test_a_table_that_is_declared_otherwise_is_made_again_from_staging(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    events = [write(10, "c", 1), write(20, "u", 1, 5), write(30, "c", 2), write(40, "d", 2)]
    feed.deliver(events)
    for options, columns, expected_rows in (
        ({"deletes": "soft"}, [*NAMES, "__deleted"], final_rows(events, [*NAMES, "__deleted"], "soft")),
        ({"mode": "scd2"}, [*NAMES, "effective_from", "effective_to", "is_current"], versions(events, NAMES)),
        ({}, NAMES, final_rows(events, NAMES)),
    ):
        feed.pipeline = pipeline({"table": "public.t", **options})
        before = feed.lake.table("final.t").metadata.table_uuid
        assert feed.run()["final.t"].strategy == "rebuild"
        assert rows_of(feed.rows("final.t")) == rows_of(feed.rows("final.t"), columns) == expected_rows
        assert feed.lake.table("final.t").metadata.table_uuid == before
        assert {o.status for o in feed.run().values()} == {"nothing"}
    events.append(write(50, "u", 1, 7))
    feed.deliver(events[-1:])
    assert rows_of(feed.rows("final.t"), NAMES) == final_rows(events, NAMES)


def test_columns_are_checked_before_anything_runs(lake: Lake) -> None:
    feed = Feed(lake, {"table": "public.t", "final": False})
    feed.deliver([write(10, "c", 1)])
    for options, error, message in (
        (
            {"columns": read_columns(["h", "k", "nope AS x"])},
            PipelineError,
            "computes x from nope, and the source has h, k, n",
        ),
        ({"columns": read_columns(["h", "n"])}, KeyMissingError, "leaves out k of the key h, k"),
        (
            {"columns": read_columns(["h", "k + 1 AS k"])},
            KeyMissingError,
            "leaves out k of the key h, k, or changes it",
        ),
        ({"columns": read_columns(["h", "k", "n.x AS x"])}, PipelineError, "`columns`: "),
        ({"columns": read_columns(["*", "1 AS __deleted"]), "deletes": "soft"}, PipelineError, "column __deleted"),
        ({"partition_by": (PartitionField("nope"),)}, PipelineError, "`partition_by` names nope, and the table has h"),
        ({"sort_by": ("nope",)}, PipelineError, "`sort_by` names nope"),
    ):
        spec = FinalSpec(TableId(("final",), "t"), TableId(("staging",), "t"), "made_up", **options)
        with pytest.raises(error) as caught:
            absorb_changes(lake, spec)
        assert message in str(caught.value)
        assert not lake.exists("final.t")


@pytest.mark.long
def test_partitions_order_and_columns_that_are_declared_otherwise(lake: Lake) -> None:
    feed = Feed(lake, "public.t")
    events = [write(10, "c", 1), write(20, "u", 1, 5), write(30, "c", 2, 7)]
    feed.deliver(events)
    feed.pipeline = pipeline({"table": "public.t", "columns": "* EXCEPT (name), n * 2 AS twice", "sort_by": "n",
                              "partition_by": ["truncate(10, twice)", "bucket(2, k)"]})  # fmt: skip
    assert [(p.table, p.start) for p in feed.pipeline.pending(lake)] == [("final.t", None)]
    assert feed.run()["final.t"].strategy == "rebuild"
    assert feed.pipeline.pending(lake) == []
    made_of = lake.table("final.t")
    assert [f.name for f in made_of.spec().fields] == ["twice_trunc", "k_bucket"]
    assert len(made_of.sort_order().fields) == 1
    # The partition value changes, and the key still has one row.
    events += [write(40, "u", 1, 50), write(50, "d", 2), write(60, "c", 3, -1)]
    feed.deliver(events[3:])
    assert rows_of(feed.rows("final.t"), ["k", "n", "twice"]) == Counter({(1, 50, 100): 1, (3, -1, -2): 1})


@pytest.mark.long
def test_what_comes_later_than_the_horizon_is_absorbed_and_told_of(lake: Lake) -> None:
    feed = Feed(lake, {"table": "public.t", "horizon": "1m"})
    feed.deliver([write(10, "c", 1), write(20, "c", 2), write(90_000, "u", 1, 9)])
    outcomes = feed.deliver([write(30, "u", 2, 3), write(70_000, "u", 2, 4)])
    assert outcomes["final.t"].details["older_than_horizon"] == 1
    assert str(outcomes["final.t"].details["warning"]).startswith("LateEventsWarning: final.t: 1 event more than")
    assert rows_of(feed.rows("final.t"), ["k", "n"]) == Counter({(1, 9): 1, (2, 4): 1})

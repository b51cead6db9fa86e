"""`write: overwrite-partitions`: only the partitions that a change touches are rewritten."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from lake_assets import Lake
from lake_assets.errors import ConcurrentWriteError, KeyMissingError, PipelineError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.modes import partition_overwrite
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.pipeline import PipelineConfig
from lake_assets.tables.partitioning.partition_fields import PartitionField
from tests.support.debezium import BIGINT, DATE, INT, TEXT, TIMESTAMP, Event, Table, decimal
from tests.support.histories import Source, redelivered, shuffled, split
from tests.support.oracle import final_rows, rows_of
from tests.support.seeds import seeds
from tests.support.streams import Feed, absorb_changes

CITIES = Table({"id": BIGINT, "city": TEXT, "n": INT})
NAMES = list(CITIES.columns)
DECLARED = {"table": "public.t", "write": "overwrite-partitions", "partition_by": "city"}


def event(at: int, op: Any, k: int, city: str | None = None, n: int | None = None) -> Event:
    return Event(CITIES, op, (at, at + 1), {"id": k, "city": city, "n": n})


def files(lake: Lake) -> dict[Any, set[str]]:
    """Return the data files of final.t by partition value."""
    by_partition: dict[Any, set[str]] = {}
    for task in lake.table("final.t").scan().plan_files():
        by_partition.setdefault(task.file.partition[0], set()).add(task.file.file_path)
    return by_partition


def test_only_touched_partitions_are_rewritten_and_a_moved_row_leaves_its_old_one(lake: Lake) -> None:
    feed = Feed(lake, DECLARED)
    events = [event(n * 10, "c", n, city, n) for n, city in enumerate(["A", "A", "B", "C", None, "it's", "D"])]
    feed.deliver(events)
    before, snapshots = files(lake), len(lake.table("final.t").metadata.snapshots)
    # 0 stays in A, 2 moves from B (then empty) to a new partition, 4 leaves the partition of nulls, 3 is deleted.
    new = [event(100, "u", 0, "A", 9), event(110, "u", 2, "\\E", 2), event(120, "u", 4, "D", 4), event(130, "d", 3)]
    outcome = feed.deliver(new)["final.t"]
    after, events = files(lake), events + new
    assert (outcome.strategy, outcome.why) == ("overwrite", "6 partitions rewritten")
    assert (outcome.inserted, outcome.updated, outcome.deleted) == (0, 3, 1)
    assert set(after) == {"A", "\\E", "D", "it's"}
    assert {c for c in after if after[c] == before.get(c)} == {"it's"}
    assert rows_of(feed.rows("final.t"), NAMES) == final_rows(events, NAMES)
    table = lake.table("final.t")
    assert len(table.metadata.snapshots) == snapshots + 1, "rows and watermark are one commit"
    assert set(table.metadata.refs) == {"main"}
    # Changes that equal the stored rows rewrite nothing, and are absorbed.
    outcome = feed.deliver([event(140, "u", 0, "A", 1), event(150, "u", 0, "A", 9), event(160, "d", 77)])["final.t"]
    assert (outcome.why, outcome.changed, files(lake)) == ("no row differs", 0, after)
    assert feed.pipeline.pending(lake) == []


@pytest.mark.long
def test_many_partitions_and_files_of_other_ones_are_merged(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(lake, DECLARED)
    events = [event(n * 10, "c", n, f"{n}", n) for n in range(4)]
    feed.deliver(events)
    with monkeypatch.context() as patch:
        patch.setattr(thresholds, "OVERWRITE_PARTITIONS", 2)
        events += [event(100 + n * 10, "u", n, "moved", n) for n in range(3)]
        outcome = feed.deliver(events[4:])["final.t"]
        assert outcome.strategy == "merge"
        assert outcome.why.startswith("merged, since more than 2 partitions are touched; 3 keys")
        assert rows_of(feed.rows("final.t"), NAMES) == final_rows(events, NAMES)
        # A truncate does not look for touched partitions.
        events += [Event(CITIES, "t", (200, 201)), *(event(210 + n * 10, "c", n, f"{n}", n) for n in range(3))]
        assert feed.deliver(events[7:])["final.t"].strategy == "overwrite"
        assert rows_of(feed.rows("final.t"), NAMES) == final_rows(events, NAMES)
    lake.spark().sql("ALTER TABLE lake.final.t ADD PARTITION FIELD bucket(2, id)")
    events += [event(300, "u", 1, "B", 5)]
    outcome = feed.deliver(events[-1:])["final.t"]
    assert outcome.why.startswith("merged, since some files have other partitions than the declared ones")
    assert rows_of(feed.rows("final.t"), NAMES) == final_rows(events, NAMES)


@pytest.mark.long
def test_another_writer_is_noticed_and_the_step_done_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(lake, DECLARED)
    events = [event(n * 10, "c", n, city, n) for n, city in enumerate("ABC")]
    feed.deliver(events)
    marks, another = read_marks(lake.table("final.t")), Lake(lake.config)
    reading, foreign = partition_overwrite._touched_partitions, [9]

    def disturbed(*args: Any) -> Any:
        found = reading(*args)
        if foreign:
            another.spark().sql(f"INSERT INTO lake.final.t VALUES ({foreign.pop()}, 'A', 0)")
        return found

    monkeypatch.setattr(partition_overwrite, "_touched_partitions", disturbed)
    feed.land([event(100, "u", 0, "A", 5)])
    spec = next(s for s in feed.pipeline.specs(lake) if str(s.table) == "final.t")
    assert isinstance(spec, FinalSpec)
    feed.pipeline.run(lake, ["raw.events", "staging.t"])
    with pytest.raises(ConcurrentWriteError):
        absorb_changes(lake, spec)
    assert read_marks(lake.table("final.t")) == marks
    assert rows_of(feed.rows("final.t"), NAMES) == final_rows(events, NAMES) + Counter({(9, "A", 0): 1})
    foreign.append(8)
    assert feed.run()["final.t"].strategy == "overwrite", "tried again, from the same watermark"
    foreigners = Counter({(9, "A", 0): 1, (8, "A", 0): 1})
    assert rows_of(feed.rows("final.t"), NAMES) == final_rows([*events, event(100, "u", 0, "A", 5)], NAMES) + foreigners
    assert set(lake.table("final.t").metadata.refs) == {"main"}


# --- transforms -------------------------------------------------------------------------------------------------

T = Table(
    {"id": INT, "name": TEXT, "d": DATE, "ts": TIMESTAMP, "dc": decimal(9, 2), "yes": {"type": "boolean"},
     "raw": {"type": "bytes"}}
)  # fmt: skip
FIELDS = ["bucket(2, id)", "truncate(1, name)", "name", "years(d)", "d", "days(ts)", "hours(ts)", "months(ts)", "ts",
          "truncate(50, dc)", "bucket(3, dc)", "dc", "yes", "raw", "truncate(1, raw)"]  # fmt: skip
_VALUES: dict[str, list[Any]] = {
    "name": ["", "a", "it's", "\\", "ü😀"],
    "d": [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    "ts": [dt.datetime(1960, 5, 1, 23, 59, 59, 999_999), dt.datetime(2024, 2, 29, 1)],  # noqa: DTZ001
    "dc": ["-0.01", "0.00", "1234567.89"],
    "yes": [True, False],
    "raw": [b"", b"\x00\xff", b"'"],
}


def rounds(lake: Lake, choose: random.Random, name: str) -> None:
    every = [PartitionField.parse(f) for f in choose.sample(FIELDS, len(FIELDS))]
    fields = list({f.column: f for f in every}.values())[:3]
    source = Source(T, choose, lambda c, column: c.choice(_VALUES[column]), frozenset({"name"}))
    for _ in range(25):
        source.transaction([(k,) for k in range(8)])
    feed = Feed(lake, {"table": "public.t", "final": False}, stream=name, name=name)
    spec = FinalSpec(
        TableId(("final",), name), TableId(("staging",), "t"), name, partition_by=tuple(fields), write="overwrite-partitions"
    )  # fmt: skip
    delivered: list[Event] = []
    for batch in redelivered(choose, shuffled(choose, split(choose, source.log, 3))):
        delivered += batch
        feed.deliver(batch)
        outcome = absorb_changes(lake, spec)
        actual = rows_of(feed.rows(str(spec.table)), ["id", "name", "d", "ts", "yes"])
        assert actual == final_rows(delivered, ["id", "name", "d", "ts", "yes"]), f"{fields}, {outcome.why}"
        assert outcome.strategy in ("overwrite", "rebuild", "none", ""), outcome.why


@pytest.mark.long
def test_partitions_of_any_transforms_are_what_the_events_make_of_them(lake: Lake) -> None:
    rounds(lake, random.Random(11), "one")


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0, 2))
def test_partitions_of_any_transforms_in_many_histories(new_lake: Callable[[str], Lake], seed: int) -> None:
    for n in range(3):
        rounds(new_lake(f"{n}"), random.Random(seed * 100 + n), "one")


# --- declarations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{"partition_by": []}, {"mode": "scd2"}, {"mode": "append"}])
def test_what_does_not_go_together_is_said(more: dict[str, Any]) -> None:
    declared = {"name": "p", "streams": [{"name": "s", "tables": [{**DECLARED, **more}]}]}
    with pytest.raises(ValidationError, match="`write: overwrite-partitions` is for"):
        PipelineConfig.model_validate(declared)


def test_what_cannot_be_overwritten_is_said_before_anything_runs(lake: Lake) -> None:
    table = Table({"url": TEXT, "x": {"type": "double"}}, key=())
    feed = Feed(lake, {"table": "public.t", "final": False})
    feed.deliver([Event(table, "c", (10, 11), {"url": "a", "x": 1.5})])
    for options, error, message in (
        ({"partition_by": ()}, PipelineError, "declare `partition_by`"),
        ({"mode": "scd2", "key": ("url",)}, PipelineError, "only scd1 tables support it"),
        ({"partition_by": (PartitionField("url"), PartitionField("url", "bucket", 2))}, PipelineError, "use url"),
        ({"partition_by": (PartitionField("x"),)}, PipelineError, "x is a floating-point number"),
        ({"partition_by": (PartitionField("url"),)}, KeyMissingError, "staging.t has none"),
    ):
        spec = FinalSpec(
            TableId(("final",), "t"), TableId(("staging",), "t"), "made_up", write="overwrite-partitions", **options
        )
        with pytest.raises(error, match=message):
            absorb_changes(lake, spec)
        assert not lake.exists("final.t")

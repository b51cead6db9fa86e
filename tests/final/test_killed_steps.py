"""Steps of final tables that are killed at any point, run concurrently, or race with other writers."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets import Lake
from lake_assets.errors import ConcurrentWriteError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.pipeline import step_retries as runner
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.partitioning.partition_fields import PartitionField
from lake_assets.tables.writing import branch_writer
from tests.support.debezium import TEXT, Event, Table, write_lines
from tests.support.final_kinds import NAMES, emptied, expected, scattered, shifted, source, transactions
from tests.support.histories import redelivered, shuffled, split
from tests.support.item_events import debezium
from tests.support.kills import Points, killed_everywhere
from tests.support.oracle import final_rows, rows_of
from tests.support.seeds import seeds
from tests.support.streams import Feed, absorb_changes

CLICKS = Table({"url": TEXT}, key=(), name="public.clicks")
Row = dict[str, Any]
ITEMS: Row = {"table": "public.items", "key": "*", "final": False, "types": {"n": "int"}}

KEYED: dict[str, dict[str, Any]] = {
    "hard": {"sort_by": ("n",)},
    "soft": {"deletes": "soft"},
    "versions": {"mode": "scd2"},
    "parts": {"partition_by": (PartitionField("n"),), "write": "overwrite-partitions"},
    "inserts": {"mode": "append", "on_change": "ignore"},
}
OWN = {"soft": ["__deleted"], "versions": ["effective_from", "effective_to", "is_current"]}
REBUILT: dict[str, dict[str, Any]] = {
    "hard": {"deletes": "ignore", "sort_by": ("n",)},
    "versions": {"mode": "scd2", "track": ("n",)},
    "parts": {"partition_by": (PartitionField("k", "bucket", 2),), "write": "overwrite-partitions"},
}


class Streams:
    """One stream of three tables: with a key, without a key, and with rows identified by all of their values."""

    def __init__(self, lake: Lake, kinds: Collection[str] = ("clicks", "items")) -> None:
        """
        Args:
            kinds: the kinds that are made of the stream: tables of others are not staged.
        """
        self.lake, self.delivered, self.clicks, self.items = lake, list[Event](), Counter[str](), list[Row]()
        self.at = 0
        self.feed = Feed(
            lake,
            {"table": "public.t", "final": False},
            *([{"table": "public.clicks", "final": False}] if "clicks" in kinds else ()),
            *([ITEMS] if "items" in kinds else ()),
        )

    def deliver(self, events: list[Event], choose: random.Random) -> None:
        """Deliver `events`, some clicks and some changes of items."""
        self.delivered += events
        urls = [choose.choice("ab") for _ in range(4)]
        self.clicks.update(urls)
        self.feed.land([*events, *(Event(CLICKS, "c", (self.at + n, self.at + n), {"url": u}) for n, u in enumerate(urls, 1))])  # fmt: skip
        lines: list[str] = []
        for _ in range(8):
            self.at += 10
            removed = self.items.pop(choose.randrange(len(self.items))) if len(self.items) > 2 else None
            added = None if removed and choose.random() < 0.4 else {"n": self.at, "name": choose.choice(["x", "ü"])}
            self.items += [added] if added else []
            lines += debezium(self.at, "u" if removed and added else "c" if added else "d", removed, added)
        write_lines(self.feed.landing / f"{self.feed.files:04}_items.jsonl", [f"{x}\n".encode() for x in lines])
        self.feed.run()

    def spec(self, kind: str, options: dict[str, Any] | None = None) -> FinalSpec:
        name = TableId(("final",), kind)
        if kind == "clicks":
            return FinalSpec(name, TableId(("staging",), "clicks"), "made_up", mode="append")
        if kind == "items":
            return FinalSpec(name, TableId(("staging",), "items"), "made_up", by_row=True)
        return FinalSpec(name, TableId(("staging",), "t"), "made_up", **(options or KEYED[kind]))

    def compare(self, kind: str, spec: FinalSpec, context: str) -> None:
        rows = self.feed.rows(str(spec.table))
        if kind == "clicks":
            assert rows_of(rows) == Counter((u,) for u in self.clicks.elements()), context
            return
        if kind == "items":
            assert rows_of(rows, ["n", "name"]) == Counter((r["n"], r["name"]) for r in self.items), context
            return
        if spec.deletes == "ignore":
            expected_rows = final_rows(self.delivered, NAMES, "ignore")
        elif spec.track:
            expected_rows = expected("versions_of_n", self.delivered)
        elif kind == "inserts":
            inserts = {(e.sequence, e.key): e for e in self.delivered if e.op == "c"}
            expected_rows = Counter((*e.key, None if "name" in e.absent else e.row["name"]) for e in inserts.values())
            assert rows_of(rows, ["h", "k", "name"]) == expected_rows, context
            return
        else:
            expected_rows = expected("hard" if kind == "parts" else kind, self.delivered)
        assert rows_of(rows, [*NAMES, *OWN.get(kind, [])]) == expected_rows, context


EVERY = [*KEYED, "clicks", "items"]


# --- killed -----------------------------------------------------------------------------------------------------


def kills(streams: Streams, points: Points, batches: list[list[Event]], kinds: list[str]) -> dict[str, set[str]]:
    """Create the tables; kill the steps of every kind at every point, and then the rebuilds."""
    choose, kill_points = random.Random(1), dict[str, set[str]]()
    for n, batch in enumerate(batches):
        streams.deliver(batch, choose)
        for kind in kinds:
            step = partial(absorb_changes, streams.lake, streams.spec(kind))
            reached = killed_everywhere(points, step) if n else [step().strategy]
            kill_points.setdefault(kind, set()).update(reached)
            streams.compare(kind, streams.spec(kind), f"after ends at {reached}")
    for kind in [k for k in kinds if k in REBUILT]:
        spec = streams.spec(kind, REBUILT[kind])
        reached = killed_everywhere(points, partial(absorb_changes, streams.lake, spec))
        kill_points[kind].update(reached)
        streams.compare(kind, spec, f"after ends at {reached} of a rebuild")
        assert absorb_changes(streams.lake, spec).status == "nothing"
    return kill_points


QUICK = ["parts", "inserts"]


def small(choose: random.Random, parts: int = 2) -> list[list[Event]]:
    return redelivered(choose, shuffled(choose, split(choose, transactions(choose, source(choose), 15, 5), parts)))


OTHERS = [k for k in EVERY if k not in QUICK[:1]]


@pytest.mark.parametrize(
    ("kinds", "by_position"),
    [
        (QUICK[:1], True),
        pytest.param(OTHERS, True, marks=pytest.mark.long),
        pytest.param(OTHERS, False, marks=pytest.mark.long),
    ],
)
def test_a_step_that_is_killed_at_any_point_is_done_again(
    lake: Lake, points: Points, kinds: list[str], by_position: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_position:
        monkeypatch.setattr(thresholds, "POSITION_VALUES", 0)
    batches = small(random.Random(7))
    if kinds == QUICK[:1]:
        batches = [[e for batch in batches[:-1] for e in batch], batches[-1]]
    kill_points = kills(Streams(lake, kinds), points, batches, kinds)
    rebuilt = {k for k, at in kill_points.items() if "after CREATE OR" in at}
    merged = {*kinds} - {"parts", "inserts", "clicks"}
    assert {k for k, at in kill_points.items() if "after publishing" in at} >= {*kinds} - merged
    assert {k for k, at in kill_points.items() if "after MERGE INTO" in at} == merged
    assert {k for k in merged if "after a file by position" in kill_points[k]} == (merged if by_position else set())
    assert rebuilt == {*REBUILT} & {*kinds}
    assert "parts" not in kinds or "after overwrite" in kill_points["parts"]


@pytest.mark.long
@pytest.mark.parametrize("history", [scattered, emptied, shifted])
def test_steps_that_are_killed_at_any_point_of_many_histories(
    new_lake: Callable[[str], Lake], points: Points, history: Callable[[random.Random], list[list[Event]]]
) -> None:
    kinds = [k for k in EVERY if k != "inserts"] if history is emptied else EVERY
    for seed in seeds(0, 1):
        kills(Streams(new_lake(f"{seed}")), points, history(random.Random(seed)), kinds)


# --- beside each other ------------------------------------------------------------------------------------------


def beside(streams: Streams, points: Points, spec: FinalSpec, at: str, meanwhile: Callable[[], Any]) -> int:
    """Run a step that waits at a point while something else happens; return the number of its attempts."""
    tries, held_up = 0, False

    def hook(point: str) -> None:
        nonlocal held_up
        if point == at and not held_up:
            held_up = True
            points.hook = None
            meanwhile()

    while True:
        points.hook = hook
        tries += 1
        try:
            absorb_changes(streams.lake, spec)
        except ConcurrentWriteError:
            continue
        finally:
            points.hook = None
        assert held_up, f"{spec.table} never came to {at}"
        return tries


COMMITS = {
    "hard": "before MERGE INTO", "soft": "before MERGE INTO", "versions": "before MERGE INTO",
    "parts": "after CREATE BRANCH", "inserts": "before append", "clicks": "before append", "items": "before MERGE INTO",
}  # fmt: skip


def together(streams: Streams, points: Points, batches: list[list[Event]], kinds: list[str]) -> None:
    choose, other = random.Random(2), Lake(streams.lake.config)
    streams.deliver(batches[0], choose)
    for kind in kinds:
        absorb_changes(streams.lake, streams.spec(kind))
    streams.deliver(batches[1], choose)
    for kind in kinds:
        spec = streams.spec(kind)
        # The same window must not be applied twice.
        beside(streams, points, spec, COMMITS[kind], lambda s=spec: absorb_changes(other, s))
        streams.compare(kind, spec, "two runs over one window")
        assert absorb_changes(streams.lake, spec).status == "nothing"
    streams.deliver(batches[2], choose)
    held: dict[str, bool] = {}
    for kind in kinds:
        # The second run has a larger window: more events arrive while the first run waits.
        spec = streams.spec(kind)

        def meanwhile(s: FinalSpec = spec) -> None:
            if not held:
                held["more"] = True
                # In a separate session: properties of a commit are session settings.
                streams.feed.lake = other
                streams.deliver(batches[3], choose)
                streams.feed.lake = streams.lake
            absorb_changes(other, s)

        beside(streams, points, spec, COMMITS[kind], meanwhile)
        streams.compare(kind, spec, "two runs, one with a larger window")
    for kind in [k for k in kinds if k in REBUILT]:
        spec = streams.spec(kind, REBUILT[kind])
        beside(streams, points, spec, "before CREATE OR", lambda s=spec: absorb_changes(other, s))
        streams.compare(kind, spec, "two rebuilds")
        assert absorb_changes(streams.lake, spec).status == "nothing"


@pytest.mark.long
@pytest.mark.parametrize("kinds", [QUICK, [k for k in EVERY if k not in QUICK]])
def test_two_runs_at_once_of_every_kind_end_in_one_table(lake: Lake, points: Points, kinds: list[str]) -> None:
    together(Streams(lake), points, small(random.Random(9), 4), kinds)


# --- other writers ----------------------------------------------------------------------------------------------


@contextmanager
def slow_merges(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """Let the source of a MERGE wait for `folder/go`; `folder/at_work` exists while it waits."""
    waiting, go = str(folder / "at_work"), str(folder / "go")

    def wait(_: int) -> bool:
        Path(waiting).touch()
        until = time.monotonic() + 60
        while not Path(go).exists():
            if time.monotonic() > until:
                raise TimeoutError(go)
            time.sleep(0.02)
        return True

    with monkeypatch.context() as patch:
        over, slow = branch_writer.over, F.udf(wait, "boolean", useArrow=False).asNondeterministic()

        def slowly(spark: SparkSession, sql: str, frames: dict[str, DataFrame], args: Any = None) -> DataFrame:
            return over(spark, sql, {name: _with_wait(rows, slow) for name, rows in frames.items()}, args)

        patch.setattr(branch_writer, "over", slowly)
        patch.setattr(thresholds, "POSITION_VALUES", 0)
        yield


def _with_wait(rows: DataFrame, slow: Any) -> DataFrame:
    # One task, so that the other queries get a core.
    return rows.coalesce(1).where(slow(F.lit(1)))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hard", pytest.param("versions", marks=pytest.mark.long)])
def test_what_another_writer_does_during_a_merge_is_kept_and_the_step_done_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    streams, choose, other = Streams(lake), random.Random(3), Lake(lake.config)
    batches = small(random.Random(4))
    spec, name = replace(streams.spec(kind), sort_by=()), f"lake.final.{kind}"
    streams.deliver(batches[0], choose)
    absorb_changes(lake, spec)
    streams.deliver(batches[1], choose)
    marks = read_marks(lake.table(str(spec.table)))
    outcomes: list[Any] = []

    def step() -> None:
        try:
            outcomes.append(absorb_changes(lake, spec))
        except BaseException as e:
            outcomes.append(e)

    for n, disturb in enumerate(
        (
            f"CALL lake.system.rewrite_data_files(table => 'final.{kind}', options => map('rewrite-all', 'true'))",
            f"UPDATE {name} SET name = concat(name, '!')",
        )
    ):
        folder = tmp_path / str(n)
        folder.mkdir()
        with slow_merges(monkeypatch, folder):
            run = threading.Thread(target=step)
            run.start()
            while not (folder / "at_work").exists() and run.is_alive():
                time.sleep(0.02)
            assert run.is_alive(), outcomes
            other.spark().sql(disturb)
            (folder / "go").touch()
            run.join(120)
        assert isinstance(outcomes[-1], ConcurrentWriteError), disturb
        assert read_marks(lake.table(str(spec.table))) == marks
    foreign = rows_of(streams.feed.rows(str(spec.table)))
    other.spark().sql(f"UPDATE {name} SET name = left(name, length(name) - 1)")
    assert foreign != rows_of(streams.feed.rows(str(spec.table)))
    assert absorb(lake, spec).status == "absorbed"
    streams.compare(kind, spec, "after a compaction and a foreign update")


@pytest.mark.long
def test_a_race_that_is_lost_again_and_again_ends_in_an_error_that_says_so(
    lake: Lake, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, choose, other = Streams(lake), random.Random(3), Lake(lake.config)
    batches = small(random.Random(4))
    spec = streams.spec("parts")
    streams.deliver(batches[0], choose)
    absorb_changes(lake, spec)
    streams.deliver(batches[1], choose)
    marks = read_marks(lake.table(str(spec.table)))
    monkeypatch.setattr(runner, "wait_random_exponential", lambda **_: lambda _: 0)
    disturbed: list[str] = []

    def hook(point: str) -> None:
        if point == "before publishing":
            points.hook = None
            disturbed.append(point)
            other.spark().sql("CALL lake.system.rewrite_data_files(table => 'final.parts', "
                              "options => map('rewrite-all', 'true'))")  # fmt: skip
            points.hook = hook

    points.hook = hook
    with pytest.raises(ConcurrentWriteError, match="another writer committed first, 4 times in a row"):
        absorb(lake, spec)
    points.hook = None
    assert len(disturbed) == runner.ATTEMPTS
    assert read_marks(lake.table(str(spec.table))) == marks
    assert absorb(lake, spec).status == "absorbed"
    streams.compare("parts", spec, "after races that were lost")

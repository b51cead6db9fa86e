"""However a batch is read, in the usual notations first or completely at once: the table and its rejects are the same."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import Observation

from lake_assets import Lake
from lake_assets.errors import LostEventsError, RejectedLimitError
from lake_assets.ingest.records import parsing
from lake_assets.ingest.staging import staging_step, staging_writes
from lake_assets.ingest.staging.staging_writes import StagingWriter, Written
from tests.support.debezium import BIGINT, TEXT, TIMESTAMP, Event, Table
from tests.support.item_stream import ITEMS, Stream
from tests.support.kills import Points, killed_everywhere
from tests.support.seeds import seeds
from tests.support.upkeep import expire

# JSON of values: usual ones, those in a rare notation, and those that do not fit.
WHOLE = (["1", "-7", "9007199254740993"], ["2e0", "2.342361e+06", "12.0"], ["1.5", "9223372036854775808", '"x"'])
DOUBLES = (["1.5", "-0.0", "1.0E300"], ["9007199254740992.0", "123456789012345678e-3", "0.10"], ["1e400", '"x"'])
TEXTS = (['"a"', '""', '"1e0"'], ['"__debezium_unavailable_value"'], ["null"])
MOMENTS = (["0", "1700000000000000"], ["17e14", "1700000000000000.0"], ['"x"', "9223372036854775807"])
COLUMNS = {"id": WHOLE, "n": WHOLE, "d": DOUBLES, "s": TEXTS, "at": MOMENTS}
TABLE = Table({"id": BIGINT, "n": BIGINT, "d": {"type": "double"}, "s": TEXT, "at": TIMESTAMP}, key=("id",), name=ITEMS)
TYPES = {"id": "bigint", "n": "bigint", "d": "double", "s": "string", "at": "timestamp"}


def debezium(op: str, place: str, row: dict[str, str]) -> str:
    """An event with its schema, as Postgres's connector writes it."""
    (record, *_) = Event(TABLE, op, (90, 100), dict.fromkeys(TABLE.columns)).records()  # type: ignore[arg-type]
    payload = record["value"]["payload"]
    payload["source"]["sequence"] = place
    for image in filter(None, (record["key"]["payload"], payload["before"], payload["after"])):
        image |= {c: f"@{c}@" for c in image if c in row and (image is not payload["before"] or c == "id")}
    text = json.dumps(record)
    for c, value in row.items():
        text = text.replace(f'"@{c}@"', value)
    return text


def simplified(op: str, place: str, row: dict[str, str]) -> str:
    """An event without types."""
    names = {"c": "insert", "r": "insert", "u": "update", "d": "delete"}
    record: dict[str, Any] = {"changeType": names[op], "timestamp": "@place@", "schema": "public", "table": "items"}
    if op != "d":
        record |= {"columnNames": list(row), "columnValues": [f"@{c}@" for c in row]}
    if op in "ud":
        record |= {"oldKeyNames": ["id"], "oldKeyValues": ["@id@"]}
    text = json.dumps(record)
    for c, value in {**row, "place": json.dumps(place)}.items():
        text = text.replace(f'"@{c}@"', value)
    return text


FORMS: dict[str, tuple[Callable[[str, str, dict[str, str]], str], dict[str, Any], tuple[list[str], ...]]] = {
    "debezium": (
        debezium,
        {"tables": [ITEMS]},
        (['["90","{}"]', '[null,"{}"]'], ['["0/5A","{}"]', '["90",{}]'], ['["{}.5"]', '["x","{}"]']),
    ),
    "simplified": (
        simplified,
        {"format": "simplified", "tables": [{"table": ITEMS, "key": "id", "types": TYPES}]},
        (["{}"], ["{}.50", "{}e0"], ["x{}"]),
    ),
}  # fmt: skip


class Batches:
    """Random events of one form, more or less of which are in rare notations or cannot be read."""

    def __init__(self, form: str, choose: random.Random) -> None:
        self.write, _, self.places = FORMS[form]
        self.choose, self.at = choose, 100
        self.odds = [(1, 0, 0), (1, 0, 0), (12, 1, 0), (12, 0, 1), (12, 1, 1), (1, 1, 1)]

    def next(self) -> list[str]:
        odds = self.choose.choice(self.odds)
        return [self._event(odds) for _ in range(self.choose.randint(1, 6))]

    def _event(self, odds: tuple[int, ...]) -> str:
        self.at += 1
        row = {c: self._one(values, odds) for c, values in COLUMNS.items()}
        row["id"] = row["id"] if self.choose.random() < 0.2 else self.choose.choice("12345")
        return self.write(self.choose.choice("cuuud"), self._one(self.places, odds).format(self.at), row)

    def _one(self, values: tuple[list[str], ...], odds: tuple[int, ...]) -> str:
        (kind,) = self.choose.choices(values, odds)
        return self.choose.choice(kind)


class Both:
    """A stream read batch by batch, and the same files read completely by another pipeline.

    Attributes:
        read: for each batch that was to be written: whether its events were read in the usual notations, and how.
    """

    def __init__(self, lake: Lake, form: str, choose: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake, self.patch, self.choose = lake, monkeypatch, choose
        self.batches = Batches(form, choose)
        self.declared = FORMS[form][1]
        self.stream = Stream(lake, **self.declared)
        self.read: list[tuple[bool, str]] = []
        for way in ("append", "merge", "replace"):
            monkeypatch.setattr(StagingWriter, way, self._told(getattr(StagingWriter, way), way))

    def _told(self, write: Callable[..., Written], way: str) -> Callable[..., Written]:
        def wrapped(writer: StagingWriter, parsed: parsing.Parsed, **options: Any) -> Written:
            self.read.append((parsed.read_completely is not None, way))
            return write(writer, parsed, **options)

        return wrapped

    def declare(self, max_rejected: int | None) -> None:
        limit = {} if max_rejected is None else {"max_rejected": max_rejected}
        self.stream.declare(**self.declared, **limit)

    def land(self) -> None:
        self.stream.land(*self.batches.next())

    def run(self, limit: int | None) -> None:
        """With more rejects than `limit` nothing is written, and the next run has none.

        A staging table that was rolled back then still lacks events of its final table, which waits for them.
        """
        self.declare(limit)
        failed = [o.exception for o in self.stream.pipeline.run(self.lake) if o.exception]
        assert all(isinstance(e, RejectedLimitError | LostEventsError) for e in failed)
        if failed:
            assert limit is not None
            self.declare(None)
            self.stream.run()

    def rows(self, table: str) -> list[str]:
        if not self.lake.exists(table):
            return []
        frame = self.lake.spark().table(self.lake.sql_name(table))
        names = sorted({*frame.columns} - {"_arrived_at"})
        return sorted(str(r) for r in frame.select(*(frame[f"`{n}`"].cast("string") for n in names)).collect())

    def rejected(self, table: str) -> list[tuple[Any, ...]]:
        if not self.lake.exists(table):
            return []
        rows = self.lake.spark().table(self.lake.sql_name(table)).collect()
        return sorted((r["position"], r["event_index"], r["reason"], r["record"]) for r in rows)

    def check(self) -> None:
        """Everything is equal to a table that is read whole and completely."""
        whole = Stream.__new__(Stream)
        whole.lake, whole.files = self.lake, 0
        whole.folder = self.stream.folder
        whole.declare(**self.declared, name="whole", namespace="whole", landing=str(self.stream.folder))
        with self.patch.context() as patch:
            patch.setattr(staging_step, "parse", _completely)
            whole.run()
        assert self.rows("staging.items") == self.rows("staging.whole.items")
        assert self.rejected("raw.events_rejected") == self.rejected("raw.whole_rejected")


def _completely(*args: Any, **options: Any) -> parsing.Parsed:
    return parsing.parse(*args, **{**options, "is_usual": False})


# --- what happens between two batches -------------------------------------------------------------------------------


def nothing(both: Both, choose: random.Random) -> None:
    """The next batch is appended."""


def rolled_back(both: Both, choose: random.Random) -> None:
    """Raw lands again what it lost, and staging has some of it."""
    _roll_back(both.lake, "raw.events", choose)


def staging_rolled_back(both: Both, choose: random.Random) -> None:
    """Several batches are read as one."""
    if both.lake.exists("staging.items"):
        _roll_back(both.lake, "staging.items", choose)


def _roll_back(lake: Lake, name: str, choose: random.Random) -> None:
    past = [s.snapshot_id for s in lake.table(name).history()]
    held = {s.snapshot_id for s in lake.table(name).snapshots()}
    lake.spark().sql(
        f"CALL lake.system.set_current_snapshot('{name}', {choose.choice([s for s in past if s in held])})"
    )


def expired(both: Both, choose: random.Random) -> None:
    """Which records are new is told by their positions."""
    both.land()
    both.stream.pipeline.run(both.lake, ["raw.events"])
    expire(both.lake, "raw.events")


def rebuilt(both: Both, choose: random.Random) -> None:
    """Every record is read again; `max_rejected` would count all of their rejects."""
    both.declare(None)
    if both.lake.exists("staging.items"):
        both.stream.pipeline.rebuild(both.lake, "staging.items")


def replayed(both: Both, choose: random.Random) -> None:
    """The rejects are read again."""
    both.stream.replay()


BETWEEN = (nothing, rolled_back, staging_rolled_back, expired, rebuilt, replayed)


@pytest.mark.long
@pytest.mark.parametrize(("form", "seed"), itertools.product(FORMS, seeds(0, 3)))
def test_a_random_history_equals_one_complete_reading(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, form: str, seed: int
) -> None:
    choose = random.Random(seed)
    both = Both(lake, form, choose, monkeypatch)
    for _ in range(6):
        both.land()
        both.run(choose.choice([None, None, 0, 1]))
        choose.choice(BETWEEN)(both, choose)
    both.run(None)
    both.check()


@pytest.mark.long
@pytest.mark.parametrize("between", [nothing, rolled_back, rebuilt])
def test_a_run_that_is_killed_at_any_point_between_its_readings_is_repeated(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, points: Points, between: Callable[[Both, random.Random], None]
) -> None:
    choose = random.Random(3)
    both = Both(lake, "debezium", choose, monkeypatch)
    for odds in ((1, 0, 0), (2, 2, 1)):
        both.batches.odds = [odds]
        both.land()
        if odds == (1, 0, 0):
            both.run(None)
    between(both, choose)
    assert killed_everywhere(points, partial(both.run, None))
    assert (True, "append") in both.read
    both.check()


class Uncounted(Observation):
    """What a Spark Connect server may report of a write: nothing."""

    @property
    def get(self) -> dict[str, Any]:
        return {}


@pytest.mark.long
def test_a_batch_whose_counts_spark_does_not_report_is_written_with_its_rejects(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_writes, "Observation", Uncounted)
    stream = Stream(lake, format="simplified", tables=[{"table": ITEMS, "types": TYPES, "key": "id"}])
    good, bad = ({"id": n, "n": value} for n, value in (("1", "1"), ("2", '"x"')))
    stream.run(simplified("c", "2026-01-01T00:00:00Z", good), simplified("c", "2026-01-01T00:00:01Z", bad))
    stream.run(simplified("c", "2026-01-01T00:00:02Z", good | {"id": "3"}))
    assert sorted(r["id"] for r in stream.rows("final.items")) == [1, 3]
    assert len(stream.rejected()) == 1

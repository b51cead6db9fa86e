"""Random dumps, absorbed one by one: the events are the exact difference, and the tables equal the source's."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.final.added_columns import FROM, TO
from lake_assets.lake import thresholds
from tests.support.dumps import DumpFeed
from tests.support.random_dumps import (
    Changes,
    Plain,
    RandomDumps,
    Versions,
    all_changes,
    differences,
    first_columns,
    plain,
)
from tests.support.seeds import any_seed, long_seeds, seeds


def land(feed: DumpFeed, source: RandomDumps, steps: int) -> None:
    """Deliver dumps, and compare what each brings to raw with the model."""
    before: Counter[Plain] = Counter()
    seen = 0
    for n in range(steps):
        feed.dump(f"{n:03}", source.step())
        feed.land()
        events = feed.events()
        after = source.counted()
        assert all_changes(events[seen:]) == differences(before, after, is_keyed=source.is_keyed), n
        before, seen = after, len(events)


@pytest.mark.parametrize("usual", [1, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("key", ["id", "*"])
def test_the_events_of_random_dumps_are_the_exact_difference(tmp_path: Path, key: str, usual: int) -> None:
    @any_seed(usual)
    def check(seed: int) -> None:
        lake = Lake(LakeConfig(home=tmp_path / str(seed)))
        source = RandomDumps(Random(seed), is_keyed=key == "id", nulls=seed % 2 == 0)
        land(DumpFeed(lake, {"key": key}), source, 5)

    check()


@pytest.mark.parametrize("key", ["id", "*"])
@pytest.mark.parametrize("seed", [0, *long_seeds(1, 5)])
def test_spark_finds_the_same_differences(lake: Lake, monkeypatch: pytest.MonkeyPatch, key: str, seed: int) -> None:
    monkeypatch.setattr(thresholds, "DUMP_LOCAL_ROWS", 0)
    land(DumpFeed(lake, {"key": key}), RandomDumps(Random(seed), is_keyed=key == "id", nulls=True), 4)


# --- downstream -------------------------------------------------------------------------------------------------------

COLUMNS = ("id", "n", "f", "s", "at", "l", "extra")
# Wider types that Iceberg's columns can become.
WIDENED = (pa.int32(), pa.int64())


def table(feed: DumpFeed, name: str, *more: str) -> list[tuple[Plain, *tuple[Any, ...]]]:
    """The rows of a table as the model has them, each with some more columns."""
    rows = feed.lake.spark().table(feed.lake.sql_name(name)).collect()
    return [
        (plain({n: value for n, value in row.asDict().items() if n in COLUMNS}), *(row[m] for m in more))
        for row in rows
    ]


def keyed(rows: Iterable[Plain]) -> Counter[Plain]:
    return Counter(row for row in rows if "id" in dict(row))


def absorb(feed: DumpFeed, source: RandomDumps, seed: int, steps: int = 6) -> Iterator[dt.datetime]:
    """Deliver dumps, one a day, and run; yield their times."""
    for n in range(steps):
        at = dt.datetime(2026, 11, 1) + dt.timedelta(days=n)  # noqa: DTZ001
        feed.deliver(f"{at:%Y-%m-%d}", source.step())
        yield at


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 8)])
def test_a_final_table_equals_the_source_after_each_dump(lake: Lake, seed: int) -> None:
    source = RandomDumps(Random(seed), nulls=seed % 2 == 1, columns=first_columns(WIDENED))
    feed, before = DumpFeed(lake), Counter[Plain]()
    seen = 0
    for _ in absorb(feed, source, seed):
        after = keyed(map(plain, source.rows))
        if not lake.exists("final.t"):
            assert not after
            continue
        assert Counter(row for (row,) in table(feed, "final.t")) == after
        events = sorted(table(feed, "staging.t", "_op", "_position"), key=lambda e: e[2])
        found = Counter((op, row) for row, op, _ in events[seen:])
        assert found == staged(differences(before, after, is_keyed=True))
        before, seen = after, len(events)


def staged(changes: Changes) -> Changes:
    """The events of staging: an old row is a delete before an update."""
    ops = {"update_preimage": "delete", "update_postimage": "update"}
    found: Changes = Counter()
    for (kind, row), n in changes.items():
        found[ops.get(kind, kind), row] += n
    return found


@pytest.mark.long  # a table with a key, and the events of all kinds, are in every run
@pytest.mark.parametrize("seed", seeds(0, 9))
def test_versions_follow_the_dumps(lake: Lake, seed: int) -> None:
    source = RandomDumps(Random(seed), columns=first_columns(WIDENED))
    feed, versions = DumpFeed(lake, {"mode": "scd2"}), Versions()
    for at in absorb(feed, source, seed):
        versions.absorb(map(plain, source.rows), at)
    found = Counter(table(feed, "final.t", FROM, TO))
    assert found == versions.all(dt.datetime(9999, 12, 31))  # noqa: DTZ001
    assert feed.pipeline.pending(lake) == []


@pytest.mark.long  # a table with a key, and the events of all kinds, are in every run
@pytest.mark.parametrize("seed", seeds(0, 9))
def test_a_table_without_a_key_equals_the_source_after_each_dump(lake: Lake, seed: int) -> None:
    source = RandomDumps(Random(seed), is_keyed=False, nulls=True, columns=first_columns(WIDENED))
    feed = DumpFeed(lake, {"key": "*"})
    for _ in absorb(feed, source, seed):
        found = table(feed, "final.t") if lake.exists("final.t") else []
        assert Counter(row for (row,) in found) == source.counted()

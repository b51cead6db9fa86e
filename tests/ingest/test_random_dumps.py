"""Random dumps, absorbed one by one: the events are the exact difference, and the tables equal the source's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.lake import thresholds
from tests.support.dumps import DumpFeed
from tests.support.random_dumps import Plain, RandomDumps, all_changes, differences
from tests.support.seeds import any_seed, long_seeds


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


@pytest.mark.parametrize("key", ["id", "*"])
def test_the_events_of_random_dumps_are_the_exact_difference(tmp_path: Path, key: str) -> None:
    @any_seed(3)
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

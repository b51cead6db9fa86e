"""Stored versions that have become equal to their neighbours, compared with plain Python."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from lake_assets import Lake
from lake_assets.final.modes.adjacent_versions import merge_equal_versions
from tests.support.oracle import rows_of

Version = tuple[int, int, str | None, str, int]
OPEN = 99


def versions(choose: random.Random, key: int) -> list[Version]:
    """Versions of a key as `(begins, key, tracked, other, ends)`, with gaps where the row did not exist."""
    times = sorted(choose.sample(range(20), choose.randint(1, 6)))
    rows = [
        (begins, key, choose.choice(["a", "b", None]), choose.choice("xyz"), ends)
        for begins, ends in pairwise([*times, OPEN])
    ]
    return [v for v in rows if choose.random() < 0.8]


def as_one(rows: list[Version]) -> list[Version]:
    """Merge adjacent versions with equal tracked columns; the last value of the other column counts."""
    merged: list[Version] = []
    for begins, key, tracked, other, ends in rows:
        if merged and merged[-1][4] == begins and merged[-1][2] == tracked:
            begins = merged.pop()[0]
        merged.append((begins, key, tracked, other, ends))
    return merged


@pytest.mark.spark
def test_neighbours_that_do_not_differ_are_one_version(lake: Lake) -> None:
    choose = random.Random(5)
    stored = [versions(choose, key) for key in range(60)]
    values = ", ".join(
        f"({b}, {k}, {'NULL' if t is None else repr(t)}, {o!r}, {e})" for history in stored for b, k, t, o, e in history
    )
    rows = f"SELECT * FROM VALUES {values} AS v (`from`, `the key`, `a b`, other, `to`)"
    columns = ["from", "the key", "a b", "other", "to"]
    sql = merge_equal_versions(rows, ["the key"], columns, ["a b"], "from", "to")
    expected = [v for history in stored for v in as_one(history)]
    assert len(expected) < sum(map(len, stored))
    assert rows_of(lake.spark().sql(sql)) == Counter(expected)

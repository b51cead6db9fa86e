"""Stored versions that have become the same as their neighbours, against plain Python."""

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
    """Versions of a key as `(begins, key, tracked, other, ends)`, with gaps where the row was away."""
    times = sorted(choose.sample(range(20), choose.randint(1, 6)))
    made = [
        (begins, key, choose.choice(["a", "b", None]), choose.choice("xyz"), ends)
        for begins, ends in pairwise([*times, OPEN])
    ]
    return [v for v in made if choose.random() < 0.8]


def as_one(found: list[Version]) -> list[Version]:
    """The same, neighbours merged that touch and do not differ in the tracked column; the other one's last value counts."""
    left: list[Version] = []
    for begins, key, tracked, other, ends in found:
        if left and left[-1][4] == begins and left[-1][2] == tracked:
            begins = left.pop()[0]
        left.append((begins, key, tracked, other, ends))
    return left


@pytest.mark.spark
def test_neighbours_that_do_not_differ_are_one_version(lake: Lake) -> None:
    choose = random.Random(5)
    stored = [versions(choose, key) for key in range(60)]
    values = ", ".join(
        f"({b}, {k}, {'NULL' if t is None else repr(t)}, {o!r}, {e})" for found in stored for b, k, t, o, e in found
    )
    rows = f"SELECT * FROM VALUES {values} AS v (`from`, `the key`, `a b`, other, `to`)"
    columns = ["from", "the key", "a b", "other", "to"]
    sql = merge_equal_versions(rows, ["the key"], columns, ["a b"], "from", "to")
    expected = [v for found in stored for v in as_one(found)]
    assert len(expected) < sum(map(len, stored))
    assert rows_of(lake.spark().sql(sql)) == Counter(expected)

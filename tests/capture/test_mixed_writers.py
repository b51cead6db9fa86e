"""Tables that PyIceberg and Spark change in turn: a feed leads from start to end with no other changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lake_assets import Lake
from tests.support.capture_oracle import assert_upserts, bag, changes, upserts_of
from tests.support.mixed_history import MixedHistory
from tests.support.seeds import seeds


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_mixed_writers(lake: Lake, namespace: str, seed: int) -> None:
    run(lake, namespace, seed, 4, windows=2)


@pytest.mark.long
def test_long_mixed_writers(lake: Lake, namespace: str) -> None:
    for seed in seeds(100, 4):
        run(lake, namespace, seed, 7, windows=5)
        lake.spark().sql(f"DROP TABLE {lake.sql_name(f'{namespace}.m{seed}')}")
        print(f"round {seed} holds", flush=True)


def run(lake: Lake, namespace: str, seed: int, steps: int, windows: int) -> None:
    history = MixedHistory(lake, f"{namespace}.m{seed}", seed)
    history.steps(steps)
    assert history.refused < steps, history.done
    order = list(history.contents)
    current = lake.table(history.table).metadata.current_snapshot_id
    try:
        check(history, order[1], current)
        for _ in range(windows - 1):
            at = sorted(history.random.sample(range(len(order)), 2))
            check(history, order[at[0]], order[at[1]])
    except Exception as e:
        raise AssertionError(f"seed {seed}:\n" + "\n".join(history.done)) from e


def check(history: MixedHistory, start: int | None, end: int | None) -> None:
    spark, keys = history.lake.spark(), history.random.choice([None, None, ["id"], ["id", "g"], ["x"]])
    with history.lake.capture(history.table, start, end) as capture:
        before, after = contents(history, start, capture.schema), contents(history, end, capture.schema)
        away, added = changes(capture.feed(spark, keys))
        assert not away - before, "rows were taken away that are not there"
        assert before - away + added == after
        if keys or not all(part.has_lineage for part in capture._parts):
            assert (away, added) == (before - after, after - before)
        assert_upserts(capture, upserts_of(capture, spark), added, before & after)
        at = capture.columns.index("id")
        assert set(bag(capture.keys(spark, ["id"]).collect())) >= {(row[at],) for row in away | added}
        net = Counter(before)
        for *row, sign in capture.signed(spark).collect():
            (key,) = bag([row])
            net[key] += sign
        assert {k: n for k, n in net.items() if n} == {k: n for k, n in after.items() if n}


def contents(history: MixedHistory, snapshot: int | None, schema: Any) -> Counter[Any]:
    """Return the rows of a snapshot in the columns of `schema`."""
    ids = [f.field_id for f in schema.fields]
    return bag([row.get(i) for i in ids] for row in history.contents[snapshot])

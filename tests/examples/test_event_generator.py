"""The generator: the same events for the same seed, the shares asked for, rows that follow from the events."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.errors import ConfigError
from lake_assets.examples.event_generator import COLUMNS, KEY, TOASTED, Source, Workload, delivered
from lake_assets.examples.stream_writers import ENCODERS, encoder
from lake_assets.formats.event_model import DELETE, INSERT, UPDATE
from tests.support.generated_rows import replay

PLAIN = Workload(seed=1, events=3_000, keys=200)


def changes(workload: Workload) -> list[Any]:
    return [c for t in Source(workload) for c in t.changes]


def test_the_same_seed_gives_the_same_lines() -> None:
    def lines(seed: int) -> list[str]:
        workload = replace(PLAIN, seed=seed, events=200, late=0.2, duplicates=0.2)
        return [x for t in delivered(workload, Source(workload)) for x in ENCODERS["wal2json-v2"](t, workload)]

    assert lines(5) == lines(5)
    assert lines(5) != lines(6)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Workload,
        seed=st.integers(0, 10**6), events=st.integers(0, 300), keys=st.integers(1, 30),
        distribution=st.sampled_from(["uniform", "zipf"]), inserts=st.floats(0.1, 1), updates=st.floats(0, 1),
        deletes=st.floats(0, 1), key_changes=st.floats(0, 1), unchanged=st.floats(0, 1), nulls=st.floats(0, 1),
        transaction=st.integers(1, 20), late=st.floats(0, 1), lateness=st.integers(1, 30),
        duplicates=st.floats(0, 1), schema_changes=st.integers(0, 9),
    )
)  # fmt: skip
def test_the_rows_follow_from_the_events_however_they_are_delivered(workload: Workload) -> None:
    source = Source(workload)
    arrived = list(delivered(workload, source))
    known = [{n: v for n, v in row.items() if n in COLUMNS} for row in replay(arrived).values()]
    held = [{n: v for n, v in row.items() if n in COLUMNS} for row in source.rows.values()]
    assert sorted(known, key=lambda r: r[KEY]) == sorted(held, key=lambda r: r[KEY])
    assert sum(len(t.changes) for t in {t.commit: t for t in arrived}.values()) == workload.events
    assert len(source.rows) <= workload.keys


def test_a_change_is_of_a_row_as_it_was() -> None:
    rows: dict[int, Any] = {}
    for change in changes(replace(PLAIN, key_changes=0.3, unchanged=0.3)):
        if change.before is not None:
            assert rows.pop(change.before[KEY]) == change.before
        if change.after is not None:
            assert change.after[KEY] not in rows
            rows[change.after[KEY]] = change.after


def test_shares_are_those_that_were_asked_for() -> None:
    spec = replace(PLAIN, inserts=0.2, updates=0.7, deletes=0.1, key_changes=0.5, unchanged=0.5, nulls=0.3, keys=2_000)
    made = changes(spec)
    ops = Counter(c.op for c in made)
    assert ops[UPDATE] / len(made) == pytest.approx(0.7, abs=0.05)
    assert ops[DELETE] / len(made) == pytest.approx(0.1, abs=0.03)
    updates = [c for c in made if c.op == UPDATE]
    assert sum(c.before[KEY] != c.after[KEY] for c in updates) / len(updates) == pytest.approx(0.5, abs=0.05)
    assert all(c.absent <= {TOASTED} for c in made)
    assert any(c.absent for c in made)
    values = [v for c in made if c.op == INSERT for n, v in c.after.items() if n != KEY]
    assert sum(v is None for v in values) / len(values) == pytest.approx(0.3, abs=0.05)


def test_zipf_prefers_few_rows() -> None:
    def share_of_top(distribution: Any) -> float:
        spec = replace(PLAIN, distribution=distribution, deletes=0.0)
        touched = Counter(c.before[KEY] for c in changes(spec) if c.before)
        return sum(n for _, n in touched.most_common(10)) / touched.total()

    assert share_of_top("zipf") > 2 * share_of_top("uniform")


def test_the_table_is_altered_as_often_as_asked() -> None:
    made = changes(replace(PLAIN, schema_changes=5))
    assert len(list(itertools.groupby(made, key=lambda c: tuple(c.columns.items())))) == 6


def test_late_means_later_and_duplicates_mean_twice() -> None:
    spec = replace(PLAIN, late=0.2, lateness=5, duplicates=0.1)
    commits = [t.commit for t in delivered(spec, Source(spec))]
    assert commits != sorted(commits)
    assert len(commits) / len(set(commits)) == pytest.approx(1.1, abs=0.03)
    place = {c: i for i, c in enumerate(sorted(set(commits)))}
    assert max(abs(place[c] - i / 1.1) for i, c in enumerate(commits)) < 100


@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_events() -> None:
    workload = replace(PLAIN, events=6_000, keys=50, late=0.1, duplicates=0.1)
    tracemalloc.start()
    written = sum(
        len(line) for t in delivered(workload, Source(workload)) for line in ENCODERS["debezium"](t, workload)
    )
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert highest < 0.05 * written


@pytest.mark.parametrize(
    "wrong", [{"late": 1.5}, {"keys": 0}, {"inserts": -1}, {"inserts": 0, "updates": 0, "deletes": 0}]
)
def test_a_workload_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Workload(**wrong)


def test_an_unknown_format_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'avro'.*debezium"):
        encoder("avro")

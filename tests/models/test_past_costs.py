"""Costs of past steps, without Spark."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.lake import thresholds
from lake_assets.models.steps import cost_estimate
from lake_assets.models.steps.cost_estimate import COST, Cost, Estimate, past_costs


def test_a_step_during_which_the_clock_was_set_back_has_no_cost(plain_lake: Lake) -> None:
    rows = pa.table({"n": pa.array([1], pa.int64())})
    plain_lake.ensure_namespace(("agg",))
    plain_lake.catalog.create_table("agg.t", rows.schema)
    for began in (time.time() - 60, time.time() + 3_600):
        cost = json.dumps({"strategy": "keys", "changed": 10, "rows": 100, "began": began})
        plain_lake.table("agg.t").append(rows, snapshot_properties={COST: cost})
    (past,) = past_costs(plain_lake.table("agg.t"))
    assert 60 <= past.seconds < 600


@pytest.mark.parametrize(
    ("compared", "operators", "stored", "is_full"),
    [
        (2_000_000, 0, 100, True),  # one file, rewritten; a total by a few groups
        (2_000_000, 0, 1_000_000, True),  # a projection: writing its rows again is cheaper still
        (1_000_000, 0, 1_000_000, False),  # which two models would compare together
        (2_000_000, 2, 100, False),  # joins
        (200_000, 0, 100, False),  # one file of ten
        (0, 0, 100, False),
    ],
)
def test_rewritten_files_are_compared_unless_computing_everything_is_cheaper(
    compared: int, operators: int, stored: int, *, is_full: bool
) -> None:
    expected = Estimate(1_000_000, 1_000_000, False, 0.25, compared=compared, stored=stored, operators=operators)
    assert bool(expected.reason_not_to_compare) == is_full
    assert not replace(expected, declared=True).reason_not_to_compare
    assert not replace(expected, rows=10_000).reason_not_to_compare


def test_few_rows_are_computed_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 410)
    expected = Estimate(1, 60, True, 0.25, stored=40, operators=1)
    assert expected.is_small
    assert expected.prefers_full
    assert str(expected) == "few rows: 60 in its sources, 40 in the table"
    assert not replace(expected, stored=41).prefers_full
    assert not replace(expected, operators=2).prefers_full
    assert not replace(expected, declared=True).prefers_full
    assert not replace(expected, slow=True).prefers_full


@pytest.mark.parametrize(
    ("seconds", "is_small"),
    [
        ([], True),
        ([9.0], True),  # the first run of a process
        ([9.0, 1.0], True),
        ([9.0, 2.0], False),
    ],
)
def test_few_rows_are_absorbed_by_change_where_a_recompute_has_taken_long(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], *, is_small: bool
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 100)
    past = [Cost("keys", 1, 60, 0.1), *(Cost("full", 1, 60, s) for s in seconds)]
    assert cost_estimate.estimate("keys", {}, {}, {}, past).is_small == is_small


@pytest.mark.parametrize(
    ("past", "is_full"),
    [
        ([], False),  # nothing is known
        ([("made", 0.5)], True),  # in less time than a step over four operators is assumed to take
        ([("made", 1.6)], False),
        ([("keys", 0.4), ("made", 0.5)], False),
        ([("keys", 0.4), ("keys", 2.0), ("made", 0.5)], False),  # the first step of a process was slow
        ([("keys", 2.0), ("made", 0.5)], True),
        ([("keys", 0.9), ("made", 0.5)], False),  # less than to compare the rows as well
        ([("keys", 1.0), ("compared", 0.9)], True),
        ([("keys", 2.0), ("compared", 3.0), ("made", 0.5)], False),  # the last one counts
    ],
)
def test_medium_numbers_of_rows_are_computed_in_full_where_that_takes_less(
    monkeypatch: pytest.MonkeyPatch, past: list[tuple[str, float]], *, is_full: bool
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 1_000_000)
    costs = [Cost("keys" if how == "keys" else "full", 10, 300_000, s, how == "compared") for how, s in past]
    last_full, absorbed = cost_estimate.last_seconds("keys", 10, 300_000, 10_000, costs)
    expected = Estimate(10, 300_000, True, 0.1, stored=10_000, operators=4, last_full=last_full, absorbed=absorbed)
    assert not expected.has_few_rows
    assert (expected.is_small, expected.prefers_full) == (is_full, is_full)
    assert not replace(expected, declared=True).is_small
    assert not replace(expected, rows=3_000_000).is_small
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 0)
    assert not expected.is_small


def test_comparing_takes_longer_with_each_stored_row() -> None:
    made = [Cost("full", 10, 300_000, 0.5)]
    assert [cost_estimate.last_seconds("keys", 10, 300_000, n, made)[0] for n in (0, 100_000)] == [0.8, 1.8]
    assert cost_estimate.last_seconds("keys", 10, 600_000, 0, made)[0] == 1.3


def test_the_last_recompute_is_known_however_many_steps_came_after_it(plain_lake: Lake) -> None:
    rows = pa.table({"n": pa.array([1], pa.int64())})
    plain_lake.ensure_namespace(("agg",))
    plain_lake.catalog.create_table("agg.t", rows.schema)
    for strategy in ("full", "full", "keys", "keys", "keys"):
        cost = json.dumps({"strategy": strategy, "changed": 10, "rows": 100, "began": time.time() - 60})
        plain_lake.table("agg.t").append(rows, snapshot_properties={COST: cost})
    assert [c.strategy for c in past_costs(plain_lake.table("agg.t"), most=2)] == ["keys", "keys", "full"]
    assert [c.strategy for c in past_costs(plain_lake.table("agg.t"), most=9)] == ["keys"] * 3 + ["full"] * 2


@pytest.mark.parametrize(
    ("kind", "is_full"), [(pa.int64(), True), (pa.float64(), False), (pa.map_(pa.string(), pa.int64()), False)]
)
def test_tables_whose_rows_cannot_be_told_apart_are_absorbed_by_change(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, *, is_full: bool
) -> None:
    monkeypatch.setattr(thresholds, "FULL_UP_TO_COST", 1)
    plain_lake.ensure_namespace(("agg",))
    target = plain_lake.catalog.create_table("agg.t", pa.schema([("n", kind)]))
    past = [Cost("keys", 1, 60, 2.0), Cost("full", 1, 60, 0.5)]
    expected = cost_estimate.estimate("keys", {}, {}, {}, past, target=target)
    assert (expected.is_quick_in_full, expected.last_full is not None) == (is_full, is_full)

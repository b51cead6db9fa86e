"""Decisions of the capture sensor, as tables of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lake_assets.orchestration.runs.run_retries import (
    LONGEST_WAIT_SECONDS,
    MAX_ATTEMPTS,
    PastRun,
    Tries,
    Work,
    decide,
    plan_id,
    run_key,
    seconds_to_wait,
    shortened,
    tries,
    wait_after,
    with_downstream,
)

SOURCES = {
    "raw.e": [],
    "raw.other": [],
    "staging.a": ["raw.e"],
    "staging.b": ["raw.e"],
    "final.a": ["staging.a"],
    "final.b": ["staging.b"],
    "agg.ab": ["final.a", "final.b"],
    "agg.out": ["elsewhere.t"],
}


@pytest.mark.parametrize(
    ("pending", "expected"),
    [
        ([], []),
        (["raw.other"], ["raw.other"]),
        (["raw.e"], ["raw.e", "staging.a", "staging.b", "final.a", "final.b", "agg.ab"]),
        (["staging.b"], ["staging.b", "final.b", "agg.ab"]),
        (["agg.ab"], ["agg.ab"]),
        (["final.a", "agg.out"], ["final.a", "agg.ab", "agg.out"]),
    ],
)
def test_pending_tables_are_requested_with_everything_downstream(pending: list[str], expected: list[str]) -> None:
    assert with_downstream(pending, SOURCES) == expected


@pytest.mark.parametrize(
    ("pending", "collecting", "expected"),
    [
        (["raw.e"], ["final.a"], ["raw.e", "staging.a", "staging.b", "final.b", "agg.ab"]),
        (["raw.e"], ["final.a", "final.b"], ["raw.e", "staging.a", "staging.b"]),
        (["raw.e", "final.a"], ["final.a"], ["raw.e", "staging.a", "staging.b", "final.a", "final.b", "agg.ab"]),
        (["staging.a"], ["agg.ab"], ["staging.a", "final.a"]),
        (["agg.ab"], ["agg.ab"], ["agg.ab"]),
    ],
)
def test_collecting_tables_are_requested_once_they_are_due(
    pending: list[str], collecting: list[str], expected: list[str]
) -> None:
    assert with_downstream(pending, SOURCES, collecting) == expected


A, B = Work("final.a", "final__a", "aaaa"), Work("final.b", "final__b", "bbbb")


def run(
    *fingerprints: str, failed: tuple[str, ...] = (), succeeded: bool = False, ended: float = 0.0, run_id: str = "r"
) -> PastRun:
    return PastRun(run_id, frozenset(fingerprints), frozenset(failed), succeeded, ended)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], 0),
        ([run("bbbb", failed=("final__b",))], 0),
        ([run("aaaa", failed=("final__a",))], 1),
        # Only the other table failed: this one was skipped or never reached.
        ([run("aaaa", "bbbb", failed=("final__b",))], 0),
        # Killed before any step could fail.
        ([run("aaaa", "bbbb")], 1),
        # Succeeded without advancing the window: it must not run in a loop.
        ([run("aaaa", succeeded=True)], 1),
        ([run("aaaa", failed=("final__a",)), run("aaaa", failed=("final__a", "final__b"))], 2),
    ],
)
def test_an_attempt_is_a_run_that_reached_the_table_with_this_window(runs: list[PastRun], expected: int) -> None:
    assert tries(A, runs).count == expected


def failures(count: int, last_ended: float = 0.0) -> list[PastRun]:
    return [run("aaaa", failed=("final__a",), ended=last_ended - i, run_id=f"run{i}") for i in range(count)]


@pytest.mark.parametrize(
    ("count", "passed", "expected"),
    [
        (0, 0, "due"),
        (1, 0, "waiting"),
        (1, 29, "waiting"),
        (1, 30, "due"),
        (2, 119, "waiting"),
        (2, 120, "due"),
        (MAX_ATTEMPTS - 1, LONGEST_WAIT_SECONDS, "due"),
        (MAX_ATTEMPTS, 10 * LONGEST_WAIT_SECONDS, "given up"),
    ],
)
def test_a_failed_table_waits_longer_each_time_and_is_given_up(count: int, passed: float, expected: str) -> None:
    decision = decide([A], failures(count, last_ended=1000.0), now=1000.0 + passed)
    assert {
        "due": A in decision.due,
        "waiting": A.table in decision.waiting,
        "given up": A.table in decision.given_up,
    } == {state: state == expected for state in ("due", "waiting", "given up")}


@pytest.mark.parametrize(("ahead", "expected"), [(0, 30), (20, 50), (30, 60), (31, 0), (86_400, 0)])
def test_the_end_of_a_run_in_the_future_means_that_the_clock_was_set_back(ahead: float, expected: float) -> None:
    assert seconds_to_wait(Tries(1, "r", last_ended=1000 + ahead), now=1000) == expected


def test_the_newest_run_counts_whatever_the_clocks_show() -> None:
    runs = [run("aaaa", failed=("final__a",), ended=10.0, run_id="new"), run("aaaa", ended=99.0, run_id="old")]
    assert (tries(A, runs).last_run, tries(A, runs).last_ended) == ("new", 10.0)


def test_a_broken_table_does_not_delay_the_others() -> None:
    assert decide([A, B], failures(MAX_ATTEMPTS), now=0.0).due == (B,)


def test_the_last_run_is_named_when_a_table_is_given_up() -> None:
    assert decide([A], failures(MAX_ATTEMPTS), now=0.0).given_up["final.a"].last_run == "run0"


def test_attempts_at_an_advanced_window_are_counted_from_zero() -> None:
    advanced = Work(A.table, A.step, "a2a2")
    assert decide([advanced], failures(MAX_ATTEMPTS), now=0.0).due == (advanced,)


def test_a_run_with_other_assets_waits_for_a_reload_and_is_no_attempt() -> None:
    outdated = replace(run("aaaa", ended=50.0, run_id="new"), succeeded=False, is_outdated=True)
    runs = [outdated, *failures(1, last_ended=10.0)]
    assert decide([A, B], runs, now=60.0, loaded=20.0).outdated == {A.table: "new"}
    assert decide([A, B], runs, now=60.0, loaded=20.0).due == (B,)
    reloaded = decide([A], runs, now=60.0, loaded=55.0)
    assert (reloaded.due, reloaded.outdated) == ((A,), {})
    assert tries(A, runs).count == 1


def test_waits_grow_up_to_a_limit() -> None:
    waits = [wait_after(n) for n in range(8)]
    assert waits == sorted(waits)
    assert waits[0] == 0
    assert waits[-1] == LONGEST_WAIT_SECONDS


def test_a_plan_is_its_windows_in_any_order() -> None:
    assert plan_id([A, B]) == plan_id([B, A])
    assert plan_id([A]) != plan_id([A, B])


def test_attempts_at_one_plan_have_different_run_keys() -> None:
    keys = {run_key("shop", plan_id([A]), attempt) for attempt in (1, 2, 3)}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("items", "expected"),
    [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a" * 9, "b", "c"], "a" * 9 + " and 2 more")],
)
def test_long_lists_are_shortened_with_a_count(items: list[str], expected: str) -> None:
    assert shortened(items, limit=10) == expected

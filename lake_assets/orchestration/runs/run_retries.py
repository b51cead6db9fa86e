"""Decisions of the capture sensor: pure functions over plain values.

Dagster runs each run key once. A key without the attempt would never retry a failed run; a new key per tick would run a
broken table in a loop. So the key contains the number of the attempt. Attempts are counted per table and window, with
increasing delays up to a limit. When the window changes, counting starts over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_ATTEMPTS = 5
FIRST_WAIT_SECONDS = 30
LONGEST_WAIT_SECONDS = 1800


@dataclass(frozen=True)
class Work:
    """One table with something to absorb.

    Attributes:
        table: `namespace.name`.
        step: the step that absorbs it.
        fingerprint: short hash of the declaration and the windows.
        what: the windows as text.
    """

    table: str
    step: str
    fingerprint: str
    what: str = ""


@dataclass(frozen=True)
class PastRun:
    """A finished run of the pipeline.

    Attributes:
        fingerprints: fingerprints of the requested work.
        failed_steps: steps that failed; empty if the run failed before any step.
        ended: seconds since 1970.
        is_outdated: whether its process had other assets than the code location that requested it.
    """

    run_id: str
    fingerprints: frozenset[str]
    failed_steps: frozenset[str]
    succeeded: bool
    ended: float
    is_outdated: bool = False


@dataclass(frozen=True)
class Tries:
    """Number of unsuccessful attempts at a table's window."""

    count: int
    last_run: str = ""
    last_ended: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What to do with the pending tables.

    Attributes:
        due: tables to request now.
        waiting: the remaining seconds of tables that wait.
        given_up: tables that have failed too often.
        outdated: tables that wait for a reload of the code location, each with the run that had no asset for it.
    """

    due: tuple[Work, ...]
    waiting: Mapping[str, float]
    given_up: Mapping[str, Tries]
    outdated: Mapping[str, str]


def fingerprint(*parts: object) -> str:
    """Return a short hash of values by their text."""
    return hashlib.sha256("\x00".join(str(p) for p in parts).encode()).hexdigest()[:8]


def tries(work: Work, runs: Sequence[PastRun]) -> Tries:
    """Count the finished runs that attempted this window of the table, which is still pending.

    A run in which only other steps failed is not an attempt: it skipped or never reached this step. A run that
    succeeded without advancing the window is one, so a step without effect cannot run in a loop.

    Args:
        work: the pending work of the table.
        runs: finished runs, newest first. The order counts, not the times: a clock may be set back.
    """
    attempts = [r for r in runs if work.fingerprint in r.fingerprints and not r.is_outdated and _reached(work, r)]
    if not attempts:
        return Tries(0)
    last = attempts[0]
    return Tries(len(attempts), last.run_id, last.ended)


def _reached(work: Work, run: PastRun) -> bool:
    return run.succeeded or not run.failed_steps or work.step in run.failed_steps


def wait_after(count: int) -> float:
    """Return the delay in seconds after `count` attempts."""
    return min(FIRST_WAIT_SECONDS * 4.0 ** (count - 1), LONGEST_WAIT_SECONDS) if count else 0.0


def seconds_to_wait(attempts: Tries, now: float) -> float:
    """Return the seconds until a failed table is retried."""
    wait = wait_after(attempts.count)
    remaining = attempts.last_ended + wait - now
    # If the run ended far in the future, the clock was set back since.
    return remaining if remaining <= 2 * wait else 0.0


def decide(works: Sequence[Work], runs: Sequence[PastRun], now: float, loaded: float = 0.0) -> Decision:
    """Decide which of the pending tables are due.

    Args:
        works: the pending tables.
        runs: finished runs, newest first.
        now: the time, in seconds since 1970.
        loaded: when the code location was loaded. A run of older definitions says nothing about it; one that had other
            assets since would fail again.
    """
    due: list[Work] = []
    waiting: dict[str, float] = {}
    given_up: dict[str, Tries] = {}
    outdated: dict[str, str] = {}
    for work in works:
        attempts = tries(work, runs)
        remaining = seconds_to_wait(attempts, now)
        last = next((r for r in runs if work.fingerprint in r.fingerprints), None)
        if last and last.is_outdated and last.ended > loaded:
            outdated[work.table] = last.run_id
        elif attempts.count >= MAX_ATTEMPTS:
            given_up[work.table] = attempts
        elif attempts.count and remaining > 0:
            waiting[work.table] = remaining
        else:
            due.append(work)
    return Decision(tuple(due), waiting, given_up, outdated)


def with_downstream(
    tables: Collection[str], sources: Mapping[str, Sequence[str]], collecting: Collection[str] = ()
) -> list[str]:
    """Return `tables` and everything downstream of them, in the order of `sources`.

    Args:
        tables: tables to run.
        sources: by table of the pipeline, upstream first, its sources.
        collecting: tables that wait for a full batch: they are included only if they are in `tables`.
    """
    selected = set(tables)
    for table, upstream in sources.items():
        if table not in collecting and selected.intersection(upstream):
            selected.add(table)
    return [t for t in sources if t in selected]


def plan_id(works: Iterable[Work]) -> str:
    """Return an id that is equal for equal windows of equal tables."""
    return fingerprint(*sorted(w.fingerprint for w in works))


def run_key(pipeline: str, plan: str, attempt: int) -> str:
    """Return the run key: it prevents launching one request twice, but allows another attempt."""
    return f"{pipeline}:{plan}:{attempt}"


def shortened(items: Sequence[str], limit: int = 160) -> str:
    """Join items in one line; items that do not fit are counted."""
    line = ""
    for i, item in enumerate(items):
        longer = f"{line}, {item}" if line else item
        if line and len(longer) > limit:
            return f"{line} and {len(items) - i} more"
        line = longer
    return line

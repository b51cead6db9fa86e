"""What the capture sensor asks for: plain functions over plain values, tested by tables of cases.

A failed run blocks its run key for ever, and a run key that is not repeated makes a broken table run in a loop. So the
key holds the attempt, attempts are counted a table and window, wait longer each time, and end; a window that moves on
starts anew.
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
        fingerprint: short and the same as long as declaration and windows are the same.
        what: the windows, for people.
    """

    table: str
    step: str
    fingerprint: str
    what: str = ""


@dataclass(frozen=True)
class PastRun:
    """A run of the pipeline that is over.

    Attributes:
        fingerprints: what it was asked to absorb.
        failed_steps: steps that failed; empty where it did not get that far.
        ended: seconds since 1970.
    """

    run_id: str
    fingerprints: frozenset[str]
    failed_steps: frozenset[str]
    succeeded: bool
    ended: float


@dataclass(frozen=True)
class Tries:
    """How often a table's window has been tried in vain."""

    count: int
    last_run: str = ""
    last_ended: float = 0.0


@dataclass(frozen=True)
class Decision:
    """What is asked for now, what waits (with the seconds left), and what was given up."""

    due: tuple[Work, ...]
    waiting: Mapping[str, float]
    given_up: Mapping[str, Tries]


def fingerprint(*parts: object) -> str:
    """A short fingerprint of values by their text."""
    return hashlib.sha256("\x00".join(str(p) for p in parts).encode()).hexdigest()[:8]


def tries(work: Work, runs: Sequence[PastRun]) -> Tries:
    """How often finished runs have tried this very window of the table, and it is still pending.

    A run in which only other steps failed skipped this one or never came to it: that is no try of this table. A run
    that succeeded and left the window where it was is one, so that a step without effect cannot run in a loop.

    Args:
        work: the table's.
        runs: the newest first: by their order, since a clock may be set back.
    """
    tried = [r for r in runs if work.fingerprint in r.fingerprints and _reached(work, r)]
    if not tried:
        return Tries(0)
    last = tried[0]
    return Tries(len(tried), last.run_id, last.ended)


def _reached(work: Work, run: PastRun) -> bool:
    return run.succeeded or not run.failed_steps or work.step in run.failed_steps


def wait_after(count: int) -> float:
    """Seconds to wait after so many tries."""
    return min(FIRST_WAIT_SECONDS * 4.0 ** (count - 1), LONGEST_WAIT_SECONDS) if count else 0.0


def seconds_to_wait(tried: Tries, now: float) -> float:
    """How long a table that was tried in vain waits still."""
    wait = wait_after(tried.count)
    left = tried.last_ended + wait - now
    # A run that ended far in the future ended before the clock was set back.
    return left if left <= 2 * wait else 0.0


def decide(works: Sequence[Work], runs: Sequence[PastRun], now: float) -> Decision:
    """Which of the pending tables are due at `now` (seconds since 1970)."""
    due: list[Work] = []
    waiting: dict[str, float] = {}
    given_up: dict[str, Tries] = {}
    for work in works:
        tried = tries(work, runs)
        left = seconds_to_wait(tried, now)
        if tried.count >= MAX_ATTEMPTS:
            given_up[work.table] = tried
        elif tried.count and left > 0:
            waiting[work.table] = left
        else:
            due.append(work)
    return Decision(tuple(due), waiting, given_up)


def with_below(
    tables: Collection[str], sources: Mapping[str, Sequence[str]], collecting: Collection[str] = ()
) -> list[str]:
    """`tables` and everything that is made of them, directly or not, in the order of `sources`.

    Args:
        tables: where something is to be done.
        sources: by table of the pipeline, sources first, what it is made of.
        collecting: tables that wait until there is enough for a batch: they are taken only where they are due.
    """
    selected = set(tables)
    for table, made_of in sources.items():
        if table not in collecting and selected.intersection(made_of):
            selected.add(table)
    return [t for t in sources if t in selected]


def plan_id(works: Iterable[Work]) -> str:
    """The same for the same windows of the same tables."""
    return fingerprint(*sorted(w.fingerprint for w in works))


def run_key(pipeline: str, plan: str, attempt: int) -> str:
    """What keeps one tick's request from being launched twice, and lets a failed one be launched again."""
    return f"{pipeline}:{plan}:{attempt}"


def shortened(items: Sequence[str], limit: int = 160) -> str:
    """Items in a line, with a count in place of those that do not fit."""
    line = ""
    for i, item in enumerate(items):
        longer = f"{line}, {item}" if line else item
        if line and len(longer) > limit:
            return f"{line} and {len(items) - i} more"
        line = longer
    return line

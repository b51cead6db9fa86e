"""How many random histories the long tests go through, and which.

`HISTORIES=10 FIRST_SEED=1000 make test-long ARGS="-k key_changes"` goes through ten times as many as usual, and through
none of the usual ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")

HISTORIES = int(os.environ.get("HISTORIES", "1"))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
# Of the variants of a long test, and of the random histories within one, one in so many is run; 1: all of them.
VARIANTS = int(os.environ.get("VARIANTS", "1"))
# Every day the next ones.
TODAY = int(os.environ.get("DAY", datetime.now(UTC).toordinal()))


def of_today(cases: Sequence[T]) -> list[T]:
    """Return today's of the cases that one long test goes through."""
    step = min(VARIANTS, len(cases))
    return list(cases[TODAY % step :: step])


def histories(usual: int) -> int:
    """Return how many random histories one test goes through, of so many as usual."""
    return max(1, usual * HISTORIES // VARIANTS)


def seeds(first: int, usual: int) -> range:
    """Seeds of long tests: so many as usual from the first one on, more if the environment asks for more."""
    start = first + FIRST_SEED
    return range(start, start + usual * HISTORIES)


def long_seeds(first: int, usual: int) -> list[Any]:
    """`seeds` as parameters of a test whose other seeds are in the default run."""
    return [pytest.param(seed, marks=pytest.mark.long) for seed in seeds(first, usual)]


def any_seed(usual: int) -> Callable[[Callable[[int], None]], Callable[[], None]]:
    """Let Hypothesis choose so many seeds as usual, or more if the environment asks for more; it keeps those that fail."""
    chosen = settings(
        max_examples=histories(usual),
        deadline=None,
        phases=[Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return lambda check: chosen(given(seed=st.integers(0, 2**63))(check))

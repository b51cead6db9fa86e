"""How many random histories the long tests go through, and which.

`HISTORIES=10 FIRST_SEED=1000 make test-long ARGS="-k key_changes"` goes through ten times as many as usual, and through
none of the usual ones.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

HISTORIES = int(os.environ.get("HISTORIES", "1"))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))


def seeds(first: int, usual: int) -> range:
    """Seeds of long tests: so many as usual from the first one on, more if the environment asks for more."""
    start = first + FIRST_SEED
    return range(start, start + usual * HISTORIES)


def long_seeds(first: int, usual: int) -> list[Any]:
    """`seeds` as parameters of a test whose other seeds are in the default run."""
    return [pytest.param(seed, marks=pytest.mark.long) for seed in seeds(first, usual)]

"""Random mixtures of micro-batches, damage, backfills, undos and upkeep: every table holds what it should."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from tests.support.backfill_histories import go_through
from tests.support.seeds import long_seeds


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *long_seeds(1, 5)])
def test_a_random_history_of_backfills(lake: Lake, seed: int) -> None:
    go_through(lake, seed)

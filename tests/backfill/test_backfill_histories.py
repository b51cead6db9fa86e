"""Random mixtures of micro-batches, redefinitions, backfills, kills and what others do: every table is as it should be."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from tests.support.backfill_histories import go_through
from tests.support.killed_backfills import around_backfills
from tests.support.kills import Points
from tests.support.seeds import long_seeds
from tests.support.upkeep import make_eager


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 16)])
def test_a_random_history_of_a_pipeline(lake: Lake, points: Points, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make_eager(monkeypatch)
    go_through(lake, seed, around_backfills(points, monkeypatch), steps=4 if seed == 0 else 12)

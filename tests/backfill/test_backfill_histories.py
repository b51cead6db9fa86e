"""Random mixtures of micro-batches, redefinitions, backfills, kills and what others do: every table is as it should be."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from lake_assets.backfill.backfill_record import Records
from tests.support.backfill_histories import go_through
from tests.support.killed_backfills import around_backfills
from tests.support.kills import Points
from tests.support.seeds import long_seeds
from tests.support.upkeep import make_eager

# With kills while a backfill is published and undone.
SHORT = 18


@pytest.mark.long
@pytest.mark.parametrize("seed", [SHORT, *long_seeds(1, 16)])
def test_a_random_history_of_a_pipeline(lake: Lake, points: Points, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make_eager(monkeypatch)
    everywhere = around_backfills(points, monkeypatch)
    if seed == SHORT:
        log = go_through(lake, seed, everywhere, ("damage", "begin", "batch", "publish", "undo", "upkeep"))
        assert [r.state for r in Records(lake).all()] == ["undone", "published"]
        publishing, undoing = log[: log.index("undo")], log[log.index("undo") :]
        assert all([entry for entry in part if entry.startswith("killed")] for part in (publishing, undoing)), log
    else:
        go_through(lake, seed, everywhere)

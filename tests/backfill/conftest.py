"""A lake with a final table whose wrong rows a backfill heals, put back before each test."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from tests.support.backfilled_people import History, damaged
from tests.support.lakes import lake_on
from tests.support.saved import SavedLake


@pytest.fixture(scope="module")
def saved(spark_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> SavedLake:
    folder = tmp_path_factory.mktemp("saved")
    people, damages = damaged(lake_on(spark_lake, folder / "lake"))
    return SavedLake(people.lake, (people, damages), (people.feed.pipeline,), folder / "backup")


@pytest.fixture
def history(saved: SavedLake) -> History:
    """`damaged`, in one lake for all tests."""
    return saved.put_back()

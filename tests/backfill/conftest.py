"""A lake with a final table whose wrong rows a backfill heals, put back before each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake
from tests.support.backfilled_people import History, damaged
from tests.support.cli import User, caller
from tests.support.lakes import lake_on
from tests.support.saved import SavedLake


@pytest.fixture(scope="session")
def saved(spark_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> SavedLake:
    folder = tmp_path_factory.mktemp("saved")
    people, damages = damaged(lake_on(spark_lake, folder / "lake"))
    return SavedLake(people.lake, (people, damages), (people.feed.pipeline,), folder / "backup")


@pytest.fixture
def history(saved: SavedLake) -> History:
    """`damaged`, in one lake for all tests."""
    return saved.put_back()


@pytest.fixture
def at_the_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[[Lake], User]:
    """Makes users of a lake, in a folder of their own, with their pipelines in `pipelines`."""
    (tmp_path / "pipelines").mkdir()
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("LAKE_PIPELINES", str(tmp_path / "pipelines"))
    monkeypatch.chdir(tmp_path)

    def make(lake: Lake) -> User:
        for load in ("load", "load_existing"):
            monkeypatch.setattr(Lake, load, lambda: lake)
        return User(lake, caller(monkeypatch, capsys))

    return make

"""A lake for the tests of captures, and the one oracle: start + feed = end."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig
from tests.support.lakes import lake_on


@pytest.fixture(scope="session")
def lake(spark_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return lake_on(spark_lake, tmp_path_factory.mktemp("capture"))


@pytest.fixture
def namespace(lake: Lake) -> str:
    """A separate namespace per test."""
    name = f"t{uuid.uuid4().hex[:10]}"
    lake.ensure_namespace((name,))
    return name


@pytest.fixture
def cold(tmp_path: Path) -> Lake:
    """A lake whose Spark cannot be started: planning must not need it."""

    def refuse() -> None:
        raise AssertionError("Spark was started")

    lake = Lake(LakeConfig(home=tmp_path), session=refuse)  # pyright: ignore[reportArgumentType]
    lake.ensure_namespace(("a",))
    return lake

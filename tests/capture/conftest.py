"""A lake for the tests of captures, and the one oracle: start + feed = end."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    home: Path = tmp_path_factory.mktemp("capture")
    config = LakeConfig(home=home, spark=SparkConfig(driver_memory="2g", conf={"spark.sql.shuffle.partitions": "1"}))
    lake = Lake(config)
    lake.spark()
    return lake


@pytest.fixture
def namespace(lake: Lake) -> str:
    """A separate namespace per test."""
    name = f"t{uuid.uuid4().hex[:10]}"
    lake.ensure_namespace((name,))
    return name

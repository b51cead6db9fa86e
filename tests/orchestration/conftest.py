"""Pipelines for tests, with ticks and runs on an ephemeral instance."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from lake_assets import Lake, Pipeline
from lake_assets.examples import shop
from tests.support.dagster_harness import Harness


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture(scope="session", autouse=True)
def _migrations_are_read_once() -> Iterator[None]:
    """Dagster reads the modules of all of its migrations again whenever it makes or opens a database."""
    read, known = ScriptDirectory.from_config, dict[str, ScriptDirectory]()

    def once(config: Config) -> ScriptDirectory:
        place = str(config.get_main_option("script_location"))
        if place not in known:
            known[place] = read(config)
        return known[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", once)
        yield


@pytest.fixture(scope="session")
def _new_databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an instance without runs: making its databases takes longer than most tests of it."""
    home = tmp_path_factory.mktemp("new_databases")
    (home / "dagster.yaml").touch()
    with dg.DagsterInstance.from_config(str(home)) as made:
        made.get_runs_count()
        made.all_asset_keys()
        made.all_instigator_state()
    return home


@pytest.fixture
def dagster_home(_new_databases: Path, tmp_path: Path) -> Path:
    """The folder of an instance with its databases."""
    return Path(shutil.copytree(_new_databases, tmp_path / "dagster_home"))


@pytest.fixture
def shop_pipeline() -> Pipeline:
    return Pipeline.load(shop.PIPELINE)


@pytest.fixture
def dry(shop_pipeline: Pipeline, plain_lake: Lake, instance: dg.DagsterInstance) -> Harness:
    """The shop on a lake whose Spark is never started."""
    return Harness(shop_pipeline, plain_lake, instance)


@pytest.fixture
def wet(shop_pipeline: Pipeline, lake: Lake, instance: dg.DagsterInstance) -> Harness:
    """The shop on a lake with Spark."""
    return Harness(shop_pipeline, lake, instance)

"""Pipelines for tests, with ticks and runs on an ephemeral instance."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.examples import shop
from tests.support.dagster_harness import Harness


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


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

"""A stream of one table, and its log."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from tests.support.event_log import Log
from tests.support.streams import Feed


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def feed(lake: Lake) -> Feed:
    return Feed(lake, "public.t")

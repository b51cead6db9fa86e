"""A lake with plays."""

from __future__ import annotations

import pytest

from lake_assets import Lake
from tests.support.daily_job import play


@pytest.fixture
def media(plain_lake: Lake) -> Lake:
    """A lake with two plays of one commit; Spark is never started."""
    play(plain_lake, (1, 1, 10), (2, 2, 20))
    return plain_lake

"""Settings that all servers that are read live have in common."""

from __future__ import annotations

from pydantic import Field

from lake_assets.lake import thresholds
from lake_assets.pipeline.config.setting_types import Duration, Strict


class Environment(Strict):
    """The environment variable that holds a secret, which is never stored."""

    env: str = Field(description="name of the environment variable", pattern=r"^\w+$")


class LiveSettings(Strict):
    """Settings of every server that is read live."""

    max_wait: Duration = Field(
        default=thresholds.LIVE_COMMIT_SECONDS,
        description="time from one commit to the next, unless many changes are waiting (0.5, 5s)",
    )

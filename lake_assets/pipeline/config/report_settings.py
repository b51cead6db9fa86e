"""Settings of a pipeline's scheduled report."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lake_assets.lake.paths import LocalPath
from lake_assets.pipeline.config.setting_types import Duration, Strict, checked
from lake_assets.tables.partitioning.time_zones import zone_of

_FIELDS = 5


def _cron(value: str) -> None:
    if len(value.split()) != _FIELDS:
        raise ValueError(f"{value!r} is not a cron expression: minute, hour, day, month, weekday, such as 0 9 * * *")


class ReportSettings(Strict):
    """A report on the lake that Dagster writes on a schedule."""

    file: LocalPath = Field(description="the file of the page; a relative one is in the lake's home")
    cron: Annotated[str, checked(_cron)] = Field(description="when it is written, as a cron expression: 0 7 * * *")
    timezone: Annotated[str, checked(zone_of)] = Field(default="UTC", description="time zone of cron, an IANA name")
    since: Duration = Field(default="1d", description="how far back it says what steps did")

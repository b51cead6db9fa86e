"""Time zones by their names, and which of them have hours that can be told apart."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from lake_assets.errors import PipelineError


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name.

    Raises:
        PipelineError: the name is unknown.
    """
    try:
        return UTC if name.upper() == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError) as e:
        raise PipelineError(f"{name!r} is an unknown time zone: write an IANA name such as Europe/Berlin") from e


def check_hours(name: str) -> None:
    """Refuse a time zone whose clock changes by less than an hour, so that hours overlap.

    Raises:
        PipelineError: the zone is of this kind.
    """
    zone = zone_of(name)
    offsets = {zone.utcoffset(datetime(2020, month, 1)) for month in range(1, 13)}  # noqa: DTZ001 (local time)
    if len({o.seconds % 3600 for o in offsets if o is not None}) > 1:
        raise PipelineError(
            f"the clock of {name} changes by less than an hour, so hours overlap: declare `every: day`, or "
            "`timezone: UTC`"
        )


def is_fixed(zone: tzinfo) -> bool:
    """Whether the clock is never changed."""
    if zone is UTC:
        return True
    moments = (datetime(year, month, 1, tzinfo=UTC) for year in range(1970, 2038) for month in range(1, 13))
    return len({m.astimezone(zone).utcoffset() for m in moments}) == 1

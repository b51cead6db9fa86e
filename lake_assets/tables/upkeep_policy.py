"""The upkeep policy of a table: when its files are rewritten, how long its snapshots stay, what that may cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, tzinfo
from typing import Literal, Protocol, Self

from lake_assets.errors import PipelineError
from lake_assets.lake import TableId

DAY = 86_400.0
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[KMGT]i?B)", re.IGNORECASE)
_UNITS = {"k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Hours:
    """A time of day, from `start` up to `end`; over midnight if `end` is earlier."""

    start: time
    end: time

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `22:00-06:00`.

        Raises:
            PipelineError: the text is no time of day.
        """
        match = _HOURS.fullmatch(text.strip())
        if match:
            from_hour, from_minute, to_hour, to_minute = map(int, match.groups())
            is_time = max(from_hour, to_hour) <= 24 and max(from_minute, to_minute) < 60
            if is_time and (from_hour % 24, from_minute) != (to_hour % 24, to_minute):
                return cls(time(from_hour % 24, from_minute), time(to_hour % 24, to_minute))
        raise PipelineError(f"{text!r} is no time of day: write it as 22:00-06:00")

    def has(self, at: time) -> bool:
        """Whether a time of day is within."""
        if self.start < self.end:
            return self.start <= at < self.end
        return at >= self.start or at < self.end


def are_all_day(hours: Sequence[Hours]) -> bool:
    """Whether some hours leave no minute of the day."""
    minutes = (time(minute // 60, minute % 60) for minute in range(24 * 60))
    return bool(hours) and all(any(h.has(minute) for h in hours) for minute in minutes)


@dataclass(frozen=True)
class Budget:
    """What upkeep may cost.

    Attributes:
        share: the greatest share of time, 1 being all; None: no share was declared.
        bytes_an_hour: the greatest number of bytes that are rewritten in an hour; None: no number was declared.
    """

    share: float | None = None
    bytes_an_hour: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a share of time (`10%`) or bytes an hour (`20GiB`).

        Raises:
            PipelineError: the text is neither.
        """
        if match := _RATE.fullmatch(str(text).strip()):
            number, unit = float(match[1]), match[2].lower()
            if not number:
                raise PipelineError(
                    f"{text!r} leaves upkeep no time at all: write 1% or more, or `upkeep: false` for none"
                )
            if unit == "%" and 0 < number <= 100:
                return cls(share=number / 100)
            if unit != "%" and number > 0:
                base = 1024 if "i" in unit else 1000
                return cls(bytes_an_hour=int(number * base ** _UNITS[unit[0]]))
        raise PipelineError(f"{text!r} is no budget: write a share of the time (10%), or bytes an hour (20GiB)")

    def __str__(self) -> str:
        if self.share is not None:
            return f"{self.share:.0%} of the time"
        return f"{(self.bytes_an_hour or 0) / 2**30:.3g} GiB an hour"


class Reader(Protocol):
    """The declaration of a table that reads another one."""

    @property
    def table(self) -> TableId:
        """The table."""
        ...


@dataclass(frozen=True)
class Retention:
    """How long the rows of a raw or staging table stay that no table downstream needs any more.

    Attributes:
        kind: `records` of a raw table, or `events` of a staging table.
        seconds: from this age on.
        readers: the declarations of the tables that read it.
        refused: why all are kept nevertheless; empty: they are not.
    """

    kind: Literal["records", "events"]
    seconds: float
    readers: tuple[Reader, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class UpkeepPolicy:
    """How one table is kept small.

    Attributes:
        is_on: whether upkeep may change the table.
        target_file_size: the size of rewritten files, in bytes.
        small_files: the share of a table's data files that small ones have at least, before they are combined.
        commits: small files are combined once there are so many of them, one for each small commit.
        bytes: or once they have so many bytes.
        age: or once the oldest of them has this age, in seconds.
        deleted_rows: a file is rewritten if at least this share of its rows is deleted.
        keep: the age, in seconds, from which on snapshots expire.
        snapshots: the number of newest snapshots beyond which they expire at any age.
        orphans: the age, in seconds, from which on files that no snapshot names are deleted.
        keep_records: the age, in seconds, from which on records of raw are deleted; None: they stay.
        keep_events: the same of superseded events of staging.
        retention: what these mean for the table itself; None: nothing.
        dead_after: a consumer for which changes have waited for longer, in seconds, loses its claim to a snapshot;
            None: no consumer does.
        only_claims_of: pipelines whose consumers alone are looked after, since another program owns the table; empty:
            the table is looked after.
        budget: what the upkeep of a pipeline may cost.
        quiet: hours without upkeep.
        zone: the time zone of these hours.
    """

    is_on: bool = True
    target_file_size: int = 128 << 20
    small_files: float = 0.05
    commits: int = 50
    bytes: int = 1 << 30
    age: float = DAY
    deleted_rows: float = 0.3
    keep: float = 5 * DAY
    snapshots: int = 200
    orphans: float = 3 * DAY
    keep_records: float | None = None
    keep_events: float | None = None
    retention: Retention | None = None
    dead_after: float | None = 90 * DAY
    only_claims_of: frozenset[str] = frozenset()
    budget: Budget = Budget(share=0.1)
    quiet: Sequence[Hours] = ()
    zone: tzinfo = UTC

    def is_quiet(self, now: datetime) -> bool:
        """Whether a time is within the hours without upkeep."""
        at = now.astimezone(self.zone).time()
        return any(hours.has(at) for hours in self.quiet)


DEFAULT_POLICY = UpkeepPolicy()

"""What tables of every layer are declared to have: limits, batches, freshness, how they show up as assets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from lake_assets.errors import PipelineError


@dataclass(frozen=True)
class Limit:
    """How many of some records are too many: a number, or a share of them.

    Attributes:
        records: the greatest number; None: no number was declared.
        share: the greatest share, 1 being all; None: no share was declared.
    """

    records: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str | int, most: float = 100) -> Self:
        """`100`, or `1%`.

        Args:
            text: the number or share.
            most: the greatest share, in percent.

        Raises:
            PipelineError: neither.
        """
        if match := re.fullmatch(r"(\d+)(\.\d+)?\s*(%?)", str(text).strip()):
            number = float(match[1] + (match[2] or ""))
            if match[3] and number <= most:
                return cls(share=number / 100)
            if not match[3] and not match[2]:
                return cls(records=int(match[1]))
        raise PipelineError(f"{text!r} is no limit: write a number of records (100) or a share of them (1%)")

    def is_exceeded(self, rejected: int, records: int) -> bool:
        """Whether `rejected` of `records` are too many."""
        if self.records is not None:
            return rejected > self.records
        return self.share is not None and rejected > self.share * records

    def __str__(self) -> str:
        return str(self.records) if self.records is not None else f"{(self.share or 0) * 100:g}%"


@dataclass(frozen=True)
class BatchSize:
    """How much a step takes at once of what is pending.

    Attributes:
        files, rows: so many new data files, or changed rows, are enough: they wait for no others, and a step takes no
            more than up to the snapshot that reaches the number; None: any number.
        wait: seconds that less than that waits for more before a run is asked for; 0: none.
    """

    files: int | None = None
    rows: int | None = None
    wait: float = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether a step may have to leave something for the next one."""
        return self.files is not None or self.rows is not None

    @property
    def doubled(self) -> BatchSize:
        """Twice as much."""
        return replace(self, files=self.files and 2 * self.files, rows=self.rows and 2 * self.rows)

    def is_full(self, files: int, rows: int) -> bool:
        """Whether these are enough."""
        return (self.files is not None and files >= self.files) or (self.rows is not None and rows >= self.rows)


# The default: a step takes all that is pending.
UNLIMITED = BatchSize()


@dataclass(frozen=True)
class Freshness:
    """When an asset counts as stale; in seconds.

    Attributes:
        fail, warn: the age of its last materialization from which on it is stale, or warned of.
        cron, within, timezone: instead: by when it has to be materialized, and how long before that counts.
    """

    fail: float | None = None
    warn: float | None = None
    cron: str | None = None
    within: float | None = None
    timezone: str = "UTC"


@dataclass(frozen=True)
class Shown:
    """How a table shows up as an asset; no step reads it.

    Attributes:
        group: None: the pipeline's.
        kinds: beside those that say how it is made.
        depends_on: keys of assets that are no tables of the pipeline, with slashes.
    """

    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    kinds: tuple[str, ...] = ()
    description: str | None = None
    freshness: Freshness | None = None
    depends_on: tuple[str, ...] = ()

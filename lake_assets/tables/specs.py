"""Declarations shared by tables of every layer: limits, batch sizes, freshness, and their assets in Dagster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from lake_assets.errors import PipelineError
from lake_assets.lake.names import TableId


@dataclass(frozen=True)
class Limit:
    """The greatest accepted number of records, as a number or a share.

    Attributes:
        records: the greatest number; None: no number was declared.
        share: the greatest share, 1 being all; None: no share was declared.
    """

    records: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str | int, most: float = 100) -> Self:
        """Parse `100` or `1%`; a share of more than `most` percent is refused.

        Raises:
            PipelineError: the text is neither.
        """
        if match := re.fullmatch(r"(\d+)(\.\d+)?\s*(%?)", str(text).strip()):
            number = float(match[1] + (match[2] or ""))
            if match[3] and number <= most:
                return cls(share=number / 100)
            if not match[3] and not match[2]:
                return cls(records=int(match[1]))
        raise PipelineError(f"{text!r} is not a limit: write a number of records (100) or a share of them (1%)")

    def is_exceeded(self, rejected: int, records: int) -> bool:
        """Whether `rejected` of `records` are too many."""
        if self.records is not None:
            return rejected > self.records
        return self.share is not None and rejected > self.share * records

    def __str__(self) -> str:
        return str(self.records) if self.records is not None else f"{(self.share or 0) * 100:g}%"


@dataclass(frozen=True)
class BatchSize:
    """How much of the pending changes one step absorbs.

    Attributes:
        files, rows: number of new data files, or changed rows, that fill a batch. A full batch does not wait for more
            changes, and a step ends at the snapshot that fills it; None: no limit.
        wait: seconds that a smaller batch waits for more changes before a run is requested; 0: none.
    """

    files: int | None = None
    rows: int | None = None
    wait: float = 0.0

    @property
    def is_limited(self) -> bool:
        """Whether a step may have to leave changes for the next step."""
        return self.files is not None or self.rows is not None

    @property
    def doubled(self) -> BatchSize:
        """A batch size twice as large."""
        return replace(self, files=self.files and 2 * self.files, rows=self.rows and 2 * self.rows)

    def is_full(self, files: int, rows: int) -> bool:
        """Whether these numbers fill a batch."""
        return (self.files is not None and files >= self.files) or (self.rows is not None and rows >= self.rows)


# The default: a step absorbs all pending changes.
UNLIMITED = BatchSize()


@dataclass(frozen=True)
class Freshness:
    """When an asset counts as stale; times in seconds.

    Attributes:
        fail, warn: the age of the last materialization at which the asset is stale, or gets a warning.
        cron, within, timezone: alternatively, the deadlines for materializations, and how long before a deadline a
            materialization counts for it.
    """

    fail: float | None = None
    warn: float | None = None
    cron: str | None = None
    within: float | None = None
    timezone: str = "UTC"


@dataclass(frozen=True)
class Sensitive:
    """What is declared about sensitive columns of a table.

    Attributes:
        columns: columns whose values are not shown.
        cleared: columns whose values may be shown although they are computed from such columns.
        among: the tables of the pipeline, if one of them declares any; what a table's columns are computed from is
            found among them.
    """

    columns: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()
    among: Mapping[TableId, Any] = field(default_factory=dict[TableId, Any], repr=False, compare=False)


@dataclass(frozen=True)
class Shown:
    """The settings of a table's asset in Dagster; no step reads them.

    Attributes:
        group: None: the group of the pipeline.
        kinds: additional kinds; the asset also has kinds for the way it is computed.
        depends_on: keys, with slashes, of assets that are not tables of the pipeline.
        target_lag: seconds that the table may be behind what has arrived in the lake; None: the tables that read it
            decide, or nothing waits.
        sensitive: its columns with values that are not shown.
    """

    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    kinds: tuple[str, ...] = ()
    description: str | None = None
    freshness: Freshness | None = None
    depends_on: tuple[str, ...] = ()
    target_lag: float | None = None
    sensitive: Sensitive = Sensitive()


def in_words(inputs: Iterable[object], lookups: Iterable[object]) -> str:
    """Return what a step reads, for asset descriptions: the changes of its inputs, and its lookups."""
    changes, others = (list(dict.fromkeys(f"`{t}`" for t in tables)) for tables in (inputs, lookups))
    with_them = f", with {', '.join(others)} as {'it is' if len(others) == 1 else 'they are'}" if others else ""
    return f"the changes of {', '.join(changes)}{with_them}"

"""A declared job as a table of a pipeline."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from lake_assets.jobs.captured_step import CapturedStep
from lake_assets.jobs.step_settings import StepSettings
from lake_assets.lake import TableId
from lake_assets.tables.audits.audit_kinds import Audit
from lake_assets.tables.partitioning.table_partitions import Partitions
from lake_assets.tables.specs import BatchSize, Shown, in_words

# Dagster's context of the step, for jobs that take one.
_context: ContextVar[Any] = ContextVar("lake_assets_job_context", default=None)


@contextlib.contextmanager
def with_context(context: object) -> Generator[None]:
    """Give jobs that run within the block Dagster's context."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


def current_context() -> Any:
    """Return Dagster's context of the step; None if the job runs without Dagster."""
    return _context.get()


class Job(Protocol):
    """What a job runs."""

    @property
    def summary(self) -> str:
        """What runs, for asset descriptions: `Calls x`."""
        ...

    def run(self, step: CapturedStep) -> Mapping[str, object]:
        """Run it, and return details for the step's metadata.

        Raises:
            JobError: it failed.
        """
        ...


@dataclass(frozen=True)
class JobSpec:
    """A job of a pipeline.

    Attributes:
        settings: its table, its sources, and what it is handed.
        job: what it runs.
        pipeline: the pipeline that owns the table.
        batch: limits of a step.
        shown: attributes of its asset.
        audits: conditions that are checked after each step; the job has published its rows by then.
        full: a SELECT of all rows that the table should hold, for verification; empty: the job has none.
    """

    settings: StepSettings
    job: Job
    pipeline: str
    batch: BatchSize = field(default_factory=BatchSize)
    shown: Shown = field(default_factory=Shown, repr=False)
    audits: tuple[Audit, ...] = ()
    full: str = ""
    landing: ClassVar[None] = None
    partitions: ClassVar[Partitions | None] = None

    @property
    def table(self) -> TableId:
        """The table that the job writes."""
        return self.settings.table

    @property
    def sources(self) -> tuple[TableId, ...]:
        """The tables whose changes trigger runs."""
        return self.settings.sources

    @property
    def lookups(self) -> tuple[TableId, ...]:
        """The tables that the job reads as they are."""
        return self.settings.lookups

    @property
    def names_columns_in(self) -> list[str]:
        """The settings in use that name columns of the table."""
        return ["audits"] if self.audits else []

    @property
    def summary(self) -> str:
        """How the table is written, for asset descriptions."""
        writes = "" if self.settings.writes == "table" else " The job writes elsewhere; this table holds its watermark."
        return f"{self.job.summary} over {in_words(self.sources, self.lookups)}.{writes}"

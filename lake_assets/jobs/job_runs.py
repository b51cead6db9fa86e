"""Run one step of a declared job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lake_assets.capture.renamed_columns import renamed_text
from lake_assets.jobs import step_notes
from lake_assets.jobs.captured_step import CapturedStep, captured_step
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.jobs.step_windows import Choose, pending_windows
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.foreign_errors import named_errors
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.batch_limits import left_behind
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, continues, missing_sources
from lake_assets.tables.specs import BatchSize
from lake_assets.tables.table_step import EmptySources, Pins, TableStep
from lake_assets.tables.writing.commit_counts import counts
from lake_assets.tables.writing.table_ddl import columns_of, key_in


def run_job(lake: LakeBase, spec: JobSpec, choose: Choose | None = None, *, rebuild: bool = False) -> Outcome:
    """Run a job over what is pending.

    Args:
        lake: the lake.
        spec: the job.
        choose: returns the part of the pending windows that this step takes.
        rebuild: whether the job receives all rows of its sources.

    Raises:
        JobError: the job fails.
        LakeError: see `captured_step`.
    """
    began, name, settings = time.monotonic(), str(spec.table), spec.settings
    with named_errors(spec.table):
        loaded = {t: lake.find(t) for t in (*spec.sources, *spec.lookups)}
        if missing := [t for t, table in loaded.items() if table is None]:
            return Outcome(name, "waiting", why=missing_sources(lake.find(spec.table), missing))
        sources = {s: t for s in spec.sources if (t := loaded[s]) is not None}
        before = lake.find(spec.table)
        if not rebuild and step_notes.find_note(lake, spec.table) is None:
            windows = pending_windows(settings, before, sources)
            windows = choose(windows, sources) if choose else windows
            if all(w.is_absorbed for w in windows.values()):
                why = renamed_text({str(s): (sources[s], w.start) for s, w in windows.items()})
                return Outcome(name, "nothing", why=why)
        if spec.audits and before is not None:
            _gate(lake, spec)  # a mistake in them is to be known before the job has run
        details: dict[str, object] = {}
        with captured_step(lake, settings, choose=choose, rebuild=rebuild) as step:
            absorbed = _absorbed(step)
            if not step.is_empty:
                details |= spec.job.run(step)
            details |= left_behind(*step.windows.values())
            details |= {"interrupted": step.resumed} if step.resumed else {}
        if step.is_empty and not lake.exists(spec.table):
            # The job makes its table, and with it the place of the watermark.
            return Outcome(name, "waiting", why=f"{', '.join(map(str, sources))} has no rows yet")
        return _outcome(lake, spec, step, before, absorbed, details, began)


def _absorbed(step: CapturedStep) -> tuple[Absorbed, ...]:
    pending = [s for s, w in step.windows.items() if not w.is_absorbed]
    return tuple(Absorbed.of(s, step.capture(s)) for s in pending)


def _gate(lake: LakeBase, spec: JobSpec) -> Gate:
    """Return the audits of the job's table; raises PipelineError if they do not match its columns."""
    gate = Gate(lake, spec.table, spec.audits, key_in(lake.table(spec.table)))
    gate.check(columns_of(lake, spec.table))
    return gate


def _outcome(
    lake: LakeBase,
    spec: JobSpec,
    step: CapturedStep,
    before: Table | None,
    absorbed: tuple[Absorbed, ...],
    details: dict[str, object],
    began: float,
) -> Outcome:
    """Describe a step by the commits that are in the table since; they are the job's, which may be several."""
    table, inserted, updated, deleted = lake.find(spec.table), 0, 0, 0
    start = before.metadata.current_snapshot_id if before is not None else None
    for snapshot in ancestors(table) if table is not None else ():
        if snapshot.snapshot_id == start:
            break
        if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
            new = counts(snapshot)
            inserted, updated, deleted = (a + b for a, b in zip((inserted, updated, deleted), new, strict=True))
    at = table.metadata.current_snapshot_id if table is not None else None
    audits: tuple[Finding, ...] = ()
    if spec.audits and table is not None and at != start:
        audits = _gate(lake, spec).audit_published(at, start)
    how = "none" if step.is_empty else "job"
    moved = {"job": "with the job's commit", "step": "after the job", "nobody": "nothing to move"}[step.moved_by]
    return Outcome(
        str(spec.table), "absorbed", absorbed, inserted, updated, deleted, how,
        "no row of its sources changed" if step.is_empty else "everything" if step.is_initial else "changes",
        time.monotonic() - began, at,
        {**details, "watermark": moved}, audits=audits,
    )  # fmt: skip


@dataclass(frozen=True)
class JobStep(TableStep[JobSpec, Pins]):
    """Running a user's job over what changed."""

    is_only_writer: ClassVar[bool] = False
    empty_sources: ClassVar[EmptySources] = "emptied"

    @property
    def kinds(self) -> tuple[str, ...]:
        """None: the job's own kind is declared with it."""
        return ()

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return one window per source."""
        return list(pending_windows(self.spec.settings, table, sources).values())

    def batch(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: Pins) -> list[Window]:
        """Return windows up to snapshots that agree with each other and with the models of the run."""
        windows = pending_windows(self.spec.settings, table, sources)
        return list(self._chosen(lake, pins, windows, sources).values())

    def absorb(self, lake: LakeBase, pins: Pins, *, rebuild: bool = False) -> Outcome:
        """Run the job."""
        with pins.release_on_failure():
            return run_job(lake, self.spec, lambda w, sources: self._chosen(lake, pins, w, sources), rebuild=rebuild)

    def _chosen(
        self, lake: LakeBase, pins: Pins, windows: Mapping[TableId, Window], sources: Mapping[TableId, Table]
    ) -> dict[TableId, Window]:
        size = self.spec.batch if continues(windows.values()) else BatchSize()
        return pins.pin(lake, windows, sources, size)

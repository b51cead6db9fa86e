"""Run one step of a declared job."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from lake_assets.capture.renamed_columns import renamed_text
from lake_assets.jobs import step_notes
from lake_assets.jobs.captured_step import CapturedStep, captured_step
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.foreign_errors import named_errors
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.batch_limits import left_behind
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, continues
from lake_assets.tables.specs import BatchSize
from lake_assets.tables.table_step import EmptySources, Pins, StepTables, TableStep, tables_of
from lake_assets.tables.writing.commit_counts import counts
from lake_assets.tables.writing.table_ddl import columns_of, key_in


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
        return list(self.spec.settings.windows(table, sources).values())

    def batch(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: Pins) -> list[Window]:
        """Return windows up to snapshots that agree with each other and with the models of the run."""
        return list(self._next_of(lake, pins, self.spec.settings.windows(table, sources), sources).values())

    def _next_of(
        self, lake: LakeBase, pins: Pins, windows: Mapping[TableId, Window], sources: Mapping[TableId, Table]
    ) -> dict[TableId, Window]:
        """Return the part of the pending windows that the next step takes."""
        return pins.pin(lake, windows, sources, self.spec.batch if continues(windows.values()) else BatchSize())

    def due(self, lake: LakeBase, pins: Pins, *, rebuild: bool) -> StepTables | Outcome:
        """Return the tables of a step, or the outcome if there is nothing to do."""
        found = tables_of(lake, self.spec, self.spec.lookups, is_owned=False)
        if isinstance(found, Outcome) or rebuild or step_notes.find_note(lake, self.spec.table) is not None:
            return found
        sources = {s: found.sources[s] for s in self.spec.sources}
        windows = self._next_of(lake, pins, self.spec.settings.windows(found.table, sources), sources)
        if not all(w.is_absorbed for w in windows.values()):
            return found
        why = renamed_text({str(s): (sources[s], w.start) for s, w in windows.items()})
        return Outcome(str(self.spec.table), "nothing", why=why)

    def absorb(self, lake: LakeBase, pins: Pins, *, rebuild: bool = False) -> Outcome:
        """Run the job over what is pending; `rebuild`: over all rows of its sources.

        Raises:
            JobError: the job fails.
            LakeError: see `captured_step`.
        """
        with pins.release_on_failure(), named_errors(self.spec.table):
            return self._absorb(lake, pins, rebuild=rebuild)

    def _absorb(self, lake: LakeBase, pins: Pins, *, rebuild: bool) -> Outcome:
        began, spec = time.monotonic(), self.spec
        due = self.due(lake, pins, rebuild=rebuild)
        if isinstance(due, Outcome):
            return due
        if spec.audits and due.table is not None:
            self._gate(lake)  # a mistake in them is to be known before the job has run
        details: dict[str, object] = {}
        with captured_step(lake, spec.settings, choose=partial(self._next_of, lake, pins), rebuild=rebuild) as step:
            with step.before_job():
                pending = [s for s, w in step.windows.items() if not w.is_absorbed]
                absorbed = tuple(Absorbed.of(s, step.capture(s)) for s in pending)
                _ = step.ranges  # a mistake in them is to be known before the job has run
            if not step.is_empty:
                details |= spec.job.run(step)
            details |= left_behind(*step.windows.values())
            details |= {"interrupted": step.resumed} if step.resumed else {}
        if step.is_empty and not lake.exists(spec.table):
            # The job makes its table, and with it the place of the watermark.
            return Outcome(str(spec.table), "waiting", why=f"{', '.join(map(str, spec.sources))} has no rows yet")
        return self._outcome(lake, due, step, absorbed, details, began)

    def _gate(self, lake: LakeBase) -> Gate:
        """Return the audits of the job's table; raises PipelineError if they do not match its columns."""
        gate = Gate(lake, self.spec.table, self.spec.audits, key_in(lake.table(self.spec.table)))
        gate.check(columns_of(lake, self.spec.table))
        return gate

    def _outcome(
        self,
        lake: LakeBase,
        due: StepTables,
        step: CapturedStep,
        absorbed: tuple[Absorbed, ...],
        details: dict[str, object],
        began: float,
    ) -> Outcome:
        """Describe a step by the commits that are in the table since; they are the job's, which may be several."""
        table, inserted, updated, deleted = lake.find(self.spec.table), 0, 0, 0
        start = due.table.metadata.current_snapshot_id if due.table is not None else None
        for snapshot in ancestors(table) if table is not None else ():
            if snapshot.snapshot_id == start:
                break
            if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
                new = counts(snapshot)
                inserted, updated, deleted = (a + b for a, b in zip((inserted, updated, deleted), new, strict=True))
        at = table.metadata.current_snapshot_id if table is not None else None
        audits: tuple[Finding, ...] = ()
        if self.spec.audits and table is not None and at != start:
            audits = self._gate(lake).audit_published(at, start)
        moved = {"job": "with the job's commit", "step": "after the job", "nobody": "nothing to move"}[step.moved_by]
        return Outcome(
            str(self.spec.table), "absorbed", absorbed, inserted, updated, deleted,
            "none" if step.is_empty else "job",
            "no row of its sources changed" if step.is_empty else "everything" if step.is_initial else "changes",
            time.monotonic() - began, at,
            {**details, "watermark": moved}, audits=audits,
        )  # fmt: skip

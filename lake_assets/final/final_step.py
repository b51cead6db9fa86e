"""Final tables: each source table's current rows, their history, or its inserts, kept up to date from staging.

This module has what all modes share: the window, the columns, the watermark. `scd1`, `scd2` and `append` apply the
events of a window.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from lake_assets.capture import capture
from lake_assets.errors import NotRunError, Refused
from lake_assets.final.batch import Batch
from lake_assets.final.declaration import changed_settings, pending_of, reason_to_rebuild
from lake_assets.final.events.few_events import FewEvents
from lake_assets.final.events.repeated_snapshots import reason_to_restart
from lake_assets.final.events.staging_events import has_other_keys, window_events
from lake_assets.final.events.window_stats import Stats, stats_of
from lake_assets.final.final_ddl import columns_to_unite, prepare_table
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.folded_staging import folded_until, why_every_event
from lake_assets.final.modes import append, scd1, scd2
from lake_assets.final.modes.row_copies import DOUBTFUL, copies_or_repeats
from lake_assets.final.target import Target
from lake_assets.ingest.staging import exactness
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.row_counts import row_count
from lake_assets.lake.metadata.watermark import Watermark, read_marks
from lake_assets.tables.audits.audit_gate import forget_failed
from lake_assets.tables.batch_limits import cut, left_behind
from lake_assets.tables.lost_history import rebuilt_if_lost
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, head_of, known_marks
from lake_assets.tables.published import published
from lake_assets.tables.schema_changes import Change
from lake_assets.tables.spark_frames import cols
from lake_assets.tables.spark_tuning import in_one_piece, tuned_for
from lake_assets.tables.table_step import (
    REQUESTED,
    ChangedSetting,
    EmptySources,
    Pins,
    StepTables,
    TableStep,
    in_review,
    review_of,
    tables_of,
)
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import columns_of
from lake_assets.tables.writing.table_writer import TableWriter

_APPLY = {"scd1": scd1.apply, "scd2": scd2.apply, "append": append.apply}
_ROWS = {"scd1": scd1.rows_of, "scd2": scd2.rows_of, "append": append.rows_of}


@dataclass(frozen=True)
class DueFinal(StepTables):
    """A final table's step with something to do.

    Attributes:
        window: the window of staging.
        rebuild: why the table is computed from all of staging; empty: only from the window.
    """

    window: Window
    rebuild: str


@dataclass(frozen=True)
class FinalResult:
    """What a step wrote.

    Attributes:
        batch: the window.
        absorbed: the same, in numbers.
        strategy, why: how the rows were written.
        changes: column changes of the table.
    """

    batch: Batch
    absorbed: Absorbed
    strategy: str
    why: str
    changes: list[Change]


@dataclass(frozen=True)
class FinalStep(TableStep[FinalSpec, Pins]):
    """Merging: the rows that result from the events of a source table."""

    empty_sources: ClassVar[EmptySources] = "ignored"

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the window of the staging table."""
        return [pending_of(lake, self.spec, table, staging)[0] for staging in sources.values()]

    def batch(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: Pins) -> list[Window]:
        """Return the batch, or the whole window for a rebuild."""
        return [self._next_of(lake, table, staging)[0] for staging in sources.values()]

    def _next_of(self, lake: LakeBase, table: Table | None, staging: Table) -> tuple[Window, str]:
        """Return the window of the next step, and why the table is rebuilt; empty: it is not."""
        window, why = pending_of(lake, self.spec, table, staging)
        # A rebuilt table must not temporarily have fewer rows than before.
        return (window, why) if why else (cut(window, staging, self.spec.batch), "")

    def after_redeclaration(self, lake: LakeBase, table: Table, sources: Mapping[TableId, Table]) -> str:
        """Return how many events the next step reads, if it computes the table again."""
        staging = sources.get(self.spec.staging)
        why = reason_to_rebuild(lake, self.spec, table, staging) if staging is not None else None
        if not why or staging is None:
            return ""
        if backfill := review_of(table):
            return f"{in_review(self.spec.table, backfill)}"
        return f"{why}: the next run computes it again from {row_count(staging) or 0:,} events of {self.spec.staging}"

    def changed_settings(
        self, lake: LakeBase, table: Table, sources: Mapping[TableId, Table]
    ) -> tuple[ChangedSetting, ...]:
        """Return the settings that the rows were not computed by."""
        staging = sources.get(self.spec.staging)
        return changed_settings(self.spec, table, staging) if staging is not None else ()

    def due(self, lake: LakeBase, rebuild: str) -> DueFinal | Outcome:
        """Return the step, or the outcome if there is nothing to do; `rebuild`: why to absorb all of staging, if so."""
        found = tables_of(lake, self.spec)
        if isinstance(found, Outcome):
            return found
        table, staging = found.table, found.sources[self.spec.staging]
        if (backfill := review_of(table)) and table is not None and reason_to_rebuild(lake, self.spec, table, staging):
            raise in_review(self.spec.table, backfill)
        if rebuild and table is not None:
            window, why = Window(self.spec.staging, None, head_of(staging)), rebuild
        else:
            window, why = self._next_of(lake, table, staging)
        if window.head.snapshot is None or window.is_absorbed:
            return Outcome(str(self.spec.table), "nothing")
        return DueFinal(table, found.sources, window, why)

    def absorb(self, lake: LakeBase, pins: Pins, *, rebuild: bool = False) -> Outcome:
        """Merge the changed keys.

        Raises:
            KeyMissingError: a declared key column is not in the table, some events lack a key value, or an SCD2 table
                has no key.
            PipelineError: the declared columns do not match the table's columns.
            SnapshotExpiredError, TableReplacedError, LostEventsError, MissingDataFileError: the absorbed snapshot is no
                longer part of staging's history, and the table is declared to stop in this case.
            UnsupportedEventError: updates or deletes for an append table, or events without a value in a column of
                `order_by`.
            ConcurrentWriteError: another run wrote to the table at the same time.
            AuditFailedError: the table with the window's changes fails its audits. Nothing is published.
        """
        return self._absorb_or_rebuild(lake, REQUESTED if rebuild else "")

    def _absorb_or_rebuild(self, lake: LakeBase, rebuild: str) -> Outcome:
        return rebuilt_if_lost(self.spec, lambda why: self._absorb(lake, why), rebuild, self.recovery("on_gap"))

    def _absorb(self, lake: LakeBase, rebuild: str) -> Outcome:
        began = time.monotonic()
        due = self.due(lake, rebuild)
        if isinstance(due, Outcome):
            return due
        forget_failed(lake, self.spec.table, due.table)
        target = Target(lake, self.spec, is_new=bool(due.rebuild))
        target.gate.check(target.all_types)
        with contextlib.ExitStack() as scope:
            done = self.compute(due, target, scope)
        if isinstance(done, Refused):
            return self._absorb_or_rebuild(lake, done.reason)
        why = f"{due.rebuild}: it is rebuilt in one commit" if due.rebuild else ""
        return published(
            # Audits compare with the rows before the step, not with those whose columns it has converted.
            replace(done.batch.writer.commit, base=due.table),
            (done.absorbed,),
            strategy="rebuild" if due.rebuild else done.strategy,
            why="; ".join(filter(None, (why, done.why))),
            began=began,
            details=self._details(due, done),
        )

    def compute(self, due: DueFinal, target: Target, scope: contextlib.ExitStack) -> FinalResult | Refused:
        """Write the events of the window; or refuse, if the table has to be rebuilt instead.

        The events live until `scope` is closed.
        """
        lake, spec, window, before = target.lake, target.spec, due.window, _in_todays_form(target, due.window.mark)
        if not target.is_new and due.table is not None and (pairs := columns_to_unite(target)):
            return Refused(f"{', '.join(pairs)} are declared to be one column (`rename`)")
        captured = scope.enter_context(capture(lake, spec.staging, window.start, window.head.snapshot))
        scope.enter_context(tuned_for(lake, (), captured))
        events, without_row = window_events(target, captured)
        rows = captured.few_rows(thresholds.LOCAL_EVENTS)
        few = rows if isinstance(rows, Refused) else FewEvents.of(target, events, before)
        if isinstance(few, Refused):
            events = in_one_piece(events, captured).persist()
            scope.callback(events.unpersist)
            stats = stats_of(target, events, before)
        else:
            stats = few.stats()
        if stats.late and not target.is_new and has_other_keys(target, window.head.snapshot):
            late = "late events of a table with deletes by another key"
            return Refused(f"{late}: they may change which rows the deletes apply to")
        if stats.late or stats.partial_inserts or stats.truncated or target.mode == "scd2":
            # These steps also read histories and stored rows.
            scope.enter_context(tuned_for(lake, (spec.staging, spec.table)))
        marks = {**known_marks(due.table), str(spec.staging): _advanced(window.head, before, stats)}
        changes, commit = prepare_table(target, Commit(lake, spec.table, due.table, marks, target.gate))
        writer = TableWriter(commit, columns_of(lake, spec.table))
        last = few if isinstance(few, Refused) else few.last_of_keys(stats, writer.types)
        if not isinstance(few, Refused) and isinstance(last, Refused):
            events = few.frame(lake.spark())
        batch = Batch(target, events, stats, before, window.head, writer, last)
        if without_row:
            batch.details["deletes_without_row"] = without_row
        if not stats.events and target.mode != "append" and not target.is_new:
            writer.nothing()
            strategy, why = "none", "the window has no events"
        else:
            strategy, why = _APPLY[target.mode](batch)
        return FinalResult(batch, Absorbed.of(str(spec.staging), captured), strategy, why, changes)

    def _details(self, due: DueFinal, done: FinalResult) -> dict[str, object]:
        """Return the details of the outcome, among them why the table is not exact."""
        target, stats, details = done.batch.target, done.batch.stats, done.batch.details
        without_row = details.get("deletes_without_row", 0)
        reasons = [exactness.deletes_without_row(without_row)] if without_row else []
        reasons += [copies_or_repeats()] if details.get(DOUBTFUL) else []
        reasons += [exactness.set_back(stats.set_back)] if stats.set_back else []
        reasons += [reason] if (reason := reason_to_restart(target)) else []
        until = folded_until(due.sources[self.spec.staging])
        if target.is_new and until is not None and why_every_event(self.spec):
            reasons.append(exactness.events_folded(str(self.spec.staging), until))
        columns = exactness.Columns(
            {i.sources[0]: i.name for i in target.items.values() if i.is_plain},
            dict(zip(target.key, (target.projection.source[k][1] for k in target.source_key), strict=True))
            if target.mode == "scd1" and not target.spec.by_row
            else {},
        )
        inexact = exactness.of_final(
            target.lake, self.spec.table, self.spec.staging, columns, reasons,
            is_new=target.is_new, shows_times=target.mode == "scd2",
        )  # fmt: skip
        changes = [f"{c.kind} {c.column} {c.type}" for c in done.changes]
        return (
            {"events": stats.events}
            | (_horizon_warning(stats.old, self.spec) if stats.old else {})
            | details
            | left_behind(due.window)
            | exactness.details_of(inexact)
            | ({"schema_changes": changes} if changes else {})
        )


def all_rows(lake: LakeBase, spec: FinalSpec, table: Table, scope: contextlib.ExitStack) -> tuple[Target, DataFrame]:
    """Compute the rows that a final table should have, from all of staging as of the last absorbed snapshot.

    The rows can be read until `scope` is closed.

    Raises:
        NotRunError: the table has absorbed nothing yet.
        SnapshotExpiredError, SnapshotNotFoundError: the absorbed snapshot no longer exists.
        KeyMissingError, UnsupportedEventError: see `FinalStep.absorb`.
    """
    mark = read_marks(table).get(str(spec.staging))
    if mark is None or mark.snapshot is None:
        raise NotRunError(f"{spec.table} has absorbed nothing from {spec.staging} yet: run its pipeline first")
    target = Target(lake, spec, is_new=True)
    captured = scope.enter_context(capture(lake, spec.staging, None, mark.snapshot, table_uuid=mark.uuid))
    scope.enter_context(tuned_for(lake, (spec.staging, spec.table), captured))
    events = window_events(target, captured)[0].persist()
    scope.callback(events.unpersist)
    stats = stats_of(target, events, None)
    writer = TableWriter(Commit(lake, spec.table, table))  # the modes compute, and write nothing
    rows = _ROWS[target.mode](Batch(target, events, stats, None, mark, writer))
    return target, rows.select(*cols(target.all_types))


def _in_todays_form(target: Target, mark: Watermark | None) -> Watermark | None:
    """Return the watermark of a former version with its position as positions are written now."""
    if mark is None or mark.high is None or target.spec.order_by:
        return mark
    return replace(mark, high=(target.reader.upgraded(mark.high[0]), mark.high[1]))


def _horizon_warning(old: int, spec: FinalSpec) -> dict[str, object]:
    horizon = timedelta(seconds=spec.horizon or 0)
    warning = (
        f"LateEventsWarning: {spec.table}: {plural(old, 'event')} more than {horizon} older than events that had "
        "arrived before. All were absorbed, using the whole history of their keys. If such delays "
        "are normal, declare a wider `horizon`; if not, check the source that sends them"
    )
    return {"older_than_horizon": old, "warning": warning}


def _advanced(head: Watermark, before: Watermark | None, stats: Stats) -> Watermark:
    high, latest = (before.high, before.time) if before else (None, None)
    return replace(
        head,
        high=max(filter(None, (stats.high, high)), default=None),
        time=max((t for t in (stats.latest, latest) if t is not None), default=None),
        # A window without events does not end a transaction.
        transaction=stats.transaction if stats.events else before.transaction if before else None,
    )

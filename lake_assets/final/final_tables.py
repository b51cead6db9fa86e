"""Final tables: each source table's current rows, their history, or its inserts, kept up to date from staging.

This module has what all modes share: the window, the columns, the watermark. `scd1`, `scd2` and `append` apply the
events of a window.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.errors import NotRunError
from lake_assets.final.declaration import pending_of
from lake_assets.final.events.repeated_snapshots import reason_to_restart
from lake_assets.final.events.staging_events import has_other_keys, window_events
from lake_assets.final.events.window_stats import Batch, Stats, check_stats, stats_of
from lake_assets.final.final_ddl import columns_to_unite, prepare_table
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.modes import append, scd1, scd2
from lake_assets.final.modes.row_copies import DOUBTFUL, copies_or_repeats
from lake_assets.final.target import Target
from lake_assets.ingest.staging import exactness
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.watermark import Watermark, read_marks
from lake_assets.tables.audits.audit_gate import forget_failed
from lake_assets.tables.batch_limits import cut, cut_unless_rebuilt, left_behind
from lake_assets.tables.lost_history import rebuilt_if_lost
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, head_of, known_marks
from lake_assets.tables.published import published
from lake_assets.tables.schema_changes import Change
from lake_assets.tables.spark_tuning import in_one_piece, tuned_for
from lake_assets.tables.table_step import REQUESTED, EmptySources, TableStep, loaded
from lake_assets.tables.writing.table_ddl import columns_of
from lake_assets.tables.writing.table_writer import TableWriter

if TYPE_CHECKING:
    from lake_assets.models.steps.snapshot_pins import SnapshotPins

log = logging.getLogger(__name__)


def absorb_changes(lake: LakeBase, spec: FinalSpec, *, rebuild: str = "") -> Outcome:
    """Bring the final table up to date with the staging table.

    Args:
        lake: the lake.
        spec: the table.
        rebuild: the reason to compute the table from all of staging, whatever it has absorbed; empty: only changes.

    Raises:
        KeyMissingError: a declared key column is not in the table, some events lack a key value, or an SCD2 table has
            no key.
        PipelineError: the declared columns do not match the table's columns.
        SnapshotExpiredError, TableReplacedError, LostEventsError, MissingDataFileError: the absorbed snapshot is no
            longer part of staging's history, and the table is declared to stop in this case.
        UnsupportedEventError: updates or deletes for an append table, or events without a value in a column of
            `order_by`.
        ConcurrentWriteError: another run wrote to the table at the same time.
        AuditFailedError: the table with the window's changes fails its audits. Nothing is published.
    """
    return rebuilt_if_lost(spec, lambda reason: _absorb(lake, spec, reason), rebuild)


def _absorb(lake: LakeBase, spec: FinalSpec, rebuild: str) -> Outcome:
    began, name = time.monotonic(), str(spec.table)
    found = loaded(lake, spec)
    if isinstance(found, Outcome):
        return found
    table, staging = found.table, found.sources[spec.staging]
    if rebuild and table is not None:
        pending, rebuild_reason = Window(spec.staging, None, head_of(staging)), rebuild
    else:
        pending, rebuild_reason = pending_of(lake, spec, table, staging)
    if not rebuild_reason:
        # A rebuilt table must not temporarily have fewer rows than before.
        pending = cut(pending, staging, spec.batch)
    if pending.head.snapshot is None or pending.is_absorbed:
        return Outcome(name, "nothing")
    forget_failed(lake, spec.table, table)
    target = Target(lake, spec, is_new=bool(rebuild_reason))
    target.gate.check(target.all_types)
    result = _write(lake, target, pending, table)
    if isinstance(result, str):
        return absorb_changes(lake, spec, rebuild=result)
    why = result.why
    if rebuild_reason:
        why = "; ".join(filter(None, (f"{rebuild_reason}: it is rebuilt in one commit", why)))
    columns = exactness.Columns(
        {i.sources[0]: i.name for i in target.items.values() if i.is_plain},
        dict(zip(target.key, (target.projection.source[k][1] for k in target.source_key), strict=True))
        if target.mode == "scd1" and not spec.by_row
        else {},
    )
    without_row = result.batch.details.get("deletes_without_row", 0)
    stats, changes = result.batch.stats, result.changes
    seen = [exactness.deletes_without_row(without_row)] if without_row else []
    seen += [copies_or_repeats()] if result.batch.details.get(DOUBTFUL) else []
    seen += [exactness.set_back(stats.set_back)] if stats.set_back else []
    seen += [reason] if (reason := reason_to_restart(target)) else []
    inexact = exactness.of_final(
        lake, spec.table, spec.staging, columns, seen, is_new=target.is_new, shows_times=target.mode == "scd2"
    )
    return published(
        lake,
        spec.table,
        (result.absorbed,),
        strategy="rebuild" if rebuild_reason else result.strategy,
        why=why,
        began=began,
        marks=result.batch.writer.marks or {},
        former=table,
        gate=target.gate,
        details={"events": stats.events}
        | (_horizon_warning(stats.old, spec) if stats.old else {})
        | result.batch.details
        | left_behind(pending)
        | exactness.details_of(inexact)
        | ({"schema_changes": [f"{c.kind} {c.column} {c.type}" for c in changes]} if changes else {}),
    )


@dataclass(frozen=True)
class _Result:
    """The commit of a step.

    Attributes:
        changes: column changes of the table.
    """

    absorbed: Absorbed
    batch: Batch
    strategy: str
    why: str
    changes: list[Change]


def _write(lake: LakeBase, target: Target, pending: Window, table: Table | None) -> _Result | str:
    """Write the events of a window; or return the reason why the table has to be rebuilt instead."""
    spec, before = target.spec, _in_todays_form(target, pending.mark)
    if not target.is_new and table is not None and (pairs := columns_to_unite(target)):
        return f"{', '.join(pairs)} are declared to be one column (`rename`)"
    with capture(lake, spec.staging, pending.start, pending.head.snapshot) as captured, contextlib.ExitStack() as scope:
        scope.enter_context(tuned_for(lake, (), captured))
        events, without_row = window_events(target, captured)
        events = in_one_piece(events, captured).persist()
        scope.callback(events.unpersist)
        stats = stats_of(target, events, before)
        check_stats(target, stats)
        if stats.late and not target.is_new and has_other_keys(target, pending.head.snapshot):
            return "late events of a table with deletes by another key: they may change which rows the deletes apply to"
        if stats.late or stats.partial_inserts or stats.truncated or target.mode == "scd2":
            # These steps also read histories and stored rows.
            scope.enter_context(tuned_for(lake, (spec.staging, spec.table)))
        changes, now = prepare_table(target, table)
        marks = {**known_marks(table), str(spec.staging): _advanced(pending.head, before, stats)}
        writer = TableWriter(lake, spec.table, now, columns_of(lake, spec.table), marks, target.gate)
        batch = Batch(events, stats, before, pending.head, writer)
        if without_row:
            batch.details["deletes_without_row"] = without_row
        if not stats.events and target.mode != "append" and not target.is_new:
            writer.nothing()
            strategy, why = "none", "the window has no events"
        else:
            apply = {"scd1": scd1.apply, "scd2": scd2.apply, "append": append.apply}[target.mode]
            strategy, why = apply(target, batch)
        return _Result(Absorbed.of(str(spec.staging), captured), batch, strategy, why, changes)


def all_rows(lake: LakeBase, spec: FinalSpec, table: Table, scope: contextlib.ExitStack) -> tuple[Target, DataFrame]:
    """Compute the rows that a final table should have, from all of staging as of the last absorbed snapshot.

    Args:
        lake: the lake.
        spec: the table.
        table: the loaded table.
        scope: the rows can be read until it is closed.

    Raises:
        NotRunError: the table has absorbed nothing yet.
        SnapshotExpiredError, SnapshotNotFoundError: the absorbed snapshot no longer exists.
        KeyMissingError, UnsupportedEventError: see `absorb_changes`.
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
    check_stats(target, stats)
    compute = {"scd1": scd1.rebuild, "scd2": scd2.rebuild, "append": append.rebuild}[target.mode]
    writer = TableWriter(lake, spec.table, table, {}, None)  # the modes compute, and write nothing
    rows = compute(target, Batch(events, stats, None, mark, writer))
    return target, rows.select(*(F.col(quote(c)) for c in target.all_types))


def _in_todays_form(target: Target, mark: Watermark | None) -> Watermark | None:
    """Return the watermark of a former version with its position as positions are written now."""
    if mark is None or mark.high is None or target.spec.order_by:
        return mark
    return replace(mark, high=(target.reader.upgraded(mark.high[0]), mark.high[1]))


def _horizon_warning(old: int, spec: FinalSpec) -> dict[str, object]:
    horizon = timedelta(seconds=spec.horizon or 0)
    warning = (
        f"LateEventsWarning: {spec.table}: {old} events are more than {horizon} older than "
        "events that arrived before them. They were absorbed, using the whole history of their keys. If such delays "
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


@dataclass(frozen=True)
class FinalStep(TableStep[FinalSpec]):
    """Merging: the rows that result from the events of a source table."""

    empty_sources: ClassVar[EmptySources] = "ignored"

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the window of the staging table."""
        return [pending_of(lake, self.spec, table, staging)[0] for staging in sources.values()]

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return the batch, or the whole window for a rebuild, so the table never has fewer rows than before."""
        windows = [(pending_of(lake, self.spec, table, staging), staging) for staging in sources.values()]
        return [cut_unless_rebuilt(window, why, staging, self.spec.batch) for (window, why), staging in windows]

    def absorb(self, lake: LakeBase, pins: SnapshotPins, *, rebuild: bool = False) -> Outcome:
        """Merge the changed keys."""
        return absorb_changes(lake, self.spec, rebuild=REQUESTED if rebuild else "")

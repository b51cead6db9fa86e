"""Final tables: each source table's rows as they are now, their history, or its inserts, kept up to date from staging.

What all of them share is here: the window, the columns, the watermark. What is done with a window's events is in
`scd1`, `scd2` and `append`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, replace
from datetime import timedelta

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.errors import CorruptMetadataError, LostEventsError, MissingDataFileError, NotRunError
from lake_assets.final.declaration import pending_of
from lake_assets.final.events.staging_events import has_other_keys, window_events
from lake_assets.final.events.window_stats import Batch, Stats, check_stats, stats_of
from lake_assets.final.final_ddl import prepare_table
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.modes import append, scd1, scd2
from lake_assets.final.target import Target
from lake_assets.ingest.staging import exactness
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.foreign_errors import named_errors
from lake_assets.lake.metadata.watermark import Watermark, Watermarks, read_marks
from lake_assets.tables.audits.audit_gate import forget_failed
from lake_assets.tables.batch_limits import cut, left_behind
from lake_assets.tables.commits import commit_marks
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, head_of, known_marks, rebuild_advice
from lake_assets.tables.published import published
from lake_assets.tables.schema_changes import Change
from lake_assets.tables.spark_tuning import in_one_piece, tuned_for
from lake_assets.tables.table_ddl import check_owner_in

log = logging.getLogger(__name__)


def absorb_changes(lake: LakeBase, spec: FinalSpec, *, rebuild: str = "") -> Outcome:
    """Bring the final table to what the staging table has received.

    Args:
        lake: the lake.
        spec: the table.
        rebuild: why the table is computed from all that staging holds, whatever it has absorbed; empty: it is not.

    Raises:
        KeyMissingError: a declared key column is not in the table, or some events say nothing of it, or a history is
            wanted of rows without a key.
        PipelineError: the declared columns do not go with the table's.
        SnapshotExpiredError, TableReplacedError, LostEventsError, MissingDataFileError: what the table has absorbed is
            no longer part of staging's history, and the table is declared to stop then.
        UnsupportedEventError: updates or deletes of a table that rows are appended to, or events without a value in a
            column of the declared order.
        ConcurrentWriteError: another run was at it at the same time.
        AuditFailedError: what the window makes of the table does not pass its audits. Nothing is published.
    """
    try:
        with named_errors(spec.table):
            return _absorb(lake, spec, rebuild)
    except (LostEventsError, MissingDataFileError, CorruptMetadataError) as e:
        # What is wrong with a table's metadata is wrong for a rebuild as well.
        if rebuild or ".metadata.json" in str(e):
            raise
        if spec.on_gap == "stop":
            raise type(e)(f"{e}. {rebuild_advice(spec.table, spec.staging, option='on_gap')}") from e
        log.warning("%s: rebuilt: %s", spec.table, e)
        return _absorb(lake, spec, f"the history of {spec.staging} is lost ({e})")


def _absorb(lake: LakeBase, spec: FinalSpec, rebuild: str) -> Outcome:
    began, name = time.monotonic(), str(spec.table)
    staging, table = lake.find(spec.staging), lake.find(spec.table)
    if staging is None:
        return Outcome(name, "waiting", why=f"{spec.staging} does not exist yet")
    if table is not None:
        check_owner_in(table, spec.table, spec.pipeline)
    if rebuild and table is not None:
        pending, rebuild_reason = Window(spec.staging, None, head_of(staging)), rebuild
    else:
        pending, rebuild_reason = pending_of(lake, spec, table, staging)
    if not rebuild_reason:
        # A table that is made again is not to hold less than before meanwhile.
        pending = cut(pending, staging, spec.batch)
    if pending.head.snapshot is None or pending.is_absorbed:
        return Outcome(name, "nothing")
    forget_failed(lake, spec.table, table)
    target = Target(lake, spec, is_new=bool(rebuild_reason))
    target.gate.check(target.wanted)
    written = _written(lake, target, pending, known_marks(table))
    if isinstance(written, str):
        return absorb_changes(lake, spec, rebuild=written)
    why = written.why
    if rebuild_reason:
        why = "; ".join(filter(None, (f"{rebuild_reason}: it is made again, in one commit", why)))
    called = {i.sources[0]: i.name for i in target.items.values() if i.is_plain}
    without_row = written.batch.details.get("deletes_without_row", 0)
    inexact = exactness.of_final(lake, spec.table, spec.staging, called, without_row, is_new=target.is_new)
    stats, changes = written.batch.stats, written.changes
    return published(
        lake,
        spec.table,
        (written.absorbed,),
        strategy="rebuild" if rebuild_reason else written.strategy,
        why=why,
        began=began,
        marks=written.batch.marks,
        base=None if rebuild_reason else written.batch.base,
        former=table,
        gate=target.gate,
        details={"events": stats.events}
        | (_told(stats.old, spec) if stats.old else {})
        | written.batch.details
        | left_behind(pending)
        | exactness.details_of(inexact)
        | ({"schema_changes": [f"{c.kind} {c.column} {c.type}" for c in changes]} if changes else {}),
    )


@dataclass(frozen=True)
class _Written:
    """What a step has committed.

    Attributes:
        changes: how the table's columns followed those of staging.
    """

    absorbed: Absorbed
    batch: Batch
    strategy: str
    why: str
    changes: list[Change]


def _written(lake: LakeBase, target: Target, pending: Window, base: Watermarks) -> _Written | str:
    """Write the events of a window; or why the table has to be computed from all of them."""
    spec, before = target.spec, pending.mark
    with capture(lake, spec.staging, pending.start, pending.head.snapshot) as captured, contextlib.ExitStack() as scope:
        scope.enter_context(tuned_for(lake, (), captured))
        events, without_row = window_events(target, captured)
        events = in_one_piece(events, captured).persist()
        scope.callback(events.unpersist)
        stats = stats_of(target, events, before)
        check_stats(target, stats)
        if stats.late and not target.is_new and has_other_keys(target, pending.head.snapshot):
            return "late events of a table with deletes by another key: which rows these mean may change with them"
        if stats.late or stats.moved or stats.truncated or target.mode == "scd2":
            # Histories and stored rows are looked at as well.
            scope.enter_context(tuned_for(lake, (spec.staging, spec.table)))
        changes = prepare_table(target)
        marks = {**base, str(spec.staging): _moved(pending.head, before, stats)}
        batch = Batch(events, stats, before, pending.head, marks, base)
        if without_row:
            batch.details["deletes_without_row"] = without_row
        if not stats.events and target.mode != "append" and not target.is_new:
            commit_marks(lake, spec.table, marks)
            strategy, why = "none", "the window holds no event"
        else:
            apply = {"scd1": scd1.apply, "scd2": scd2.apply, "append": append.apply}[target.mode]
            strategy, why = apply(target, batch)
        return _Written(Absorbed.of(str(spec.staging), captured), batch, strategy, why, changes)


def all_rows(lake: LakeBase, spec: FinalSpec, table: Table, scope: contextlib.ExitStack) -> tuple[Target, DataFrame]:
    """What a final table has to hold, computed from all that staging held at the snapshot which it has absorbed.

    Args:
        lake: the lake.
        spec: the table.
        table: as it was loaded.
        scope: the rows can be read until it is closed.

    Raises:
        NotRunError: the table has absorbed nothing yet.
        SnapshotExpiredError, SnapshotNotFoundError: that snapshot is gone.
        KeyMissingError, UnsupportedEventError: see `absorb_changes`.
    """
    mark = read_marks(table).get(str(spec.staging))
    if mark is None or mark.snapshot is None:
        raise NotRunError(f"{spec.table} has absorbed nothing of {spec.staging} yet: run its pipeline first")
    target = Target(lake, spec, is_new=True)
    captured = scope.enter_context(capture(lake, spec.staging, None, mark.snapshot, table_uuid=mark.uuid))
    scope.enter_context(tuned_for(lake, (spec.staging, spec.table), captured))
    events = window_events(target, captured)[0].persist()
    scope.callback(events.unpersist)
    stats = stats_of(target, events, None)
    check_stats(target, stats)
    made = {"scd1": scd1.rebuild, "scd2": scd2.rebuild, "append": append.rebuild}[target.mode]
    rows = made(target, Batch(events, stats, None, mark, {}, {}))
    return target, rows.select(*(F.col(quote(c)) for c in target.wanted))


def _told(old: int, spec: FinalSpec) -> dict[str, object]:
    horizon = timedelta(seconds=spec.horizon or 0)
    warning = (
        f"LateEventsWarning: {spec.table}: {old} events are more than {horizon} older than "
        "others that had come before. They were absorbed, from the whole history of their keys. If that is usual, "
        "declare a wider `horizon`; if not, look at what sends them"
    )
    return {"older_than_horizon": old, "warning": warning}


def _moved(head: Watermark, before: Watermark | None, stats: Stats) -> Watermark:
    was, latest = (before.high, before.time) if before else (None, None)
    return replace(
        head,
        high=max(filter(None, (stats.high, was)), default=None),
        time=max((t for t in (stats.latest, latest) if t is not None), default=None),
        # A window without events ends no transaction.
        transaction=stats.transaction if stats.events else before.transaction if before else None,
    )

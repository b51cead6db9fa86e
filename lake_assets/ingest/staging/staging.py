"""Staging: the typed change events of one source table, each stored exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.errors import RecordsGoneError
from lake_assets.formats.event_model import POSITION
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw.shared_streams import arrived
from lake_assets.ingest.raw.source_snapshots import read_snapshots
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.batch_schemas import BatchWindow, BySource, find_schemas, shared_schemas
from lake_assets.ingest.records.parsing import Parsed, parse
from lake_assets.ingest.staging import exactness
from lake_assets.ingest.staging.raw_windows import (
    about,
    pending_of,
    reason_of_rollback,
    reason_to_wait,
    spelled,
    without_absorbed,
)
from lake_assets.ingest.staging.rereading import (
    IN_PLACE_PROPERTY,
    carries_both,
    doubled,
    in_place,
    reason_to_reread,
    reason_to_unite,
    retyped,
    starts_elsewhere,
)
from lake_assets.ingest.staging.staging_columns import (
    check_source,
    projection,
    rename_columns,
)
from lake_assets.ingest.staging.staging_rejects import misfitting_columns
from lake_assets.ingest.staging.staging_writes import StagingWriter, Written
from lake_assets.ingest.staging.tombstone_events import with_deletes
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.lake.rows_in_memory import rows_in_memory
from lake_assets.tables.batch_limits import cut, left_behind
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, head_of, known_marks
from lake_assets.tables.published import published
from lake_assets.tables.schema_changes import routed
from lake_assets.tables.spark_tuning import in_one_piece, is_small, tuned_for
from lake_assets.tables.table_step import REQUESTED, tables_of
from lake_assets.tables.writing.publication import loaded_again
from lake_assets.tables.writing.table_ddl import key_in, key_set_of
from lake_assets.tables.writing.table_writer import TableWriter


def absorb_events(lake: LakeBase, spec: StagingSpec, *, rebuild: bool = False) -> Outcome:
    """Append the events of new raw records of this source table; reject records that cannot be read.

    Args:
        lake: the lake.
        spec: the table.
        rebuild: whether to read all records of the raw table again and replace the table.

    Raises:
        TableReplacedError: the raw table was replaced by another one.
        RecordsGoneError: all records have to be read again, and raw no longer holds some of them. Nothing is written.
        RebuildError: there is no event to rebuild the table from. Nothing is written.
        RejectedLimitError: more records than declared cannot be read. Nothing is written.
        SchemaConflictError: a column cannot be widened to its new type in the stream. Nothing is written.
        TableClaimedError: the table belongs to another pipeline or another source table.
    """
    began, name = time.monotonic(), str(spec.table)
    found = tables_of(lake, spec)
    if isinstance(found, Outcome):
        return found
    table, raw = found.table, found.sources[spec.raw]
    check_source(spec, table)
    spec, rebuild = spelled(spec, table), rebuild and table is not None
    reread_reason: str | None
    if rebuild:
        pending, reread_reason = Window(spec.raw, None, head_of(raw)), REQUESTED
    else:
        pending, reread_reason = pending_of(spec, table, raw)
    if not reread_reason:
        pending = cut(pending, raw, spec.batch)
    if table is not None and not reread_reason and (why := reason_to_wait(lake, spec, table, raw, pending)):
        return Outcome(name, "waiting", why=why)
    if pending.is_absorbed or pending.head.snapshot is None:
        if table is None:
            return Outcome(name, "waiting", why=f"{spec.source_table}: no event has arrived yet")
        return Outcome(name, "nothing")
    if pending.is_empty:
        assert table is not None
        return _renamed(lake, spec, table, began)
    if not reread_reason and (reason := reason_of_rollback(lake, spec, raw, pending)):
        pending, reread_reason = Window(spec.raw, None, head_of(raw)), reason
    # The table, if all records are to be read again for a declared rename alone.
    renamed = table if table is not None and not rebuild and reread_reason == reason_to_unite(spec, table) else None
    if renamed is not None and reread_reason and carries_both(lake, spec, renamed):
        return _united_in_place(lake, spec, renamed)
    marks = {**({} if rebuild else known_marks(table)), str(spec.raw): pending.head}
    batch = _Batch(lake, spec, raw, table, pending, reread_reason or "", rebuild)
    try:
        absorbed, parsed, written = batch.write(marks)
    except RecordsGoneError:
        if renamed is None:
            raise
        return _united_in_place(lake, spec, renamed)
    details = written.details() | left_behind(pending)
    exists = lake.exists(spec.table)
    if exists:
        # Reading all records with the columns that the table has already does not tell when they appeared.
        is_whole = rebuild or bool(reread_reason and table is not None and starts_elsewhere(spec, table))
        details |= exactness.details_of(_inexact(lake, spec, parsed, written, bool(reread_reason), is_whole))
    if written.events is None and not exists:
        if pending.left:
            # Without a table there is no watermark, so the next run would read the same batch again.
            return absorb_events(lake, replace(spec, batch=spec.batch.doubled))
        why = "no event of it could be read" if written.rejected else "no event has arrived yet"
        return Outcome(name, "waiting", (absorbed,), why=f"{spec.source_table}: {why}", details=details)
    if written.events is None:
        assert table is not None
        TableWriter(lake, spec.table, table, {}, marks).nothing()
        return Outcome(
            name, "absorbed", (absorbed,), strategy="append", why="no events of this table",
            seconds=time.monotonic() - began, details=details,
        )  # fmt: skip
    strategy, why = batch.described
    return published(
        lake, spec.table, (absorbed,), strategy=strategy, why=why, began=began, marks=marks, details=details
    )


def _renamed(lake: LakeBase, spec: StagingSpec, table: Table, began: float) -> Outcome:
    """Give columns their declared names, without new records."""
    changes = rename_columns(lake, spec)
    # The commit makes tables downstream follow; they read the columns that the snapshot has.
    _commit_nothing(lake, spec.table, table)
    why = "columns were renamed (`rename`)"
    details = Written(0, 0, changes=tuple(changes)).details() | exactness.details_of(
        _inexact(lake, spec, None, Written(0, 0))
    )
    seconds = time.monotonic() - began
    return Outcome(str(spec.table), "absorbed", strategy="none", why=why, seconds=seconds, details=details)


def _commit_nothing(lake: LakeBase, name: TableId, before: Table, settings: Mapping[str, str] | None = None) -> None:
    """Commit table properties, and changes of the columns, that tables downstream have to follow."""
    now = loaded_again(lake, name, before)
    TableWriter(lake, name, now, {}, known_marks(now), settings=settings or {}).nothing()


def _united_in_place(lake: LakeBase, spec: StagingSpec, table: Table) -> Outcome:
    """Keep both columns of a declared rename, which tables downstream read as one, and go on with new records."""
    kept = in_place(table) | doubled(spec, table)
    # The commit tells tables downstream that a step is due.
    _commit_nothing(lake, spec.table, table, {IN_PLACE_PROPERTY: json.dumps(kept)})
    seen = [exactness.renamed_in_place(old, new, str(spec.raw)) for old, new in kept.items()]
    inexact = exactness.of_staging(lake, spec, seen, has_rejects=False)
    outcome = absorb_events(lake, spec)
    why = "; ".join(filter(None, (f"{spec.raw} cannot be read again for `rename`: columns stay apart", outcome.why)))
    return replace(
        outcome, status="absorbed", strategy=outcome.strategy or "none", why=why,
        details=outcome.details | exactness.details_of(inexact),
    )  # fmt: skip


@dataclass(frozen=True)
class _Batch:
    """A window of the raw table for one staging table.

    Attributes:
        table: the staging table; None: it does not exist yet.
        reread_reason: why every record is read again; empty: only new ones are.
        is_fresh: whether the table gets the columns and key of the records, ignoring those it has.
    """

    lake: LakeBase
    spec: StagingSpec
    raw: Table
    table: Table | None
    pending: Window
    reread_reason: str
    is_fresh: bool

    @property
    def described(self) -> tuple[str, str]:
        """Strategy, and the reason for it."""
        if self.reread_reason:
            return "rebuild", f"{self.reread_reason}: every record is read again"
        if self.pending.lost:
            return "append", f"{self.pending.lost.why}: new records are found by their positions"
        return "append", "every event is kept"

    def write(self, marks: Watermarks) -> tuple[Absorbed, Parsed, Written]:
        """Read the records, and write their events."""
        lake, spec, pending = self.lake, self.spec, self.pending
        # Many source tables may share a raw table: settings depend on the number of records about this one.
        own_rows = arrived(self.raw, pending.start, pending.head.snapshot, spec.source_table)
        with (
            capture(lake, spec.raw, pending.start, pending.head.snapshot) as captured,
            tuned_for(lake, (), captured, own_rows),
        ):
            # After a rollback, or after records were routed again, the window holds rows that were absorbed before.
            is_new = captured.window.is_forward and all(f.side == "after" for f in captured.files)
            captured_rows = in_one_piece(captured.upserts(lake.spark()), captured, own_rows)
            records = about(captured_rows, spec)
            # Schemas are only shared if every record counts.
            counts_all = not spec.start and (self.reread_reason or not pending.lost)
            schemas = _schemas(spec, pending, captured_rows) if counts_all and is_small(captured) else None
            if pending.lost and not self.reread_reason:
                records, is_new = without_absorbed(lake, spec, records), False
            # A large batch is read completely at once: planning hardly counts there, and reading it twice would.
            is_little = is_small(captured, own_rows)
            if self.is_fresh:
                parsed = parse(records, spec, {}, schemas_by_source=schemas, is_usual=is_little)
            else:
                parsed = _parsed(
                    lake, spec, records, is_reread=bool(self.reread_reason), schemas=schemas, is_usual=is_little
                )
            parsed = with_deletes(lake, spec, parsed, is_whole=bool(self.reread_reason))
            writer = StagingWriter(lake, spec, self.table, records, marks)
            if self.reread_reason:
                written = writer.replace(parsed, is_fresh=self.is_fresh)
            elif is_new and writer.may_append(parsed, is_little):
                written = writer.append(parsed)
            else:
                written = writer.merge(parsed)
            if self.table is None and written.events is not None:
                # Earlier runs without a table read the same records, perhaps with another declaration: remove their
                # rejects.
                positions = [r["position"] for r in written.bad]
                rejects.forget_others(lake, spec.raw, str(spec.source_table), positions)
            return Absorbed.of(str(spec.raw), captured), parsed, written


def replay(lake: LakeBase, spec: StagingSpec) -> Outcome:
    """Read the table's rejected records again, and absorb those that can be read now.

    Raises:
        ConcurrentWriteError: another writer was quicker; nothing is lost, run again.
    """
    began, name, source = time.monotonic(), str(spec.table), str(spec.source_table)
    rejected = rejects.rejected_of(spec.raw)
    if not lake.exists(rejected) or not lake.exists(spec.raw):
        return Outcome(name, "nothing")
    spark = lake.spark()
    listed = spark.table(lake.sql_name(rejected)).where(F.col("source_table") == source)
    before = listed.select("position").distinct().persist()
    try:
        if not before.count():
            return Outcome(name, "nothing")
        table = lake.find(spec.table)
        check_source(spec, table)
        spec = spelled(spec, table)
        if table is None or reason_to_reread(spec, table):
            # All records have to be read anyway, not only the rejected ones.
            return _replayed_by_rereading(lake, spec, {r["position"] for r in before.collect()})
        raw = about(spark.table(lake.sql_name(spec.raw)), spec)
        records = _with_later_tombstones(spec, raw, raw.join(F.broadcast(before), "position", "left_semi"), before)
        # They were within the limit of their batch: records that still cannot be read must not block the others.
        unlimited = replace(spec, max_rejected=None)
        parsed = with_deletes(lake, unlimited, _parsed(lake, unlimited, records), is_whole=False)
        written = StagingWriter(lake, unlimited, table, records, None).merge(parsed)
        # A record is no longer rejected once all of its events are in staging.
        bad = {r["position"] for r in written.bad}
        good = [r["position"] for r in before.collect() if r["position"] not in bad]
    finally:
        before.unpersist()
    if written.events is None:
        good = []
    if good:
        rejects.forget(lake, spec.raw, source, good)
    if lake.exists(spec.table):
        _inexact(lake, spec, None, replace(written, rejected=max(1, written.rejected)))
    return Outcome(
        name, "absorbed" if good else "nothing", inserted=written.events or 0, strategy="replay",
        why=f"{len(good)} records can be read now, {len(bad)} cannot", seconds=time.monotonic() - began,
        details=written.details(),
    )  # fmt: skip


def _with_later_tombstones(spec: StagingSpec, raw: DataFrame, records: DataFrame, replayed: DataFrame) -> DataFrame:
    """Return the replayed records and all later tombstones: the event before a tombstone gives it its place."""
    tombstone = spec.reader.tombstone
    if tombstone is None:
        return records
    first = replayed.agg(F.min("position")).collect()[0][0]
    later = raw.where((F.col("position") > first) & F.expr(tombstone))
    return records.unionByName(later.join(F.broadcast(replayed), "position", "left_anti"))


def _replayed_by_rereading(lake: LakeBase, spec: StagingSpec, before: set[int]) -> Outcome:
    """Absorb all records again; `before`: positions of the rejected ones."""
    outcome = absorb_events(lake, spec)
    if not lake.exists(spec.table):
        return replace(outcome, status="nothing")
    spark, source = lake.spark(), str(spec.source_table)
    listed = spark.table(lake.sql_name(rejects.rejected_of(spec.raw))).where(F.col("source_table") == source)
    bad = before & {r["position"] for r in listed.select("position").collect()}
    good = rows_in_memory(spark, [(p,) for p in sorted(before - bad)], f"{POSITION} bigint")
    events = spark.table(lake.sql_name(spec.table)).join(F.broadcast(good), POSITION, "left_semi")
    why = f"{len(before - bad)} records can be read now, {len(bad)} cannot; {outcome.why}"
    return replace(outcome, inserted=events.count(), deleted=0, why=why)


# --- writing ----------------------------------------------------------------------------------------------------


def _inexact(
    lake: LakeBase,
    spec: StagingSpec,
    parsed: Parsed | None,
    written: Written,
    is_reread: bool = False,
    is_whole: bool = False,
) -> tuple[exactness.Reason, ...]:
    """Store and return the reasons why the table, and tables downstream, are not exact."""
    seen = [exactness.saturated(c) for c in written.saturated]
    if parsed is not None:
        left_out = [c for c in parsed.left_out if c not in {old for old, _ in parsed.renames}]
        seen += [exactness.generated(c) for c in exactness.only_read(lake, spec, left_out, is_whole=is_whole)]
        seen += [exactness.added_with_default(parsed.filled[c], parsed.since.get(c)) for c in parsed.defaults]
        seen += [exactness.renamed(old, new, spec.rename, parsed.since.get(new)) for old, new in parsed.renames]
        seen += [exactness.by_time()] if parsed.is_by_time else []
        seen += [exactness.deleted_by_tombstones()] if parsed.has_tombstones else []
    if written.misfits:
        seen += [exactness.taken_as_null(c) for c in misfitting_columns(lake, spec.table)]
    mark, raw = known_marks(lake.table(spec.table)).get(str(spec.raw)), lake.find(spec.raw)
    if mark is not None and mark.snapshot is not None and raw is not None:
        last = read_snapshots(raw, mark.snapshot).get(str(spec.source_table))
        if last and last.is_repeated and last.is_complete and last.start > spec.start:
            seen.append(exactness.read_again(last.start))
    return exactness.of_staging(
        lake, spec, seen, has_rejects=bool(written.rejected), is_reread=is_reread, is_whole=is_whole
    )


def _schemas(spec: StagingSpec, window: Window, records: DataFrame) -> BySource | None:
    """Return the schemas of all records of a small window, shared with the steps of the stream's other tables.

    In a big window, each table reads its own records only: they are stored together, and the others are skipped.
    """
    assert window.head.snapshot is not None
    key = BatchWindow(window.head.uuid, window.start, window.head.snapshot, f"{spec.format} {spec.layout or ''}")
    return shared_schemas(key, lambda: find_schemas(records.where("source_table IS NOT NULL"), spec.reader))


def _parsed(
    lake: LakeBase,
    spec: StagingSpec,
    records: DataFrame,
    *,
    is_reread: bool = False,
    schemas: BySource | None = None,
    is_usual: bool = False,
) -> Parsed:
    table = lake.find(spec.table)
    if table is None or (is_reread and starts_elsewhere(spec, table)):
        return parse(records, spec, {}, schemas_by_source=schemas, is_usual=is_usual)
    projected = projection(lake, spec.table, spec.rename)
    # With the declared names, so that an event that uses the new name does not count as leaving the column out.
    columns = {spec.rename.get(name, name): kind for name, (kind, _) in projected.items()}
    if is_reread:
        for name in retyped(spec, table):
            columns = {c: kind for c, kind in columns.items() if c != name and c not in routed(name, columns)}
    key_set = key_set_of(table, spec.keys, spec.rename) if spec.keys else ()
    key = () if is_reread else tuple(spec.rename.get(k, k) for k in key_in(table))
    return parse(records, spec, columns, key, key_set, schemas, is_usual=is_usual)

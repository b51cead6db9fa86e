"""The step of a staging table: the typed change events of one source table, each stored exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.errors import RecordsGoneError, Refused
from lake_assets.formats.event_model import POSITION
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw_tables import arrived, routes_of
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.batch_schemas import BatchWindow, BySource, find_schemas, shared_schemas
from lake_assets.ingest.records.parsing import Parsed, parse
from lake_assets.ingest.staging.closed_rejects import without_closed
from lake_assets.ingest.staging.due_records import (
    IN_PLACE_PROPERTY,
    DueRecords,
    about,
    carries_both,
    doubled,
    in_place,
    pending_of,
    reason_to_reread,
    retyped,
    spelled,
)
from lake_assets.ingest.staging.exactness import details_of, renamed_in_place
from lake_assets.ingest.staging.staging_columns import check_source, projection, rename_columns
from lake_assets.ingest.staging.staging_exactness import add_reasons, store_reasons
from lake_assets.ingest.staging.staging_writes import StagingWriter, Written
from lake_assets.ingest.staging.tombstone_events import with_deletes
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.row_counts import row_count
from lake_assets.lake.names import nearest
from lake_assets.lake.rows_in_memory import rows_in_memory
from lake_assets.tables.batch_limits import cut, left_behind
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, head_of, known_marks
from lake_assets.tables.published import published
from lake_assets.tables.schema_changes import routed
from lake_assets.tables.spark_tuning import in_one_piece, is_small, tuned_for
from lake_assets.tables.table_step import REQUESTED, EmptySources, Pins, TableStep, tables_of
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import key_in, key_set_of
from lake_assets.tables.writing.table_writer import TableWriter


@dataclass(frozen=True)
class StagingStep(TableStep[StagingSpec, Pins]):
    """Parsing: the typed change events of one source table."""

    has_rejects: ClassVar[bool] = True
    empty_sources: ClassVar[EmptySources] = "ignored"

    @property
    def written_tables(self) -> tuple[TableId, ...]:
        """The staging table, and the rejects of its raw table."""
        return self.spec.table, rejects.rejected_of(self.spec.raw)

    def lost_file_advice(self, table: TableId) -> str:
        """Return the advice; a raw table cannot be rebuilt."""
        if table != self.spec.raw:
            return super().lost_file_advice(table)
        return f"Restore the file from a backup; or roll {table} back to a snapshot without it"

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the window of the raw table, from the first commit with records for this table."""
        return [pending_of(self.spec, table, raw)[0] for raw in sources.values()]

    def batch(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: Pins) -> list[Window]:
        """Return the batch, or the whole window if every record is read again."""
        windows = [(pending_of(self.spec, table, raw), raw) for raw in sources.values()]
        return [window if why else cut(window, raw, self.spec.batch) for (window, why), raw in windows]

    def after_redeclaration(self, lake: LakeBase, table: Table, sources: Mapping[TableId, Table]) -> str:
        """Return how many records the next step reads, if it reads all of them again."""
        raw, why = sources.get(self.spec.raw), reason_to_reread(spelled(self.spec, table), table)
        if not why or raw is None:
            return ""
        return f"{why}: the next run reads all {row_count(raw) or 0:,} records of {self.spec.raw} again"

    def due(self, lake: LakeBase, *, rebuild: bool) -> DueRecords | Outcome:
        """Return the records to read, or the outcome if there is nothing to do.

        The window may be empty: then only columns are due to be renamed.
        """
        found = tables_of(lake, self.spec)
        if isinstance(found, Outcome):
            return found
        name, table, raw = str(self.spec.table), found.table, found.sources[self.spec.raw]
        check_source(self.spec, table)
        spec, rebuild = spelled(self.spec, table), rebuild and table is not None
        if rebuild:
            window, reread = Window(spec.raw, None, head_of(raw)), REQUESTED
        else:
            window, reread = pending_of(spec, table, raw)
        window = window if reread else cut(window, raw, spec.batch)
        due = DueRecords(lake, spec, table, raw, window, reread or "", rebuild)
        if why := due.reason_to_wait():
            return Outcome(name, "waiting", why=why)
        if not window.is_absorbed and window.head.snapshot is not None:
            due.check_kept()
            return due.after_rollback()
        if table is None:
            return Outcome(name, "waiting", why=nothing_yet(spec, raw))
        return Outcome(name, "nothing")

    def absorb(self, lake: LakeBase, pins: Pins, *, rebuild: bool = False) -> Outcome:
        """Append the events of new records; see `stage`."""
        return self.stage(lake, rebuild=rebuild)

    def stage(self, lake: LakeBase, *, rebuild: bool = False) -> Outcome:
        """Append the events of new raw records of this source table; reject records that cannot be read.

        Raises:
            TableReplacedError: the raw table was replaced by another one.
            RecordsGoneError: all records have to be read again, and raw no longer holds some of them. Nothing is
                written.
            RebuildError: there is no event to rebuild the table from. Nothing is written.
            RejectedLimitError: more records than declared cannot be read. Nothing is written.
            SchemaConflictError: a column cannot be widened to its new type in the stream. Nothing is written.
            TableClaimedError: the table belongs to another pipeline or another source table.
        """
        began = time.monotonic()
        due = self.due(lake, rebuild=rebuild)
        if isinstance(due, Outcome):
            return due
        spec, table, name = due.spec, due.table, str(due.spec.table)
        if due.window.is_empty:
            assert table is not None
            return _renamed(Commit(lake, spec.table, table, known_marks(table)), spec, began)
        if due.unites and table is not None and carries_both(lake, spec, table):
            return self._united_in_place(lake, spec, table)
        try:
            absorbed, parsed, written = _write_events(due)
        except RecordsGoneError:
            if table is None or not due.unites:
                raise
            return self._united_in_place(lake, spec, table)
        details = written.details() | left_behind(due.window)
        exists = lake.exists(spec.table)
        if exists:
            reasons = store_reasons(
                lake, spec, parsed, written,
                is_reread=bool(due.reread), is_whole=due.is_whole, is_new=table is None,
            )  # fmt: skip
            details |= details_of(reasons)
        if written.events is None and not exists:
            if due.window.left:
                # Without a table there is no watermark, so the next run would read the same batch again.
                return replace(self, spec=replace(spec, batch=spec.batch.doubled)).stage(lake)
            unread = f"{spec.source_table}: no event of it could be read"
            why = unread if written.rejected else nothing_yet(spec, due.raw)
            return Outcome(name, "waiting", (absorbed,), why=why, details=details)
        if written.events is None:
            TableWriter(due.commit).nothing()
            return Outcome(
                name, "absorbed", (absorbed,), strategy="append", why="no events of this table",
                seconds=time.monotonic() - began, details=details,
            )  # fmt: skip
        strategy, why = due.described
        return published(due.commit, (absorbed,), strategy=strategy, why=why, began=began, details=details)

    def replay(self, lake: LakeBase) -> Outcome:
        """Read the table's rejected records again, and absorb those that can be read now.

        Raises:
            ConcurrentWriteError: another writer was quicker; nothing is lost, run again.
        """
        began, name, source = time.monotonic(), str(self.spec.table), str(self.spec.source_table)
        listed = rejects.listed_of(lake, self.spec.raw, source, "open")
        if listed is None or not lake.exists(self.spec.raw):
            return Outcome(name, "nothing")
        before = listed.select("position").distinct().persist()
        try:
            if not before.count():
                return Outcome(name, "nothing")
            table = lake.find(self.spec.table)
            check_source(self.spec, table)
            spec = spelled(self.spec, table)
            if table is None or reason_to_reread(spec, table):
                # All records have to be read anyway, not only the rejected ones.
                return self._replayed_by_rereading(lake, {r["position"] for r in before.collect()})
            raw = about(lake.spark().table(lake.sql_name(spec.raw)), spec)
            records = _with_later_tombstones(spec, raw, raw.join(F.broadcast(before), "position", "left_semi"), before)
            # They were within the limit of their batch: records that still cannot be read must not block the others.
            unlimited = replace(spec, max_rejected=None)
            parsed = parse(records, unlimited, *known_of(lake, unlimited, table))
            parsed = without_closed(lake, unlimited, records, with_deletes(lake, unlimited, parsed, is_whole=False))
            written = StagingWriter(Commit(lake, spec.table, table), unlimited, records).merge(parsed)
            # A record is no longer rejected once all of its events are in staging.
            bad = {r["position"] for r in written.bad}
            good = [r["position"] for r in before.collect() if r["position"] not in bad]
        finally:
            before.unpersist()
        if written.events is None:
            good = []
        if good:
            rejects.forget(lake, spec.raw, source, good)
        store_reasons(lake, spec, None, replace(written, rejected=max(1, written.rejected)))
        return Outcome(
            name, "absorbed" if good else "nothing", inserted=written.events or 0, strategy="replay",
            why=f"{plural(len(good), 'record')} can be read now, {len(bad)} cannot", seconds=time.monotonic() - began,
            details=written.details(),
        )  # fmt: skip

    def _replayed_by_rereading(self, lake: LakeBase, before: set[int]) -> Outcome:
        """Absorb all records again; `before`: positions of the rejected ones."""
        spec, outcome = self.spec, self.stage(lake)
        if not lake.exists(spec.table):
            return replace(outcome, status="nothing")
        spark, listed = lake.spark(), rejects.listed_of(lake, spec.raw, str(spec.source_table), "open")
        assert listed is not None
        bad = before & {r["position"] for r in listed.select("position").collect()}
        good = rows_in_memory(spark, [(p,) for p in sorted(before - bad)], f"{POSITION} bigint")
        events = spark.table(lake.sql_name(spec.table)).join(F.broadcast(good), POSITION, "left_semi")
        why = f"{plural(len(before - bad), 'record')} can be read now, {len(bad)} cannot; {outcome.why}"
        return replace(outcome, inserted=events.count(), deleted=0, why=why)

    def _united_in_place(self, lake: LakeBase, spec: StagingSpec, table: Table) -> Outcome:
        """Keep both columns of a declared rename, which tables downstream read as one, and go on with new records."""
        kept = in_place(table) | doubled(spec, table)
        settings = {IN_PLACE_PROPERTY: json.dumps(kept)}
        # The commit tells tables downstream that a step is due.
        commit = Commit(lake, spec.table, table, known_marks(table), settings=settings)
        TableWriter(commit.after_own_changes()).nothing()
        inexact = add_reasons(lake, spec, [renamed_in_place(old, new, str(spec.raw)) for old, new in kept.items()])
        outcome = self.stage(lake)
        why = f"{spec.raw} cannot be read again for `rename`: columns stay apart"
        return replace(
            outcome, status="absorbed", strategy=outcome.strategy or "none",
            why="; ".join(filter(None, (why, outcome.why))), details=outcome.details | details_of(inexact),
        )  # fmt: skip


def nothing_yet(spec: StagingSpec, raw: Table) -> str:
    """Return that no event of a source table has arrived, with the table of the stream that may be meant."""
    near = nearest(str(spec.source_table), map(str, routes_of(raw)))
    return f"{spec.source_table}: no event has arrived yet{near}"


def _renamed(commit: Commit, spec: StagingSpec, began: float) -> Outcome:
    """Give columns their declared names, without new records."""
    commit.check_unchanged()
    changes = rename_columns(commit.lake, spec)
    # The commit makes tables downstream follow; they read the columns that the snapshot has.
    TableWriter(commit.after_own_changes()).nothing()
    why, written = "columns were renamed (`rename`)", Written(0, 0, changes=tuple(changes))
    details = written.details() | details_of(store_reasons(commit.lake, spec, None, written))
    seconds = time.monotonic() - began
    return Outcome(str(spec.table), "absorbed", strategy="none", why=why, seconds=seconds, details=details)


# --- reading and writing ----------------------------------------------------------------------------------------


def _write_events(due: DueRecords) -> tuple[Absorbed, Parsed, Written]:
    """Read the records, and write their events."""
    lake, spec, table, window = due.lake, due.spec, due.table, due.window
    # Many source tables may share a raw table: settings depend on the number of records about this one.
    own_rows = arrived(due.raw, window.start, window.head.snapshot, spec.source_table)
    with (
        capture(lake, spec.raw, window.start, window.head.snapshot) as captured,
        tuned_for(lake, (), captured, own_rows),
    ):
        # After a rollback, or after records were routed again, the window holds rows that were absorbed before.
        is_new = captured.window.is_forward and all(f.side == "after" for f in captured.files)
        captured_rows = in_one_piece(captured.upserts(lake.spark()), captured, own_rows)
        records = about(captured_rows, spec)
        # Schemas are only shared if every record counts.
        counts_all = not spec.start and (due.reread or not window.lost)
        few = captured.few_rows()
        held = None if isinstance(few, Refused) else few
        schemas = _schemas(due, captured_rows, held) if counts_all and is_small(captured) else None
        if window.lost and not due.reread:
            records, is_new = due.without_absorbed(records), False
        # A large batch is read completely at once: planning hardly counts there, and reading it twice would.
        is_little = is_small(captured, own_rows)
        is_reread = bool(due.reread)
        known = known_of(lake, spec, None if due.is_whole else table, is_reread=is_reread)
        parsed = parse(records, spec, *known, schemas_by_source=schemas, is_usual=is_little)
        parsed = with_deletes(lake, spec, parsed, is_whole=is_reread)
        if is_reread or table is None or not is_new:
            parsed = without_closed(lake, spec, records, parsed)
        writer = StagingWriter(due.commit, spec, records)
        if due.reread:
            written = writer.replace(parsed, is_fresh=due.is_fresh)
        elif is_new and writer.may_append(parsed, is_little):
            written = writer.append(parsed)
        else:
            written = writer.merge(parsed)
        if table is None and written.events is not None:
            # Earlier runs without a table read the same records.
            writer.forget_rejects_but(written)
        return Absorbed.of(str(spec.raw), captured), parsed, written


def _schemas(due: DueRecords, records: DataFrame, held: pa.Table | None) -> BySource | None:
    """Return the schemas of all records of a small window, shared with the steps of the stream's other tables.

    In a big window, each table reads its own records only: they are stored together, and the others are skipped.
    """
    spec, window = due.spec, due.window
    assert window.head.snapshot is not None
    key = BatchWindow(window.head.uuid, window.start, window.head.snapshot, f"{spec.format} {spec.layout or ''}")
    return shared_schemas(key, lambda: find_schemas(records.where("source_table IS NOT NULL"), spec.reader, held))


def known_of(
    lake: LakeBase, spec: StagingSpec, table: Table | None, *, is_reread: bool = False
) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Return the columns, the key, and the one of several declared keys, of a table that more records are read for."""
    if table is None:
        return {}, (), ()
    # With the declared names, so that an event that uses the new name does not count as leaving the column out.
    projected = projection(lake, spec.table, spec.rename)
    columns = {spec.rename.get(name, name): kind for name, (kind, _) in projected.items()}
    if is_reread:
        for name in retyped(spec, table):
            columns = {c: kind for c, kind in columns.items() if c != name and c not in routed(name, columns)}
    key_set = key_set_of(table, spec.keys, spec.rename) if spec.keys else ()
    key = () if is_reread else tuple(spec.rename.get(k, k) for k in key_in(table))
    return columns, key, key_set


def _with_later_tombstones(spec: StagingSpec, raw: DataFrame, records: DataFrame, replayed: DataFrame) -> DataFrame:
    """Return the replayed records and all later tombstones: the event before a tombstone gives it its place."""
    tombstone = spec.reader.tombstone
    if tombstone is None:
        return records
    first = replayed.agg(F.min("position")).collect()[0][0]
    later = raw.where((F.col("position") > first) & F.expr(tombstone))
    return records.unionByName(later.join(F.broadcast(replayed), "position", "left_anti"))

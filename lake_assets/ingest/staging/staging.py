"""Staging: the change events of one source table, with its types, every one kept exactly once."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.formats import event_format
from lake_assets.formats.event_model import MANY, POSITION
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw.shared_streams import arrived, nothing_until
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.batch_schemas import BatchWindow, BySource, find_schemas, shared_schemas
from lake_assets.ingest.records.parsing import Parsed, parse
from lake_assets.ingest.staging import exactness
from lake_assets.ingest.staging.rereading import reason_to_reread, retyped, starts_elsewhere
from lake_assets.ingest.staging.staging_tables import check_source, projection
from lake_assets.ingest.staging.staging_writes import Written, append_batch, may_append, merge_batch, replace_table
from lake_assets.lake import LakeBase
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.tables.batch_limits import cut, left_behind
from lake_assets.tables.commits import commit_marks
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, head_of, known_marks, rebuild_advice, window_of
from lake_assets.tables.published import published
from lake_assets.tables.schema_changes import routed
from lake_assets.tables.spark_tuning import in_one_piece, is_small, tuned_for
from lake_assets.tables.table_ddl import check_owner, key_in, key_set_of


def absorb_events(lake: LakeBase, spec: StagingSpec, *, rebuild: bool = False) -> Outcome:
    """Append what the raw table has received for this source table; what cannot be read is rejected.

    Args:
        lake: the lake.
        spec: the table.
        rebuild: whether all records that the raw table holds are read again, and the table is replaced by their events.

    Raises:
        TableReplacedError: the raw table is another one than the one that was absorbed.
        RecordsGoneError: all records have to be read again, and some that the table was made of are gone. Nothing is
            written.
        RebuildError: there is no event to rebuild the table from. Nothing is written.
        RejectedLimitError: more records than declared cannot be read. Nothing is written.
        SchemaConflictError: a column's type cannot become what the stream says now. Nothing is written.
        TableClaimedError: the table's name belongs to something else: another pipeline, or another source table.
    """
    began = time.monotonic()
    name = str(spec.table)
    raw = lake.find(spec.raw)
    if raw is None:
        return Outcome(name, "waiting", why=f"{spec.raw} does not exist yet")
    table = lake.find(spec.table)
    check_source(spec, table)
    rebuild = rebuild and table is not None
    again: str | None
    if rebuild:
        check_owner(lake, spec.table, spec.pipeline)
        pending, again = Window(spec.raw, None, head_of(raw)), "a rebuild was requested"
    else:
        pending, again = pending_of(spec, table, raw)
    if not again:
        pending = cut(pending, raw, spec.batch)
    if pending.is_absorbed or pending.head.snapshot is None:
        if table is None:
            return Outcome(name, "waiting", why=f"{spec.source_table}: no event has arrived yet")
        return Outcome(name, "nothing")
    base = known_marks(table)
    marks = {**({} if rebuild else base), str(spec.raw): pending.head}
    batch = _Batch(lake, spec, raw, table, pending, again or "", rebuild)
    absorbed, parsed, written = batch.write(marks, base)
    details = written.details() | left_behind(pending)
    is_there = lake.exists(spec.table)
    if is_there:
        details |= exactness.said_in(_inexact(lake, spec, parsed, bool(written.rejected), is_whole=bool(again)))
    if written.events is None and not is_there:
        if pending.left:
            # Without a table there is no watermark: the next run would begin with the same batch.
            return absorb_events(lake, replace(spec, batch=spec.batch.doubled))
        why = "no event of it could be read" if written.rejected else "no event has arrived yet"
        return Outcome(name, "waiting", (absorbed,), why=f"{spec.source_table}: {why}", details=details)
    if written.events is None:
        commit_marks(lake, spec.table, marks)
        return Outcome(
            name, "absorbed", (absorbed,), strategy="append", why="no events of this table",
            seconds=time.monotonic() - began, details=details,
        )  # fmt: skip
    strategy, why = batch.described
    return published(
        lake, spec.table, (absorbed,), strategy=strategy, why=why, began=began, marks=marks, details=details
    )


@dataclass(frozen=True)
class _Batch:
    """A window of the raw table for one staging table.

    Attributes:
        table: the staging table; None: it does not exist yet.
        again: why every record is read again; empty: new ones are.
        is_fresh: whether the table gets the columns and the key that the records have now, whatever it had before.
    """

    lake: LakeBase
    spec: StagingSpec
    raw: Table
    table: Table | None
    pending: Window
    again: str
    is_fresh: bool

    @property
    def described(self) -> tuple[str, str]:
        """Strategy and reason."""
        if self.again:
            return "rebuild", f"{self.again}: every record is read again"
        if self.pending.lost:
            return "append", f"{self.pending.lost.why}: records are known by their positions"
        return "append", "every event is kept"

    def write(self, marks: Watermarks, base: Watermarks) -> tuple[Absorbed, Parsed, Written]:
        """Read the records, and write their events."""
        lake, spec, pending = self.lake, self.spec, self.pending
        # A raw table may be that of many: what counts is how much of it is about this one.
        mine = arrived(self.raw, pending.start, pending.head.snapshot, spec.source_table)
        with (
            capture(lake, spec.raw, pending.start, pending.head.snapshot) as captured,
            tuned_for(lake, (), captured, mine),
        ):
            # Rows that the raw table had before come again where it was rolled back, or where they were routed anew.
            is_new = captured.window.is_forward and all(f.side == "after" for f in captured.files)
            everything = in_one_piece(captured.upserts(lake.spark()), captured, mine)
            records = about(everything, spec)
            # Where some records do not count, the others may look different from all of them.
            counts_all = not spec.start and (self.again or not pending.lost)
            found = _schemas(spec, pending, everything) if counts_all and is_small(captured) else None
            if pending.lost and not self.again:
                records, is_new = _unknown(lake, spec, records), False
            if self.is_fresh:
                parsed = parse(records, spec, {}, found=found)
            else:
                parsed = _parsed(lake, spec, records, again=bool(self.again), found=found)
            if self.again:
                assert self.table is not None
                written = replace_table(lake, spec, self.table, records, parsed, marks, is_fresh=self.is_fresh)
            elif is_new and may_append(lake, spec, parsed, is_small(captured, mine)):
                written = append_batch(lake, spec, records, parsed, marks, base)
            else:
                written = merge_batch(lake, spec, records, parsed, marks)
            if self.table is None and written.events is not None:
                # Until there was a table, each run read the same records, and what was declared may have changed since.
                positions = [r["position"] for r in written.bad]
                rejects.forget_others(lake, spec.raw, str(spec.source_table), positions)
            return Absorbed.of(str(spec.raw), captured), parsed, written


def pending_of(spec: StagingSpec, table: Table | None, raw: Table) -> tuple[Window, str | None]:
    """Return what has still to be absorbed of the raw table, and why that is all of it once more (see `rereading`).

    Many tables share a raw table: the window begins where its commits say that they brought something for this one.
    Where none has, nothing is pending, and the watermark stays where it is.

    Where the raw table's history is lost, the window is all that it holds: its records are known by their positions.

    Raises:
        TableReplacedError: the raw table is another one than the one that was absorbed.
    """
    found = window_of(spec.table, table, spec.raw, raw)
    if found.lost and found.lost.option == "on_replaced":
        raise found.lost.error(rebuild_advice(spec.table, spec.raw))
    reached = nothing_until(raw, found.start, found.head.snapshot, spec.source_table)
    if reached != found.start and not _has_former_names(spec, table):
        found = replace(found, mark=replace(found.mark or found.head, snapshot=reached))
    again = reason_to_reread(spec, table) if table is not None else None
    return (replace(found, mark=None, lost=None), again) if again else (found, None)


def _has_former_names(spec: StagingSpec, table: Table | None) -> bool:
    """Whether columns are declared to be called otherwise: what lies below follows with the next step, of whatever."""
    return table is not None and not spec.rename.keys().isdisjoint(f.name for f in table.schema().fields)


def about(records: DataFrame, spec: StagingSpec) -> DataFrame:
    """The records of a raw table that are about the source table, alone or with others, and count."""
    mine = records.where(F.col("source_table").isin(str(spec.source_table), MANY))
    return mine.where(F.col("position") >= spec.start) if spec.start else mine


def replay(lake: LakeBase, spec: StagingSpec) -> Outcome:
    """Read the table's rejected records again, and take in those that can be read now.

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
        if table is None or reason_to_reread(spec, table):
            # Read alone, they would pass for all records of what is declared now.
            return _replayed_by_rereading(lake, spec, {r["position"] for r in before.collect()})
        raw = about(spark.table(lake.sql_name(spec.raw)), spec)
        records = raw.join(F.broadcast(before), "position", "left_semi")
        # They were within the limit of their batch: those that are left must not keep the others out.
        unlimited = replace(spec, max_rejected=None)
        written = merge_batch(lake, unlimited, records, _parsed(lake, unlimited, records), None)
        # A record is rejected no longer if every event of it is in staging.
        bad = {r["position"] for r in written.bad}
        good = [r["position"] for r in before.collect() if r["position"] not in bad]
    finally:
        before.unpersist()
    if written.events is None:
        good = []
    if good:
        rejects.forget(lake, spec.raw, source, good)
    if lake.exists(spec.table):
        _inexact(lake, spec, None, has_rejects=True)
    return Outcome(
        name, "absorbed" if good else "nothing", inserted=written.events or 0, strategy="replay",
        why=f"{len(good)} records can be read now, {len(bad)} cannot", seconds=time.monotonic() - began,
        details=written.details(),
    )  # fmt: skip


def _replayed_by_rereading(lake: LakeBase, spec: StagingSpec, before: set[int]) -> Outcome:
    """Absorb all records, the rejected ones among them; `before`: the positions of these."""
    read = absorb_events(lake, spec)
    if not lake.exists(spec.table):
        return replace(read, status="nothing")
    spark, source = lake.spark(), str(spec.source_table)
    listed = spark.table(lake.sql_name(rejects.rejected_of(spec.raw))).where(F.col("source_table") == source)
    bad = before & {r["position"] for r in listed.select("position").collect()}
    good = spark.createDataFrame([(p,) for p in sorted(before - bad)], f"{POSITION} bigint")
    events = spark.table(lake.sql_name(spec.table)).join(F.broadcast(good), POSITION, "left_semi")
    why = f"{len(before - bad)} records can be read now, {len(bad)} cannot; {read.why}"
    return replace(read, inserted=events.count(), deleted=0, why=why)


# --- writing ----------------------------------------------------------------------------------------------------


def _unknown(lake: LakeBase, spec: StagingSpec, records: DataFrame) -> DataFrame:
    """The records of which there is neither an event in the table nor a rejected one."""
    spark = lake.spark()
    known = spark.table(lake.sql_name(spec.table)).select(F.col(POSITION).alias("position"))
    rejected = rejects.rejected_of(spec.raw)
    if lake.exists(rejected):
        listed = spark.table(lake.sql_name(rejected)).where(F.col("source_table") == str(spec.source_table))
        known = known.unionAll(listed.select("position"))
    return records.join(known.distinct(), "position", "left_anti")


def _inexact(
    lake: LakeBase, spec: StagingSpec, parsed: Parsed | None, has_rejects: bool, *, is_whole: bool = False
) -> tuple[exactness.Reason, ...]:
    """Store and return why the table, and what is made of it, is not exact."""
    seen: list[exactness.Reason] = []
    if parsed is not None:
        seen += [exactness.added_with_default(c) for c in parsed.defaults]
        seen += [exactness.renamed(old, new) for old, new in parsed.renames]
    return exactness.of_staging(lake, spec, seen, has_rejects=has_rejects, is_whole=is_whole)


def _schemas(spec: StagingSpec, window: Window, records: DataFrame) -> BySource | None:
    """The schemas of all records of a small window, which the steps of the stream's other tables share.

    Of a big one each table looks at its own: records of one table lie beside each other, and the others are skipped.
    """
    assert window.head.snapshot is not None
    key = BatchWindow(window.head.uuid, window.start, window.head.snapshot, spec.format)
    return shared_schemas(
        key, lambda: find_schemas(records.where("source_table IS NOT NULL"), event_format(spec.format))
    )


def _parsed(
    lake: LakeBase, spec: StagingSpec, records: DataFrame, *, again: bool = False, found: BySource | None = None
) -> Parsed:
    table = lake.find(spec.table)
    if table is None or (again and starts_elsewhere(spec, table)):
        return parse(records, spec, {}, found=found)
    known = projection(lake, spec.table, spec.rename)
    # Under the names that they are to have: an event that says the new one leaves nothing out.
    columns = {spec.rename.get(name, name): kind for name, (kind, _) in known.items()}
    if again:
        for name in retyped(spec, table):
            columns = {c: kind for c, kind in columns.items() if c != name and c not in routed(name, columns)}
    key_set = key_set_of(table, spec.keys, spec.rename) if spec.keys else ()
    key = () if again else tuple(spec.rename.get(k, k) for k in key_in(table))
    return parse(records, spec, columns, key, key_set, found)

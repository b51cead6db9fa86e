"""Staging: the change events of one source table, with its types, every one kept exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.errors import RebuildError, RecordsGoneError
from lake_assets.formats import event_format
from lake_assets.formats.event_model import INDEX, MANY, MISFITS, POSITION
from lake_assets.ingest import exactness, rejects
from lake_assets.ingest.batch_schemas import BatchWindow, BySource, find_schemas, shared_schemas
from lake_assets.ingest.event_rows import BAD
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.parsing import Parsed, parse
from lake_assets.ingest.raw_tables import arrived, nothing_until
from lake_assets.ingest.rereading import GENERATION_PROPERTY, generation_of, reason_to_reread, retyped, starts_elsewhere
from lake_assets.ingest.sequence_kinds import PROPERTY as ORDER_PROPERTY
from lake_assets.ingest.sequence_kinds import (
    Kind,
    Look,
    MixedKindsError,
    first_kind,
    kind_of,
    kind_sql,
    to_property,
    with_unplaced,
)
from lake_assets.ingest.staging_tables import (
    PARTITIONED_BY,
    check_source,
    columns_in,
    make,
    prepare,
    projection,
    properties_for,
    set_property,
    sort_by,
)
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.foreign_errors import as_named, is_unreadable
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.lake.names import literal
from lake_assets.tables.batch_limits import cut, left_behind
from lake_assets.tables.commits import append_if_unmoved, commit_marks, committing, counts, snapshot_of
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, head_of, known_marks, rebuild_advice, window_of
from lake_assets.tables.schema_changes import Change, routed
from lake_assets.tables.spark_frames import observed, temp_view
from lake_assets.tables.spark_tuning import in_one_piece, is_small, tuned_for
from lake_assets.tables.table_ddl import KEY_PROPERTY, by_key, check_owner, columns_of, key_in, key_set_of


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
    # A raw table may be that of many: what counts is how much of it is about this one.
    mine = arrived(raw, pending.start, pending.head.snapshot, spec.source_table)
    with (
        capture(lake, spec.raw, pending.start, pending.head.snapshot) as captured,
        tuned_for(lake, (), captured, mine),
    ):
        absorbed = Absorbed.of(str(spec.raw), captured)
        # Rows that the raw table had before come again where it was rolled back, or where they were routed anew.
        is_new = captured.window.is_forward and all(f.side == "after" for f in captured.files)
        everything = in_one_piece(captured.upserts(lake.spark()), captured, mine)
        records = about(everything, spec)
        # Where some records do not count, the others may look different from all of them.
        counts_all = not spec.start and (again or not pending.lost)
        found = _schemas(spec, pending, everything) if counts_all and is_small(captured) else None
        if pending.lost and not again:
            records, is_new = _unknown(lake, spec, records), False
        parsed = (
            parse(records, spec, {}, found=found)
            if rebuild
            else _parsed(lake, spec, records, again=bool(again), found=found)
        )
        if again:
            assert table is not None
            written = _replaced(lake, spec, table, records, parsed, marks, is_fresh=rebuild)
        elif is_new and _may_append(lake, spec, parsed, is_small(captured, mine)):
            written = _append(lake, spec, records, parsed, marks, base)
        else:
            written = _merged(lake, spec, records, parsed, marks)
        if table is None and written.events is not None:
            # Until there was a table, each run read the same records, and what was declared may have changed since.
            rejects.forget_others(lake, spec.raw, str(spec.source_table), [r["position"] for r in written.bad])
        details = written.details() | left_behind(pending)
        if lake.exists(spec.table):
            details |= exactness.said_in(_inexact(lake, spec, parsed, bool(written.rejected), is_whole=bool(again)))
        if written.events is None:
            if not lake.exists(spec.table):
                if pending.left:
                    # Without a table there is no watermark: the next run would begin with the same batch.
                    return absorb_events(lake, replace(spec, batch=spec.batch.doubled))
                why = "no event of it could be read" if written.rejected else "no event has arrived yet"
                return Outcome(name, "waiting", (absorbed,), why=f"{spec.source_table}: {why}", details=details)
            commit_marks(lake, spec.table, marks)
            return Outcome(name, "absorbed", (absorbed,), strategy="append", why="no events of this table",
                           seconds=time.monotonic() - began, details=details)  # fmt: skip
    snapshot = snapshot_of(lake, spec.table, marks)
    inserted, updated, deleted = counts(snapshot)
    how = ("append", "every event is kept")
    if again:
        how = ("rebuild", f"{again}: every record is read again")
    elif pending.lost:
        how = ("append", f"{pending.lost.why}: records are known by their positions")
    return Outcome(
        name, "absorbed", (absorbed,), inserted, updated, deleted, *how,
        time.monotonic() - began, snapshot.snapshot_id if snapshot else None, details,
    )  # fmt: skip


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
        written = _merged(lake, unlimited, records, _parsed(lake, unlimited, records), None)
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


@dataclass(frozen=True)
class _Written:
    """What became of a batch.

    Attributes:
        events: how many good events it held; None: no event could be told from the others, so that no table was made.
        rejected: how many records or events were rejected.
        bad: their `position`s.
        changes: how the table's columns followed.
        misfits: how many good events have values that do not fit, and are null instead.
    """

    events: int | None
    rejected: int
    bad: tuple[Row, ...] = ()
    changes: tuple[Change, ...] = ()
    misfits: int = 0

    def details(self) -> dict[str, object]:
        """For the outcome."""
        found: dict[str, object] = {"rejected": self.rejected} if self.rejected else {}
        if self.misfits:
            found["misfits"] = self.misfits
        if self.changes:
            found["schema_changes"] = [f"{c.kind} {c.column} {c.type}" for c in self.changes]
        return found


def _may_append(lake: LakeBase, spec: StagingSpec, parsed: Parsed, is_little: bool) -> bool:
    """Whether nothing has to be known of a batch before it is written."""
    if parsed.rows is None or spec.max_rejected is not None:
        return False  # too many rejects: then nothing is written
    # A table is made of its first event: a batch without one says nothing of its columns and key.
    # To read a small one, count its events and make the table with them is less work than to make an empty table first.
    return lake.exists(spec.table) or (not is_little and bool(parsed.rows.where(F.col(BAD).isNull()).limit(1).count()))


def _append(
    lake: LakeBase, spec: StagingSpec, records: DataFrame, parsed: Parsed, marks: Watermarks, base: Watermarks
) -> _Written:
    """Write a batch of new records in one pass, to a branch; put down what cannot be read; publish."""
    assert parsed.rows is not None
    changes = prepare(lake, spec, parsed.rows, parsed)
    seen, look = Observation(), Look(kind_sql(spec), kind_of(lake, spec))
    good = observed(parsed.rows, seen, *_counts(parsed.rows), *look.columns)
    rows = _fitted(lake, spec.table, good.where(F.col(BAD).isNull()), parsed.rows.columns)
    rejected: list[Row] = []

    def record_rejects() -> None:
        _record_kind(lake, spec, look.found(seen))
        if seen.get["bad"] or parsed.refused is not None:
            rejected.extend(_put_down(lake, spec, parsed.rows, parsed, records))

    try:
        append_if_unmoved(lake, spec.table, rows, marks, base, record_rejects)
    except MixedKindsError:
        written = _merged(lake, spec, records, parsed, marks)
        return replace(written, changes=(*changes, *written.changes))
    events = seen.get["events"] - seen.get["bad"]
    return _Written(events, len(rejected), tuple(rejected), tuple(changes), seen.get["misfits"])


def _record_kind(lake: LakeBase, spec: StagingSpec, kind: Kind | None) -> None:
    """Before the events are published: killed in between, the next run finds the same of them."""
    if kind_sql(spec) is None or not lake.exists(spec.table):
        return
    if lake.table(spec.table).properties.get(ORDER_PROPERTY) != to_property(kind):
        set_property(lake, spec.table, ORDER_PROPERTY, to_property(kind))


def _merged(
    lake: LakeBase, spec: StagingSpec, records: DataFrame, parsed: Parsed, marks: Watermarks | None
) -> _Written:
    """Write what is not there yet."""

    def write(good: DataFrame, stats: Row) -> list[Change] | None:
        if stats["events"] == stats["bad"] and (marks is None or not lake.exists(spec.table)):
            return None
        if marks is not None and not lake.exists(spec.table):
            make(lake, spec, good, parsed, marks)
            return []
        changes = prepare(lake, spec, good, parsed)
        _merge(lake, spec.table, good, stats["first"], stats["last"], marks)
        return changes

    return _sifted(lake, spec, records, parsed, kind_of(lake, spec), write)


def _replaced(
    lake: LakeBase,
    spec: StagingSpec,
    table: Table,
    records: DataFrame,
    parsed: Parsed,
    marks: Watermarks,
    *,
    is_fresh: bool,
) -> _Written:
    """Make the table of all events again, in one commit: readers see the old table or the new one.

    What is computed of the table notices by its generation, which the same commit sets: events that were staged before
    may be gone, and a window of new events does not tell that.

    Args:
        lake: the lake.
        spec: the table.
        table: the same, as it is.
        records: all records about it.
        parsed: the same, read.
        marks: the watermarks that the commit carries.
        is_fresh: whether it gets the columns and the key that the records have now, whatever it had before.

    Raises:
        RecordsGoneError: the raw table no longer holds all that the table was made of.
        RebuildError: there is no event to rebuild it from.
    """
    _check_complete(lake, spec, table, records)
    key = parsed.key or (() if is_fresh else key_in(table))

    def write(good: DataFrame, stats: Row | None = None) -> list[Change] | None:
        if is_fresh and (stats is None or stats["events"] == stats["bad"]):
            return None
        columns = columns_in(good)
        properties = {
            **spec.properties,
            **properties_for(spec, parsed),
            KEY_PROPERTY: json.dumps(key),
            GENERATION_PROPERTY: str(generation_of(table) + 1),
        }
        said = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        rows = good.select(*(F.col(quote(c)) for c in columns))
        with temp_view(by_key(rows, key)) as view, committing(lake.spark(), spec.table, marks):
            lake.spark().sql(
                f"CREATE OR REPLACE TABLE {lake.sql_name(spec.table)} USING iceberg PARTITIONED BY ({PARTITIONED_BY}) "
                f"TBLPROPERTIES ({said}) AS SELECT * FROM {view}"
            )
        if key:
            sort_by(lake, spec.table, key)
        return []

    written = _sifted(lake, spec, records, parsed, None, write)
    if written.events is None and is_fresh:
        raise RebuildError(
            f"{spec.table}: {spec.raw} holds no event of {spec.source_table} that can be read, so there is nothing to "
            f"rebuild it from. {spec.table} is left as it is; drop it if it is no longer wanted"
        )
    if written.events is None:
        write(lake.spark().table(lake.sql_name(spec.table)).limit(0))
        written = replace(written, events=0)
    rejects.forget_others(lake, spec.raw, str(spec.source_table), [r["position"] for r in written.bad])
    return written


def _unknown(lake: LakeBase, spec: StagingSpec, records: DataFrame) -> DataFrame:
    """The records of which there is neither an event in the table nor a rejected one."""
    spark = lake.spark()
    known = spark.table(lake.sql_name(spec.table)).select(F.col(POSITION).alias("position"))
    rejected = rejects.rejected_of(spec.raw)
    if lake.exists(rejected):
        listed = spark.table(lake.sql_name(rejected)).where(F.col("source_table") == str(spec.source_table))
        known = known.unionAll(listed.select("position"))
    return records.join(known.distinct(), "position", "left_anti")


def _check_complete(lake: LakeBase, spec: StagingSpec, table: Table, records: DataFrame) -> None:
    """Raise RecordsGoneError where staging has events whose records the raw table no longer holds.

    The positions of a raw table that was dropped and made again say nothing about the one before: a rebuild of its
    staging tables is requested because of that.
    """
    mark, raw = known_marks(table).get(str(spec.raw)), lake.table(spec.raw)
    if mark is not None and mark.uuid != head_of(raw).uuid:
        return
    events = lake.spark().table(lake.sql_name(spec.table)).where(F.col(POSITION) >= spec.start)
    lost = events.join(records.select(F.col("position").alias(POSITION)), POSITION, "left_anti")
    counted = lost.agg(F.count("*").alias("n"), F.min(POSITION).alias("low"), F.max(POSITION).alias("high"))
    try:
        row = counted.collect()[0]
    except Exception as e:
        if not is_unreadable(e, table.location()):
            raise
        raise RebuildError(
            f"{spec.table} is left as it is: a file of it cannot be read ({as_named(e, str(spec.table)) or e}), so "
            f"that nothing tells whether {spec.raw} still holds the records of all its events. If it does, drop "
            f"{spec.table}, run the pipeline, then `lake-assets rebuild` what is made of it"
        ) from e
    if row["n"]:
        raise RecordsGoneError(
            f"{spec.table} holds {row['n']:,} events whose records {spec.raw} no longer holds (positions {row['low']} "
            f"to {row['high']}), so reading all records again would lose them. Nothing was written. Restore these "
            f"records: run the pipeline if {spec.raw} was rolled back and can take them in again, or roll it back to "
            "a snapshot that has them. If this follows a change of `key`, `types` or `start_position`, undoing the "
            f"change works as well. To begin with what {spec.raw} holds now, drop {spec.table} and run the pipeline"
        )


def _sifted(
    lake: LakeBase,
    spec: StagingSpec,
    records: DataFrame,
    parsed: Parsed,
    kind: Kind | None,
    write: Callable[[DataFrame, Row], list[Change] | None],
) -> _Written:
    """Put down what cannot be read, and then write the good events; in this order, so that a run that is killed in
    between has lost nothing.

    Args:
        lake: the lake.
        spec: the table.
        records: the batch.
        parsed: the same, read.
        kind: what orders the events before these; None: none are, or it does not matter.
        write: called with the good events and what is known of the batch; None: there was nothing to write.
    """
    rows = parsed.rows.persist() if parsed.rows is not None else None
    sql = kind_sql(spec)
    try:
        if rows is not None and sql is not None:
            kind = kind or first_kind(rows.where(F.col(BAD).isNull()), sql)
            rows = with_unplaced(rows, sql, kind) if kind else rows
        stats = _stats(rows)
        bad: list[Row] = []
        if (stats and stats["bad"]) or parsed.refused is not None:
            bad = _put_down(lake, spec, rows, parsed, records)
        changes = None
        _record_kind(lake, spec, kind)
        if rows is not None and stats is not None:
            changes = write(rows.where(F.col(BAD).isNull()).drop(BAD), stats)
        if stats is None or changes is None:
            return _Written(None, len(bad), tuple(bad))
        _record_kind(lake, spec, kind)  # the table may have been made just now
        return _Written(stats["events"] - stats["bad"], len(bad), tuple(bad), tuple(changes), stats["misfits"])
    finally:
        if parsed.rows is not None:
            parsed.rows.unpersist()


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


def _put_down(
    lake: LakeBase, spec: StagingSpec, rows: DataFrame | None, parsed: Parsed, records: DataFrame
) -> list[Row]:
    """Write what cannot be read to the table of rejected records; returns `position` and `reason` of each."""
    bad = _bad(rows, parsed)
    found = bad.select("position", "reason").orderBy("position").collect() if bad is not None else []
    if bad is None or not found:
        return []
    name = str(spec.table)
    rejects.check_limit(name, spec.max_rejected, len(found), records.count(), found[0]["reason"])
    first, last = found[0]["position"], found[-1]["position"]
    rejects.reject(lake, spec.raw, str(spec.source_table), _described(bad, records), first, last)
    return found


def _fitted(lake: LakeBase, table: TableId, rows: DataFrame, there: Collection[str]) -> DataFrame:
    """All columns of the table, in its order and with its types; `there`: those that the rows have."""
    return rows.selectExpr(
        *(
            f"CAST({quote(n) if n in there else 'NULL'} AS {kind}) AS {quote(n)}"
            for n, kind in columns_of(lake, table).items()
        )
    )


def _stats(rows: DataFrame | None) -> Row | None:
    if rows is None:
        return None
    stats = rows.agg(
        *_counts(rows),
        F.min(POSITION).alias("first"),
        F.max(POSITION).alias("last"),
    ).collect()[0]
    return stats if stats["events"] else None


def _counts(rows: DataFrame) -> list[Column]:
    misfits = f"{BAD} IS NULL AND {MISFITS} IS NOT NULL" if MISFITS in rows.columns else "false"
    return [
        F.count(F.lit(1)).alias("events"),
        F.count(BAD).alias("bad"),
        F.expr(f"count_if({misfits}) AS misfits"),
    ]


def _bad(rows: DataFrame | None, parsed: Parsed) -> DataFrame | None:
    """`position`, `event_index` and `reason` of everything that is rejected."""
    found: list[DataFrame] = []
    if rows is not None:
        bad = rows.where(F.col(BAD).isNotNull())
        found.append(bad.select(F.col(POSITION).alias("position"), F.col(INDEX).alias("event_index"), _reason()))
    if parsed.refused is not None:
        found.append(parsed.refused.select("position", F.lit(0).alias("event_index"), _reason()))
    return found[0].unionAll(found[1]) if len(found) > 1 else found[0] if found else None


def _reason() -> Column:
    return F.left(F.col(BAD), F.lit(2_000)).alias("reason")


def _described(bad: DataFrame, records: DataFrame) -> DataFrame:
    columns = ("position", "record", "source_file", "source_line", "arrived_at")
    return bad.join(records.select(*columns), "position")


def _merge(lake: LakeBase, table: TableId, rows: DataFrame, first: int, last: int, marks: Watermarks | None) -> None:
    """Insert the rows whose place in the stream is not there yet.

    A plain append would do, were there never two runs at once: Iceberg lets both append. This MERGE reads (and is
    validated against) the positions of the window only, so that the second one finds a conflict instead.
    """
    names = [f.name for f in rows.schema.fields]
    types = columns_of(lake, table)
    rows = rows.select(*(F.col(quote(n)).cast(types[n]).alias(n) for n in names))
    listed = ", ".join(quote(n) for n in names)
    position, index = quote(POSITION), quote(INDEX)
    with temp_view(rows) as view, committing(lake.spark(), table, marks):
        lake.spark().sql(
            f"MERGE INTO {lake.sql_name(table)} t USING {view} s ON t.{position} = s.{position} "
            f"AND t.{index} = s.{index} AND t.{position} BETWEEN {int(first)} AND {int(last)} "
            f"WHEN MATCHED AND t.{position} < 0 THEN UPDATE SET t.{position} = s.{position} "
            f"WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({', '.join('s.' + quote(n) for n in names)})"
        )

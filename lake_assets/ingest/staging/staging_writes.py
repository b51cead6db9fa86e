"""Writing a staging batch: append it, merge it, or replace the table by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql import functions as F

from lake_assets.errors import RebuildError, RecordsGoneError
from lake_assets.formats.event_model import DELETE, INDEX, OP, POSITION, SEQUENCE
from lake_assets.formats.sequences import ORDINALS
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.ingest.records.sequence_kinds import PROPERTY as ORDER_PROPERTY
from lake_assets.ingest.records.sequence_kinds import (
    Kind,
    Look,
    MixedKindsError,
    check_one_changelog,
    first_kind,
    kind_of,
    kind_sql,
    to_property,
    with_unplaced,
)
from lake_assets.ingest.staging.rereading import GENERATION_PROPERTY, generation_of
from lake_assets.ingest.staging.staging_columns import (
    PARTITIONED_BY,
    columns_in,
    make,
    prepare,
    properties_for,
    set_property,
    sort_by,
)
from lake_assets.ingest.staging.staging_rejects import batch_stats, event_counts, record_rejects, records_in
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.foreign_errors import as_named, is_unreadable
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.lake.names import literal
from lake_assets.tables.commits import append_if_unmoved, committing
from lake_assets.tables.pending_windows import head_of, known_marks
from lake_assets.tables.schema_changes import Change
from lake_assets.tables.spark_frames import observed, temp_view
from lake_assets.tables.table_ddl import KEY_PROPERTY, by_key, columns_of, key_in


@dataclass(frozen=True)
class Written:
    """Counts and changes of a written batch.

    Attributes:
        events: number of good events; None if there was none to create the table from.
        rejected: number of rejected records.
        bad: rows with their `position`.
        changes: changes of the table's columns.
        misfits: number of good events with values that do not fit and are null instead.
        saturated: columns with values that stand for ones beyond their type.
    """

    events: int | None
    rejected: int
    bad: tuple[Row, ...] = ()
    changes: tuple[Change, ...] = ()
    misfits: int = 0
    saturated: tuple[str, ...] = ()

    def details(self) -> dict[str, object]:
        """Details of the outcome."""
        details: dict[str, object] = {"rejected": self.rejected} if self.rejected else {}
        if self.misfits:
            details["misfits"] = self.misfits
        if self.changes:
            details["schema_changes"] = [f"{c.kind} {c.column} {c.type}" for c in self.changes]
        return details


def _written(
    events: int, bad: Sequence[Row], changes: Sequence[Change], stats: Mapping[str, Any], parsed: Parsed
) -> Written:
    """Return what was written; `stats` are the results of `event_counts`."""
    saturated = tuple(c for i, c in enumerate(parsed.saturating) if stats[f"saturated{i}"])
    return Written(events, records_in(bad), tuple(bad), tuple(changes), stats["misfits"], saturated)


def may_append(lake: LakeBase, spec: StagingSpec, parsed: Parsed, is_little: bool) -> bool:
    """Whether a batch can be written in one pass, without counting its rejects first."""
    if parsed.rows is None or spec.max_rejected is not None:
        return False  # with too many rejects, nothing must be written
    # A new table needs an event for its columns and key. For a small batch, creating the table with its rows is cheaper
    # than creating an empty table first.
    return lake.exists(spec.table) or (not is_little and bool(parsed.rows.where(F.col(BAD).isNull()).limit(1).count()))


def append_batch(
    lake: LakeBase, spec: StagingSpec, records: DataFrame, parsed: Parsed, marks: Watermarks, base: Watermarks
) -> Written:
    """Write a batch of new records to a branch in one pass, record the rejects, and publish.

    Nearly all batches have values in usual notations only, so others are written twice.
    """
    assert parsed.rows is not None
    changes = prepare(lake, spec, parsed.rows, parsed)
    seen, look = Observation(), Look(kind_sql(spec), kind_of(lake, spec))
    good = observed(look.at(parsed.rows), seen, *event_counts(parsed.rows, parsed), *look.columns)
    rows = _with_table_columns(lake, spec.table, good.where(F.col(BAD).isNull()), parsed.rows.columns)
    rejected: list[Row] = []

    def before_publishing() -> None:
        if parsed.read_completely and seen.get["bad"]:
            raise _UnusualError
        _record_kind(lake, spec, look.kind_from(seen))
        if seen.get["bad"] or parsed.refused is not None:
            rejected.extend(record_rejects(lake, spec, parsed.rows, parsed, records))

    try:
        append_if_unmoved(lake, spec.table, rows, marks, base, before_publishing)
    except _UnusualError:
        written = append_batch(lake, spec, records, parsed.complete, marks, base)
        return replace(written, changes=(*changes, *written.changes))
    except MixedKindsError:
        written = merge_batch(lake, spec, records, parsed.complete, marks)
        return replace(written, changes=(*changes, *written.changes))
    events = seen.get["events"] - seen.get["bad"]
    return _written(events, rejected, changes, seen.get, parsed)


class _UnusualError(Exception):
    """Some events have values in rare notations, or are to be rejected. Nothing of the batch is published."""


def _record_kind(lake: LakeBase, spec: StagingSpec, kind: Kind | None) -> None:
    """Store the kind of the table's order. Called before events are published, so a repeated run finds the same
    kind."""
    if kind_sql(spec) is None or not lake.exists(spec.table):
        return
    if lake.table(spec.table).properties.get(ORDER_PROPERTY) != to_property(kind):
        set_property(lake, spec.table, ORDER_PROPERTY, to_property(kind))


def merge_batch(
    lake: LakeBase, spec: StagingSpec, records: DataFrame, parsed: Parsed, marks: Watermarks | None
) -> Written:
    """Write the events that the table does not hold yet."""

    def write(good: DataFrame, stats: Row) -> list[Change] | None:
        if stats["events"] == stats["bad"] and (marks is None or not lake.exists(spec.table)):
            return None
        if marks is not None and not lake.exists(spec.table):
            make(lake, spec, good, parsed, marks)
            return []
        changes = prepare(lake, spec, good, parsed)
        _merge(lake, spec.table, good, stats["first"], stats["last"], marks, moves=parsed.has_tombstones)
        return changes

    return _split_and_write(lake, spec, records, parsed, kind_of(lake, spec), write)


def replace_table(
    lake: LakeBase,
    spec: StagingSpec,
    table: Table,
    records: DataFrame,
    parsed: Parsed,
    marks: Watermarks,
    *,
    is_fresh: bool,
) -> Written:
    """Replace the table by the events of all records, in one commit.

    The same commit raises the table's generation, which tells tables downstream to read all of it: events may have
    disappeared, and a window of new events does not show that.

    Args:
        lake: the lake.
        spec: the table.
        table: the loaded table.
        records: all records about it.
        parsed: their events.
        marks: the watermarks to commit.
        is_fresh: whether it gets the columns and key of the records, ignoring those it has.

    Raises:
        RecordsGoneError: the raw table no longer holds the records of all events in the table.
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
        assignments = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        rows = good.select(*(F.col(quote(c)) for c in columns))
        with temp_view(by_key(rows, key)) as view, committing(lake.spark(), spec.table, marks):
            lake.spark().sql(
                f"CREATE OR REPLACE TABLE {lake.sql_name(spec.table)} USING iceberg PARTITIONED BY ({PARTITIONED_BY}) "
                f"TBLPROPERTIES ({assignments}) AS SELECT * FROM {view}"
            )
        if key:
            sort_by(lake, spec.table, key)
        return []

    written = _split_and_write(lake, spec, records, parsed, None, write)
    if written.events is None and is_fresh:
        raise RebuildError(
            f"{spec.table}: {spec.raw} holds no event of {spec.source_table} that can be read, so there is nothing to "
            f"rebuild it from. {spec.table} is unchanged; drop it if it is no longer needed"
        )
    if written.events is None:
        write(lake.spark().table(lake.sql_name(spec.table)).limit(0))
        written = replace(written, events=0)
    rejects.forget_others(lake, spec.raw, str(spec.source_table), [r["position"] for r in written.bad])
    return written


def _check_complete(lake: LakeBase, spec: StagingSpec, table: Table, records: DataFrame) -> None:
    """Raise RecordsGoneError if the raw table no longer holds the records of some events in staging.

    Not checked if the raw table was dropped and created again: positions then refer to another table, and that is why
    the rebuild was requested.
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
            f"{spec.table} is unchanged: one of its files cannot be read ({as_named(e, str(spec.table)) or e}), so it "
            f"is unknown whether {spec.raw} still holds the records of all its events. If it does, drop {spec.table}, "
            "run the pipeline, then `lake-assets rebuild` the tables downstream"
        ) from e
    if row["n"]:
        raise RecordsGoneError(
            f"{spec.table} holds {row['n']:,} events whose records {spec.raw} no longer holds (positions {row['low']} "
            f"to {row['high']}), so reading all records again would lose them. Nothing was written. Restore these "
            f"records: run the pipeline if {spec.raw} was rolled back and can land them again, or roll it back to a "
            "snapshot that has them. If this follows a change of `key`, `types` or `start_position`, undoing the "
            f"change works as well. To start from the records that {spec.raw} holds now, drop {spec.table} and run the "
            "pipeline"
        )


def _split_and_write(
    lake: LakeBase,
    spec: StagingSpec,
    records: DataFrame,
    parsed: Parsed,
    kind: Kind | None,
    write: Callable[[DataFrame, Row], list[Change] | None],
) -> Written:
    """Record the rejects, and then write the good events: in this order, a run killed in between loses nothing.

    A batch with values in rare notations, or with rejects, is read again first (see `Parsed.complete`).

    Args:
        lake: the lake.
        spec: the table.
        records: the batch.
        parsed: its events.
        kind: what the earlier events are ordered by; None: there are none, or the format has one kind only.
        write: called with the good events and `batch_stats`; returns the column changes, or None if there was nothing
            to write.
    """
    rows = parsed.rows.persist() if parsed.rows is not None else None
    found, sql = kind, kind_sql(spec)
    try:
        if rows is not None and sql is not None:
            found = kind or first_kind(rows.where(F.col(BAD).isNull()), sql)
            if found and (kind or found.name.startswith(ORDINALS)):
                check_one_changelog(rows, sql, found, spec)
            rows = with_unplaced(rows, sql, found) if found else rows
        stats = batch_stats(rows, parsed)
        if stats and stats["bad"] and parsed.read_completely:
            return _split_and_write(lake, spec, records, parsed.complete, kind, write)
        bad: list[Row] = []
        if (stats and stats["bad"]) or parsed.refused is not None:
            bad = record_rejects(lake, spec, rows, parsed, records)
        changes = None
        _record_kind(lake, spec, found)
        if rows is not None and stats is not None:
            changes = write(rows.where(F.col(BAD).isNull()).drop(BAD), stats)
        if stats is None or changes is None:
            return Written(None, records_in(bad), tuple(bad))
        _record_kind(lake, spec, found)  # the table may just have been created
        return _written(stats["events"] - stats["bad"], bad, changes, stats.asDict(), parsed)
    finally:
        if parsed.rows is not None:
            parsed.rows.unpersist()


def _with_table_columns(lake: LakeBase, table: TableId, rows: DataFrame, present: Collection[str]) -> DataFrame:
    """Return the rows with all columns of the table, in its order and with its types; `present`: columns of the
    rows."""
    return rows.selectExpr(
        *(
            f"CAST({quote(n) if n in present else 'NULL'} AS {kind}) AS {quote(n)}"
            for n, kind in columns_of(lake, table).items()
        )
    )


def _merge(
    lake: LakeBase,
    table: TableId,
    rows: DataFrame,
    first: int,
    last: int,
    marks: Watermarks | None,
    *,
    moves: bool = False,
) -> None:
    """Insert the rows whose position in the stream is not in the table yet.

    With `moves`, deletes that the table has get the place of these rows: a tombstone follows the event before it, which
    may be read later.

    Not a plain append, since Iceberg lets two concurrent runs both append. This MERGE reads the positions of the window
    only, and Iceberg validates them, so the second run fails with a conflict.
    """
    names = [f.name for f in rows.schema.fields]
    types = columns_of(lake, table)
    rows = rows.select(*(F.col(quote(n)).cast(types[n]).alias(n) for n in names))
    listed = ", ".join(quote(n) for n in names)
    position, index, sequence = quote(POSITION), quote(INDEX), quote(SEQUENCE)
    moved = (
        f"WHEN MATCHED AND s.{OP} = '{DELETE}' AND NOT t.{sequence} <=> s.{sequence} "
        f"THEN UPDATE SET t.{sequence} = s.{sequence} "
    )
    with temp_view(rows) as view, committing(lake.spark(), table, marks):
        lake.spark().sql(
            f"MERGE INTO {lake.sql_name(table)} t USING {view} s ON t.{position} = s.{position} "
            f"AND t.{index} = s.{index} AND t.{position} BETWEEN {int(first)} AND {int(last)} "
            f"WHEN MATCHED AND t.{position} < 0 THEN UPDATE SET t.{position} = s.{position} {moved if moves else ''}"
            f"WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({', '.join('s.' + quote(n) for n in names)})"
        )

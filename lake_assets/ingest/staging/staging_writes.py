"""Writing a staging batch: append it, merge it, or replace the table by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F

from lake_assets.errors import RebuildError, RecordsGoneError
from lake_assets.formats.event_model import DELETE, INDEX, MISFITS, OP, POSITION, SEQUENCE
from lake_assets.formats.sequences import ORDINALS
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw_tables import kept_since
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.mixed_orders import (
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
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.ingest.staging.due_records import generation_of, properties_of
from lake_assets.ingest.staging.exactness import at_limit
from lake_assets.ingest.staging.staging_columns import (
    PARTITIONED_BY,
    check_key,
    columns_in,
    make,
    prepare,
)
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.counts import plural
from lake_assets.lake.foreign_errors import as_named, is_unreadable
from lake_assets.tables.merge_pruning import Pruning
from lake_assets.tables.pending_windows import head_of, known_marks
from lake_assets.tables.schema_changes import Change
from lake_assets.tables.spark_frames import observed
from lake_assets.tables.writing.merge_clauses import Match, Update, insert, source_values
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import key_in, replace_table
from lake_assets.tables.writing.table_state import GENERATION_PROPERTY, KEY_PROPERTY, ORDER_PROPERTY
from lake_assets.tables.writing.table_writer import TableWriter


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


def _records_in(rejected: Sequence[Row]) -> int:
    """Return the number of records that rejects, each with its `position`, belong to: a record may hold many events."""
    return len({r["position"] for r in rejected})


def _written(
    events: int, bad: Sequence[Row], changes: Sequence[Change], stats: Mapping[str, Any], parsed: Parsed
) -> Written:
    """Return what was written; `stats` are the results of `_event_counts`."""
    saturated = tuple(c for i, c in enumerate(parsed.saturating) if stats[f"saturated{i}"])
    return Written(events, _records_in(bad), tuple(bad), tuple(changes), stats["misfits"], saturated)


class _UnusualError(Exception):
    """Some events have values in rare notations, or are to be rejected. Nothing of the batch is published."""


class _UncountedError(Exception):
    """Spark has not reported how many events it wrote. Nothing of the batch is published."""


@dataclass(frozen=True)
class StagingWriter:
    """Writes one batch of records of a staging table.

    Attributes:
        commit: what is committed with the events.
        records: the records.
    """

    commit: Commit
    spec: StagingSpec
    records: DataFrame

    def may_append(self, parsed: Parsed, is_little: bool) -> bool:
        """Whether the batch can be written in one pass, without counting its rejects first."""
        if parsed.rows is None or self.spec.max_rejected is not None:
            return False  # with too many rejects, nothing must be written
        # A new table needs an event for its columns and key. For a small batch, creating the table with its rows is
        # cheaper than creating an empty table first.
        has_event = parsed.rows.where(F.col(BAD).isNull())
        return self.commit.base is not None or (not is_little and bool(has_event.limit(1).count()))

    def append(self, parsed: Parsed) -> Written:
        """Write new records to a branch in one pass, record the rejects, and publish.

        Nearly all batches have values in usual notations only, so others are written twice.
        """
        assert parsed.rows is not None
        spec, base = self.spec, self.commit.base
        prepared = prepare(self.commit, spec, parsed.rows, parsed)
        seen, look = Observation(), Look(kind_sql(spec), kind_of(self.commit.lake, spec, base))
        good = observed(look.at(parsed.rows), seen, *_event_counts(parsed.rows, parsed), *look.columns)
        writer = TableWriter(prepared.commit, prepared.types)
        rows = _with_table_columns(writer.types, good.where(F.col(BAD).isNull()), parsed.rows.columns)
        rejected: list[Row] = []

        def before_publishing() -> Mapping[str, str]:
            if not seen.get:  # a Spark Connect server may end a write without its metrics; `merge` asks for them
                raise _UncountedError
            if parsed.read_completely and seen.get["bad"]:
                raise _UnusualError
            kind = look.kind_from(seen)
            if seen.get["bad"] or parsed.refused is not None:
                rejected.extend(self._record_rejects(parsed.rows, parsed))
            return self._ordered_by(kind)

        again = replace(self, commit=replace(self.commit, base=prepared.commit.base))
        try:
            writer.append(rows, before_publishing)
        except (_UnusualError, _UncountedError, MixedKindsError) as e:
            rewrite = again.append if isinstance(e, _UnusualError) else again.merge
            written = rewrite(parsed.complete)
            return replace(written, changes=(*prepared.changes, *written.changes))
        events = seen.get["events"] - seen.get["bad"]
        return _written(events, rejected, prepared.changes, seen.get, parsed)

    def merge(self, parsed: Parsed) -> Written:
        """Write the events that the table does not hold yet."""

        def write(good: DataFrame, stats: Row, commit: Commit) -> list[Change] | None:
            if stats["events"] == stats["bad"] and (commit.marks is None or commit.base is None):
                return None
            if commit.marks is not None and commit.base is None:
                make(commit, self.spec, good, parsed)
                return []
            prepared = prepare(commit, self.spec, good, parsed)
            writer = TableWriter(prepared.commit, prepared.types)
            _merge(writer, good, stats["first"], stats["last"], moves=parsed.has_tombstones)
            return list(prepared.changes)

        return self._split_and_write(parsed, kind_of(self.commit.lake, self.spec, self.commit.base), write)

    def replace(self, parsed: Parsed, *, is_fresh: bool) -> Written:
        """Replace the table by the events of all records, in one commit.

        The same commit raises the table's generation, which tells tables downstream to read all of it: events may have
        disappeared, and a window of new events does not show that.

        Raises:
            RecordsGoneError: the raw table no longer holds the records of all events in the table.
            RebuildError: there is no event to rebuild it from.
        """
        lake, spec, table = self.commit.lake, self.spec, self.commit.existing
        _check_complete(lake, spec, table, self.records)
        key = parsed.key or (() if is_fresh else key_in(table))

        def write(good: DataFrame, stats: Row | None, commit: Commit) -> list[Change] | None:
            if is_fresh and (stats is None or stats["events"] == stats["bad"]):
                return None
            properties = {
                **spec.properties,
                **properties_of(spec, parsed.key_set),
                KEY_PROPERTY: json.dumps(key),
                GENERATION_PROPERTY: str(generation_of(table) + 1),
            }
            rows = good.select(*(F.col(quote(c)) for c in columns_in(good)))
            check_key(spec, key, rows.columns)
            replace_table(commit, rows, properties, sort_by=key, partitioned_by=PARTITIONED_BY)
            return []

        written = self._split_and_write(parsed, None, write)
        if written.events is None and is_fresh:
            raise RebuildError(
                f"{spec.table}: {spec.raw} holds no event of {spec.source_table} that can be read, so there is nothing "
                f"to rebuild it from. {spec.table} is unchanged; drop it if it is no longer needed"
            )
        if written.events is None:
            write(lake.spark().table(self.commit.name).limit(0), None, self.commit)
            written = replace(written, events=0)
        self.forget_rejects_but(written)
        return written

    def _ordered_by(self, kind: Kind | None) -> dict[str, str]:
        """Return the table property that stores the kind of the table's order."""
        return {} if kind_sql(self.spec) is None else {ORDER_PROPERTY: to_property(kind)}

    def _split_and_write(
        self,
        parsed: Parsed,
        kind: Kind | None,
        write: Callable[[DataFrame, Row, Commit], list[Change] | None],
    ) -> Written:
        """Record the rejects, and then write the good events: in this order, a run killed in between loses nothing.

        A batch with values in rare notations, or with rejects, is read again first (see `Parsed.complete`).

        Args:
            parsed: the events.
            kind: what the earlier events are ordered by; None: there are none, or the format has one kind only.
            write: called with the good events, `_batch_stats` and the commit; returns the column changes, or None if
                there was nothing to write.
        """
        spec = self.spec
        rows = parsed.rows.persist() if parsed.rows is not None else None
        found, sql = kind, kind_sql(spec)
        try:
            if rows is not None and sql is not None:
                found = kind or first_kind(rows.where(F.col(BAD).isNull()), sql)
                if found and (kind or found.name.startswith(ORDINALS)):
                    check_one_changelog(rows, sql, found, spec)
                rows = with_unplaced(rows, sql, found) if found else rows
            stats = _batch_stats(rows, parsed)
            if stats and stats["bad"] and parsed.read_completely:
                return self._split_and_write(parsed.complete, kind, write)
            bad: list[Row] = []
            if (stats and stats["bad"]) or parsed.refused is not None:
                bad = self._record_rejects(rows, parsed)
            changes = None
            if rows is not None and stats is not None:
                commit = replace(self.commit, settings=self._ordered_by(found))
                changes = write(rows.where(F.col(BAD).isNull()).drop(BAD), stats, commit)
            if stats is None or changes is None:
                return Written(None, _records_in(bad), tuple(bad))
            return _written(stats["events"] - stats["bad"], bad, changes, stats.asDict(), parsed)
        finally:
            if parsed.rows is not None:
                parsed.rows.unpersist()

    def _record_rejects(self, rows: DataFrame | None, parsed: Parsed) -> list[Row]:
        """Write unreadable records and events to the table of rejects; return `position` and `reason` of each.

        Raises:
            RejectedLimitError: there are more than declared. Nothing is written.
        """
        spec, reason = self.spec, F.left(F.col(BAD), F.lit(2_000)).alias("reason")
        parts: list[DataFrame] = []
        if rows is not None:
            bad = rows.where(F.col(BAD).isNotNull())
            parts.append(bad.select(F.col(POSITION).alias("position"), F.col(INDEX).alias("event_index"), reason))
        if parsed.refused is not None:
            parts.append(parsed.refused.select("position", F.lit(0).alias("event_index"), reason))
        if not parts:
            return []
        rejected = parts[0].unionAll(parts[1]) if len(parts) > 1 else parts[0]
        reasons = rejected.select("position", "reason").orderBy("position").collect()
        if reasons:
            count, every, why = _records_in(reasons), self.records.count(), reasons[0]["reason"]
            rejects.check_limit(str(spec.table), spec.max_rejected, count, every, why)
            texts = self.records.select("position", "record", "source_file", "source_line", "arrived_at")
            first, last = reasons[0]["position"], reasons[-1]["position"]
            described = rejected.join(texts, "position")
            rejects.reject(self.commit.lake, spec.raw, str(spec.source_table), described, first, last)
        return reasons

    def forget_rejects_but(self, written: Written) -> None:
        """Remove rejects of earlier readings of the same records, perhaps by another declaration."""
        positions = [r["position"] for r in written.bad]
        rejects.forget_others(self.commit.lake, self.spec.raw, str(self.spec.source_table), positions)


def _batch_stats(rows: DataFrame | None, parsed: Parsed) -> Row | None:
    """Return counts, and the first and last position, of a batch; None if it holds no event."""
    if rows is None:
        return None
    stats = rows.agg(
        *_event_counts(rows, parsed),
        F.min(POSITION).alias("first"),
        F.max(POSITION).alias("last"),
    ).collect()[0]
    return stats if stats["events"] else None


def _event_counts(rows: DataFrame, parsed: Parsed) -> list[Column]:
    """Return the aggregates `events`, `bad` (events to reject), `misfits` (events with values that do not fit) and
    `saturated0`, ... (whether a value of a column of `parsed.saturating` stands for one beyond the type)."""
    limits = (f"coalesce(bool_or({BAD} IS NULL AND {at_limit(quote(c))}), false)" for c in parsed.saturating)
    misfits = f"{BAD} IS NULL AND {MISFITS} IS NOT NULL" if MISFITS in rows.columns else "false"
    return [
        F.count(F.lit(1)).alias("events"),
        F.count(BAD).alias("bad"),
        F.expr(f"count_if({misfits}) AS misfits"),
        *(F.expr(f"{limit} AS saturated{i}") for i, limit in enumerate(limits)),
    ]


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
    if row["n"] and (since := kept_since(raw)):
        raise RecordsGoneError(
            f"{spec.table} holds {plural(row['n'], 'event')} whose records {spec.raw} no longer holds: those from "
            f"before {since:%Y-%m-%d} were deleted (`keep_records`). Reading the others again would lose these "
            "events, so nothing was written. Undo the change of `key`, `types`, `order_by` or `start_position` that it "
            f"follows. To start from what {spec.raw} holds now, let the connector read the source table again, then "
            f"drop {spec.table} and run the pipeline"
        )
    if row["n"]:
        raise RecordsGoneError(
            f"{spec.table} holds {plural(row['n'], 'event')} whose records {spec.raw} no longer holds (positions "
            f"{row['low']} to {row['high']}), so reading all records again would lose them. Nothing was "
            f"written. Restore these records: run the pipeline if {spec.raw} was rolled back and can land them again, "
            "or roll it back to a snapshot that has them. If this follows a change of `key`, `types` or "
            f"`start_position`, undoing the change works as well. To start from the records that {spec.raw} holds now, "
            f"drop {spec.table} and run the pipeline"
        )


def _with_table_columns(types: Mapping[str, str], rows: DataFrame, present: Collection[str]) -> DataFrame:
    """Return the rows with all columns of a table, in its order and with its types; `present`: columns of the rows."""
    return rows.selectExpr(
        *(f"CAST({quote(n) if n in present else 'NULL'} AS {kind}) AS {quote(n)}" for n, kind in types.items())
    )


def _merge(writer: TableWriter, rows: DataFrame, first: int, last: int, *, moves: bool = False) -> None:
    """Insert the rows whose position in the stream is not in the table yet.

    With `moves`, deletes that the table has get the place of these rows: a tombstone follows the event before it, which
    may be read later.
    """
    names = [f.name for f in rows.schema.fields]
    rows = rows.select(*(F.col(quote(n)).cast(writer.types[n]).alias(n) for n in names))
    position, sequence = quote(POSITION), quote(SEQUENCE)
    moved = Update(f"s.{OP} = '{DELETE}' AND NOT t.{sequence} <=> s.{sequence}", source_values([SEQUENCE]))
    writer.merge(
        rows,
        Match([POSITION, INDEX], nulls_match=False),
        [
            Update(f"t.{position} < 0", source_values([POSITION])),
            *([moved] if moves else []),
            insert(names),
        ],
        lambda: Pruning(f"t.{position} BETWEEN {int(first)} AND {int(last)}", {}, ""),
    )

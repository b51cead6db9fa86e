"""Tombstones as delete events.

A tombstone names the key of a deleted row, and no place in the source's order. It follows the last event of its key in
the stream, so it gets the place of that event (and, with a later position in the stream, comes after it), and its row:

    insert 1 @ 10    tombstone 1    insert 1 @ 40        ->  insert @ 10, delete @ 10, insert @ 40

A tombstone that follows a delete of its key, or no event, deletes nothing and is no event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.formats.event_model import (
    ARRIVED_AT,
    DELETE,
    EVENT_TIME,
    INDEX,
    OP,
    POSITION,
    SEQUENCE,
    TECHNICAL,
    TRUNCATE,
    UNAVAILABLE,
)
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.event_rows import BAD
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.ingest.staging.staging_columns import projection
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.column_spelling import caseless, spelled
from lake_assets.tables.merge_pruning import prune
from lake_assets.tables.schema_changes import unite
from lake_assets.tables.spark_frames import checkpoint, over
from lake_assets.tables.writing.table_ddl import key_in

_ROW, _MINE = "_event", "_is_tombstone"


def with_deletes(lake: LakeBase, spec: StagingSpec, parsed: Parsed, *, is_whole: bool) -> Parsed:
    """Return a batch with the deletes that its tombstones are.

    `is_whole`: whether the batch has all records, so that the stored events do not matter.
    """
    for frame in parsed.tombstones:
        stored = None if is_whole or not lake.exists(spec.table) else projection(lake, spec.table, spec.rename)
        parsed = _with_deletes(lake, spec, parsed, checkpoint(frame), stored)
    return parsed


def _with_deletes(
    lake: LakeBase,
    spec: StagingSpec,
    parsed: Parsed,
    frame: DataFrame,
    stored: Mapping[str, tuple[str, str]] | None,
) -> Parsed:
    batch = {f.name: f.dataType.simpleString() for f in parsed.rows.schema.fields} if parsed.rows is not None else {}
    own = [{n: t for n, t in batch.items() if not _is_technical(n)}, {n: t for n, (t, _) in (stored or {}).items()}]
    columns = unite(str(spec.table), [types for types in own if types])
    key = {c: spelled(c, columns) for c in frame.columns if not _is_technical(c)}
    missing = [c for c, name in key.items() if name not in columns]
    if columns and missing:
        why = f"the key of the tombstone has {', '.join(missing)}, which no row has: which row was deleted is unknown"
        return _refused(parsed, frame.withColumn(BAD, F.coalesce(BAD, F.lit(why))))
    parsed = _refused(parsed, frame.where(F.col(BAD).isNotNull()))
    if not columns:
        return parsed  # no event has arrived yet
    # Values of the key have the type that they have in rows.
    keys = [F.expr(f"try_cast({quote(c)} AS {columns[name]}) AS {quote(name)}") for c, name in key.items()]
    rows = frame.where(F.col(BAD).isNull()).select(*keys, POSITION, EVENT_TIME, ARRIVED_AT)
    tombstones = _Tombstones(lake, spec, columns, list(key.values()), rows)
    events = tombstones.events(parsed, stored)
    if events is None:
        return parsed
    deletes = checkpoint(tombstones.placed(events, batch))
    if deletes.isEmpty():
        return parsed
    if parsed.rows is None:
        its_key = tuple(spec.rename.get(k, k) for k in key_in(lake.table(spec.table)))
        return replace(parsed, rows=deletes, key=its_key, has_tombstones=True)
    rows = parsed.rows.unionByName(deletes, allowMissingColumns=True)
    return replace(parsed, rows=rows, has_tombstones=True)


def _is_technical(column: str) -> bool:
    return column in TECHNICAL or column == BAD


def _refused(parsed: Parsed, tombstones: DataFrame) -> Parsed:
    """Return the batch with tombstones that cannot be read, if there are any."""
    bad = tombstones.select(F.col(POSITION).alias("position"), BAD)
    if bad.isEmpty():
        return parsed
    return replace(parsed, refused=bad if parsed.refused is None else parsed.refused.unionByName(bad))


@dataclass(frozen=True)
class _Tombstones:
    """Tombstones of a batch.

    Attributes:
        columns: the columns of rows, in the batch or the table, with their types.
        key: the columns that the tombstones have.
        rows: the tombstones: their key, position and times.
    """

    lake: LakeBase
    spec: StagingSpec
    columns: Mapping[str, str]
    key: list[str]
    rows: DataFrame

    def events(self, parsed: Parsed, stored: Mapping[str, tuple[str, str]] | None) -> DataFrame | None:
        """Return the events of the tombstones' keys in the batch and in the table: their key, place and row."""
        wanted = checkpoint(self.rows.select(*map(quote, self.key)).distinct())
        parts: list[DataFrame] = []
        if parsed.rows is not None:
            # A rejected event that has its place may be read later on: the tombstone follows it all the same.
            parts.append(self._images(parsed.rows.where(F.col(SEQUENCE).isNotNull()), {}))
        if stored is not None:
            sql = {name: expression for name, (_, expression) in stored.items()}
            rows = self._images(self._stored(wanted, sql), sql)
            # Not the tombstones themselves, if they are read again.
            parts.append(rows.join(self.rows.select(POSITION), POSITION, "left_anti"))
        events: DataFrame | None = None
        for part in parts:
            of_keys = part.join(F.broadcast(wanted), self.key, "left_semi")
            events = of_keys if events is None else events.unionByName(of_keys)
        return events

    def _stored(self, wanted: DataFrame, sql: Mapping[str, str]) -> DataFrame:
        """Return rows of the table: those of files that may hold the keys."""
        lake, key = self.lake, self.key
        table = f"SELECT * FROM {lake.sql_name(self.spec.table)} t"
        if any(sql.get(k) != quote(k) for k in key):
            return lake.spark().sql(table)  # the key is in columns of several names or types
        pruning = prune(wanted, key, lake.table(self.spec.table), types={k: self.columns[k] for k in key})
        if not pruning.condition:
            return lake.spark().sql(table)
        return over(lake.spark(), f"{table} WHERE {pruning.condition}", {}, pruning.values)

    def _images(self, rows: DataFrame, sql: Mapping[str, str]) -> DataFrame:
        """Return the columns of events, with `OP`, `SEQUENCE` and their position."""
        existing = set(map(caseless, sql or rows.columns))
        values = (
            f"CAST({(sql.get(c) or quote(c)) if caseless(c) in existing else 'NULL'} AS {kind}) AS {quote(c)}"
            for c, kind in self.columns.items()
        )
        events = rows.where(f"{OP} IS NOT NULL AND {OP} <> '{TRUNCATE}'")
        return events.selectExpr(*values, OP, SEQUENCE, POSITION, INDEX)

    def placed(self, events: DataFrame, batch: Mapping[str, str]) -> DataFrame:
        """Return the deletes that tombstones are: each with the place and the row of the event before it."""
        columns, keys = self.columns, [F.col(quote(k)) for k in self.key]
        row = F.struct(*(F.col(quote(c)) for c in columns), OP, SEQUENCE)
        rows = events.select(*keys, POSITION, INDEX, row.alias(_ROW), F.lit(False).alias(_MINE))
        # The next tombstone of the key has no row left to delete.
        nulls = (F.lit(None).cast(kind).alias(c) for c, kind in columns.items())
        deleted = F.struct(*nulls, F.lit(DELETE).alias(OP), F.lit(None).cast("string").alias(SEQUENCE))
        mine = self.rows.select(
            *keys, POSITION, F.lit(0).alias(INDEX), deleted.alias(_ROW), F.lit(True).alias(_MINE),
            EVENT_TIME, ARRIVED_AT,
        )  # fmt: skip
        before = Window.partitionBy(*keys).orderBy(POSITION, INDEX).rowsBetween(Window.unboundedPreceding, -1)
        follows = rows.unionByName(mine, allowMissingColumns=True).withColumn("_before", F.last(_ROW).over(before))
        found = follows.where(F.col(_MINE) & (F.col(f"_before.{OP}") != DELETE))
        technical = {
            OP: F.lit(DELETE), SEQUENCE: F.col(f"_before.{SEQUENCE}"), POSITION: F.col(POSITION), INDEX: F.lit(0),
            EVENT_TIME: F.col(EVENT_TIME), ARRIVED_AT: F.col(ARRIVED_AT),
            UNAVAILABLE: F.lit(None).cast(TECHNICAL[UNAVAILABLE]), BAD: F.lit(None).cast("string"),
        }  # fmt: skip
        return found.select(
            *(F.col(f"_before.{quote(c)}").cast(batch.get(c, kind)).alias(c) for c, kind in columns.items()),
            *(value.alias(name) for name, value in technical.items()),
        )

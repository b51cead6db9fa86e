"""Staging: the change events of one source table, with its types, every one kept exactly once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.errors import DefinitionChangedError, LakeError, MalformedRecordError, UnsupportedEventError
from lake_assets.events import EventPlan, event_format
from lake_assets.events.model import (
    ARRIVED_AT,
    EVENT_TIME,
    OP,
    POSITION,
    SEQUENCE,
    TECHNICAL,
    TRUNCATE,
    UNAVAILABLE,
    UPDATE,
)
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.watermark import Marks, read_marks
from lake_assets.merge.commit import commit_marks, committing, counts, snapshot_of
from lake_assets.merge.outcome import Absorbed, Outcome
from lake_assets.merge.schema import Change, evolve, former_name, formers, is_former, unite
from lake_assets.merge.small import fitting
from lake_assets.merge.specs import StagingSpec
from lake_assets.merge.steps import window
from lake_assets.merge.tables import alter, columns_of, create, key_of
from lake_assets.merge.views import temp_view

_BAD = "_bad"


def absorb_events(lake: LakeBase, spec: StagingSpec) -> Outcome:
    """Append what the raw table has received for this source table.

    Raises:
        MalformedRecordError: a record does not fit its own schema; names file, line and column. Nothing is written.
        SchemaConflictError: a column's type cannot become what the stream says now. Nothing is written.
    """
    began = time.monotonic()
    name = str(spec.table)
    if not lake.exists(spec.raw):
        return Outcome(name, "waiting", why=f"{spec.raw} does not exist yet")
    pending = window(lake, spec.table, spec.raw)
    if pending.is_absorbed or pending.head.snapshot is None:
        return Outcome(name, "nothing")
    marks = {**(read_marks(lake.table(spec.table)) if lake.exists(spec.table) else {}), str(spec.raw): pending.head}
    spark = lake.spark()
    with (
        capture(lake, spec.raw, pending.start, pending.head.snapshot) as captured,
        fitting(lake, (spec.raw, spec.table)),
    ):
        absorbed = Absorbed.of(str(spec.raw), captured)
        records = captured.upserts(spark).where(F.col("source_table") == str(spec.source_table))
        known = projection(lake, spec.table, spec.rename) if lake.exists(spec.table) else ()
        rows, key = _typed(records, spec, known)
        if rows is None:
            if not lake.exists(spec.table):
                return Outcome(name, "waiting", (absorbed,), why=f"no event of {spec.source_table} has arrived yet")
            commit_marks(lake, spec.table, marks)
            return Outcome(name, "absorbed", (absorbed,), strategy="append", why="no events of this table",
                           seconds=time.monotonic() - began)  # fmt: skip
        rows = rows.persist()
        try:
            stats = rows.agg(
                F.count("*").alias("events"),
                F.count(_BAD).alias("bad"),
                F.min(POSITION).alias("first"),
                F.max(POSITION).alias("last"),
            ).collect()[0]
            if stats["bad"]:
                raise _malformed(records, rows, stats["bad"])
            changes = _prepare(lake, spec, rows, key)
            _merge(lake, spec.table, rows.drop(_BAD), stats["first"], stats["last"], marks)
        finally:
            rows.unpersist()
    snapshot = snapshot_of(lake, spec.table, marks)
    inserted, updated, deleted = counts(snapshot)
    return Outcome(
        name, "absorbed", (absorbed,), inserted, updated, deleted, "append", "every event is kept",
        time.monotonic() - began, snapshot.snapshot_id if snapshot else None,
        {"schema_changes": [f"{c.kind} {c.column} {c.type}" for c in changes]} if changes else {},
    )  # fmt: skip


# --- parsing ----------------------------------------------------------------------------------------------------


def _typed(records: DataFrame, spec: StagingSpec, known: Iterable[str]) -> tuple[DataFrame | None, tuple[str, ...]]:
    """The records as typed rows (with what is wrong with them in `_bad`), and the key; None without records.

    Args:
        records: rows of the raw table.
        spec: the table.
        known: columns that it has.
    """
    reader = event_format(spec.format)
    schema = F.expr(reader.schema)
    # Tombstones and other records about no row were not routed here. A batch has one schema, or two where it changed.
    found = records.groupBy(schema.alias("schema")).agg(F.max("position").alias("last")).orderBy("last").collect()
    plans: list[tuple[str, EventPlan]] = []
    for row in found:
        try:
            plans.append((row["schema"], reader.plan(row["schema"], spec.rename)))
        except (LakeError, ValueError, KeyError) as e:
            raise UnsupportedEventError(f"{spec.table}: events up to position {row['last']} of {spec.raw}: {e}") from e
    if not plans:
        return None, ()
    columns = unite(str(spec.table), [{c.name: c.type for c in plan.columns} for _, plan in plans])
    if clash := set(columns) & set(TECHNICAL):
        raise UnsupportedEventError(
            f"{spec.table}: the source has columns called {sorted(clash)}, which staging uses itself"
        )
    # A schema without a column says nothing of its value: a stored generated column is in the initial snapshot only.
    every = dict.fromkeys((*known, *columns))
    parts = [
        _rows(
            records.where(schema == F.lit(text)),
            plan,
            columns,
            [c for c in every if c not in {p.name for p in plan.columns}],
        )
        for text, plan in plans
    ]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part, allowMissingColumns=True)
    return rows, _key([plan.key for _, plan in plans], parts)


def _key(keys: list[tuple[str, ...]], parts: list[DataFrame]) -> tuple[str, ...]:
    """The key of a batch's last schema; a truncate says none, whatever the table has."""
    for key, part in zip(reversed(keys), reversed(parts), strict=True):
        if key or not any(keys) or part.where(F.col(OP) != TRUNCATE).limit(1).count():
            return key
    return ()


def _rows(records: DataFrame, plan: EventPlan, types: dict[str, str], unsaid: list[str]) -> DataFrame:
    """One projection a step: Spark computes a column that later ones use more than once only once."""
    stage = records.select("position", "arrived_at", F.expr(plan.parsed).alias("e"))
    fixed = {
        OP: F.expr(plan.op),
        SEQUENCE: F.expr(plan.sequence),
        POSITION: F.col("position"),
        EVENT_TIME: F.expr(plan.event_time),
        ARRIVED_AT: F.col("arrived_at"),
    }
    absent = [F.expr(c.unavailable) if c.unavailable else F.lit(False) for c in plan.columns]
    stage = stage.select(
        *(value.alias(name) for name, value in fixed.items()),
        *(
            F.when(~gone, F.expr(c.text)).alias(f"t{i}")
            for i, (c, gone) in enumerate(zip(plan.columns, absent, strict=True))
        ),
        *(gone.alias(f"u{i}") for i, gone in enumerate(absent)),
    )
    stage = stage.select("*", *(F.col(f"t{i}").alias(f"v{i}") for i in range(len(plan.columns))))
    for step in range(max((len(c.steps) for c in plan.columns), default=0)):
        stage = stage.withColumns(
            {
                f"v{i}": F.expr(c.steps[step].replace("{t}", f"v{i}"))
                for i, c in enumerate(plan.columns)
                if step < len(c.steps)
            }
        )
    bad = [
        *_when(F.col(OP).isNull(), "no such op, or no row after it"),
        *(_case(i, f"{c.name} does not fit {c.type}") for i, c in enumerate(plan.columns) if c.steps),
        *(
            F.when((F.col(OP) != TRUNCATE) & F.col(f"v{i}").isNull(), F.lit(f"key column {c.name} is missing"))
            for i, c in enumerate(plan.columns)
            if c.name in plan.key
        ),
    ]
    gone = [F.when(F.col(f"u{i}"), F.lit(c.name)) for i, c in enumerate(plan.columns) if c.unavailable]
    gone += [F.when(F.col(OP) == UPDATE, F.lit(name)) for name in unsaid]
    unavailable = F.array_compact(F.array(*gone)) if gone else F.array().cast("array<string>")
    return stage.select(
        *(F.col(f"v{i}").cast(types[c.name]).alias(c.name) for i, c in enumerate(plan.columns)),
        *fixed,
        F.when(F.size(unavailable) > 0, unavailable).alias(UNAVAILABLE),
        F.coalesce(*bad).alias(_BAD),
    )


def _when(condition: Column, reason: str) -> Iterable[Column]:
    yield F.when(condition, F.lit(reason))


def _case(i: int, reason: str) -> Column:
    return F.when(F.col(f"t{i}").isNotNull() & F.col(f"v{i}").isNull(), F.lit(reason))


def _malformed(records: DataFrame, rows: DataFrame, bad: int) -> MalformedRecordError:
    first = rows.where(F.col(_BAD).isNotNull()).orderBy(POSITION).select(POSITION, _BAD).first()
    where = records.where(F.col("position") == first[POSITION]).first() if first else None
    if first is None or where is None:
        return MalformedRecordError(f"{bad} malformed records")
    return MalformedRecordError(
        f"{where['source_file']}, line {where['source_line']} (position {first[POSITION]}): {first[_BAD]}; "
        f"{bad} such records in this batch. Nothing of it was written. The record: {where['record'][:200]!r}"
    )


# --- writing ----------------------------------------------------------------------------------------------------


def _prepare(lake: LakeBase, spec: StagingSpec, rows: DataFrame, key: tuple[str, ...]) -> list[Change]:
    """Make the table, or let its columns follow. Killed in between, the next run goes on from where the table is."""
    wanted = {f.name: f.dataType.simpleString() for f in rows.schema.fields if f.name != _BAD}
    create(lake, spec.table, wanted, pipeline=spec.pipeline, key=key,
           properties={"lake-assets.source-table": str(spec.source_table), **spec.properties},
           partitioned_by=f"days({ARRIVED_AT})")  # fmt: skip
    had = key_of(lake, spec.table)
    if had != key and (key or rows.where(F.col(OP) != TRUNCATE).limit(1).count()):
        raise DefinitionChangedError(
            f"{spec.table}: the stream's key was {list(had)} and is {list(key)} now. Drop {spec.table} and the "
            f"tables below "
            "it and run again to rebuild them from the raw table"
        )
    existing = columns_of(lake, spec.table)
    current = {c: t for c, t in existing.items() if not is_former(c, existing)}
    changes = evolve(str(spec.table), current, wanted, spec.rename)
    for change in changes:
        if change.kind == "replace":
            # Staging is history and never rewritten: earlier values stay under a name of their own, with their type.
            old = former_name(change.column, change.was or "")
            alter(lake, spec.table, Change("rename", old, change.was or "", was=change.column))
            alter(lake, spec.table, Change("add", change.column, change.type))
        elif change.kind != "fold":
            alter(lake, spec.table, change)
    return changes


def _merge(lake: LakeBase, table: TableId, rows: DataFrame, first: int, last: int, marks: Marks) -> None:
    """Insert the rows whose position is not there yet.

    A plain append would do, were there never two runs at once: Iceberg lets both append. This MERGE reads (and is
    validated against) the positions of the window only, so that the second one finds a conflict instead.
    """
    names = [f.name for f in rows.schema.fields]
    types = columns_of(lake, table)
    rows = rows.select(*(F.col(quote(n)).cast(types[n]).alias(n) for n in names))
    listed = ", ".join(quote(n) for n in names)
    position = quote(POSITION)
    with temp_view(rows) as view, committing(lake.spark(), table, marks):
        lake.spark().sql(
            f"MERGE INTO {lake.sql_name(table)} t USING {view} s "
            f"ON t.{position} = s.{position} AND t.{position} BETWEEN {int(first)} AND {int(last)} "
            f"WHEN MATCHED AND t.{position} < 0 THEN UPDATE SET t.{position} = s.{position} "
            f"WHEN NOT MATCHED THEN INSERT ({listed}) VALUES ({', '.join('s.' + quote(n) for n in names)})"
        )


def projection(lake: LakeBase, table: TableId, rename: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Type and SQL of each source column of a staging table, earlier types and names of it included."""
    columns = columns_of(lake, table)
    names = [c for c in columns if c not in TECHNICAL and not is_former(c, columns)]
    names = [c for c in names if rename.get(c) not in names]
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        aliases = [name, *(old for old, new in rename.items() if new == name and old in columns)]
        others = [c for a in aliases for c in (a, *formers(a, columns)) if c != name]
        casts = [f"CAST({quote(c)} AS {columns[name]})" for c in others]
        sql = f"coalesce({', '.join([quote(name), *casts])})" if casts else quote(name)
        found[name] = (columns[name], sql)
    return found

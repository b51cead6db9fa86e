"""Current rows (SCD1): one row per key, as in the source."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.errors import Refused
from lake_assets.final.added_columns import DELETED
from lake_assets.final.batch import Batch, as_events
from lake_assets.final.events.key_changes import PRESENT
from lake_assets.final.events.reduction import KEEP, KNOWN, latest, order, place
from lake_assets.final.events.staging_events import keys_of, states_of
from lake_assets.final.modes.key_histories import Needs, needs, with_truncates
from lake_assets.final.modes.partition_overwrite import overwrite
from lake_assets.final.modes.row_copies import REMOVE, changed_copies
from lake_assets.final.target import Target
from lake_assets.formats.event_model import DELETE, OP, READ, TRUNCATE, UPDATE
from lake_assets.lake import quote, thresholds
from lake_assets.lake.names import literal
from lake_assets.tables.spark_frames import checkpoint, cols, together
from lake_assets.tables.spark_tuning import size_of
from lake_assets.tables.writing.key_lookup import pc
from lake_assets.tables.writing.merge_clauses import Clause, Delete, Insert, Update
from lake_assets.tables.writing.merge_pairs import HeldRows

_UNCOMPARED = "the events have all columns: stored rows are matched by their keys only"


def apply(batch: Batch) -> tuple[str, str]:
    """Write the keys of the window, by MERGE or by partitions; return strategy and reason."""
    target, events = batch.target, batch.stats.events
    if not isinstance(batch.last, Refused):
        return "merge", _merge_held(batch, batch.last)
    rows, why, is_simple = _changes(batch)
    # Rows from a few persisted events are as quickly computed twice as persisted.
    is_persisted = is_simple and (events > thresholds.LITERAL_KEYS or target.spec.write != "merge")
    rows = checkpoint(rows) if not is_simple else rows.persist() if is_persisted else rows
    try:
        if target.is_new:
            return "rebuild", batch.replace(_rows_to_insert(target, rows))
        if batch.is_emptied:
            why.append("the source was truncated")
        if target.spec.write == "overwrite-partitions":
            done = overwrite(batch, rows)
            if not isinstance(done, Refused):
                return "overwrite", "; ".join([*why, done])
            why.append(f"merged, since {done.reason}")
        unconditionally = is_simple and not batch.is_emptied and _skips_comparison(batch)
        if unconditionally:
            why.append(_UNCOMPARED)
        how = _merge(batch, rows, events if is_simple else None, unconditionally=unconditionally)
    finally:
        if is_persisted:
            rows.unpersist()
    return "merge", "; ".join([*why, *([how] if how else [])])


def rows_of(batch: Batch) -> DataFrame:
    """Return the rows of the table, computed from all of staging."""
    return _rows_to_insert(batch.target, _changes(batch)[0])


def _changes(batch: Batch) -> tuple[DataFrame, list[str], bool]:
    """Return one row per key that the window changes, reasons, and whether they follow from its events alone."""
    if batch.target.spec.by_row:
        return *changed_copies(batch), False
    needed = needs(batch)
    return _rows(batch, needed), list(needed.why), needed.late is None and needed.tied is None


def _skips_comparison(batch: Batch) -> bool:
    """Whether updated rows are written without comparing them with the stored rows.

    In a large table, reading all columns takes several times as long as reading the key columns. The comparison avoids
    writing unchanged rows. It matters only for repeated events (these are late) and for events that change columns
    which the table does not have.
    """
    spec = batch.target.spec
    is_large = size_of(batch.writer.commit.existing)[1] >= thresholds.LARGE_TARGET_ROWS
    return is_large and spec.deletes == "hard" and not batch.stats.unavailable and not spec.columns


def _rows(batch: Batch, needed: Needs) -> DataFrame:
    """Return one row per key that the window changes."""
    target, key, stats, deletes = batch.target, batch.target.key, batch.stats, batch.target.spec.deletes
    events, late, tied, history = batch.events, needed.late, needed.tied, needed.history
    truncated = stats.truncated
    if history is not None:
        truncated = history.where(F.col(OP) == TRUNCATE).agg(F.max(order()).alias("last")).collect()[0]["last"]
        if stats.truncated:
            # Any row may have been inserted after the truncate and have arrived before it.
            late, tied = checkpoint(keys_of(target, history)), None
    special: list[DataFrame] = []
    states: list[DataFrame] = []
    if late is not None and history is not None:
        key_events = _with_truncates(target, history.join(late, list(key), "left_semi"), history, truncated)
        if target.projection.is_computed_late:
            states.append(states_of(target, key_events, omits_values=needed.omits_values, of_source=True))
        else:
            special.append(key_events)
    if tied is not None:
        before = checkpoint(batch.stored_rows(tied))
        stored = as_events(target, before, READ)
        if deletes == "soft":
            stored = stored.unionByName(as_events(target, before.where(F.col(DELETED)), DELETE, 1))
        # Stored rows already reflect earlier truncates: only truncates of the window apply.
        key_events = stored.unionByName(events.join(tied, list(key), "left_semi"))
        special.append(_with_truncates(target, key_events, batch.events, stats.truncated))
    for keys in (late, tied):
        if keys is not None:
            events = events.join(keys, list(key), "left_anti")
    parts: list[DataFrame] = []
    if late is None or not stats.truncated:
        simple = _after(events, truncated) if deletes == "hard" else events
        if deletes == "ignore":
            simple = simple.where(F.col(OP) != DELETE)
        soft = deletes == "soft"
        if soft and truncated:
            cut = with_truncates(simple.where(F.col(OP) != TRUNCATE), keys_of(target, simple), batch.events, key)
            simple = cut.withColumn(OP, F.when(F.col(OP) == TRUNCATE, DELETE).otherwise(F.col(OP)))
        omits = bool(stats.unavailable)
        parts.append(latest(simple, key, target.columns, with_unavailable=omits, with_deleted=soft))
    if special:
        states.append(states_of(target, together(special), omits_values=needed.omits_values))
    if states:
        parts.append(_last(target, together(states)))
    return together(parts)


def _with_truncates(target: Target, events: DataFrame, truncates: DataFrame, last: Row | None) -> DataFrame:
    """Apply truncates to the events of keys that need more than their last event."""
    if last is None or target.spec.deletes == "ignore":
        return events
    if target.spec.deletes == "hard":
        return _after(events, last)
    return with_truncates(events, checkpoint(keys_of(target, events)), truncates, target.key)


def _after(events: DataFrame, truncated: Row | None) -> DataFrame:
    return events.where(order() > place(truncated)) if truncated else events


def _last(target: Target, states: DataFrame) -> DataFrame:
    """Return the last state of each key from all of its states."""
    names, key, deletes = target.columns, target.key, target.spec.deletes
    is_write = ~F.col(OP).isin(DELETE, TRUNCATE)
    if deletes == "ignore":
        states = states.where(is_write)
    image = F.struct(*cols(names))
    last = states.groupBy(*cols(key)).agg(
        F.max_by(image, order()).alias("__last"),
        F.max_by(PRESENT, order()).alias("__present"),
        F.max(is_write).alias(KNOWN),
    )
    present = F.lit(True) if deletes == "ignore" else F.col("__present")
    keep = F.array().cast("array<string>") if deletes == "soft" else F.lit(None).cast("array<string>")
    return last.select(
        *(F.col(f"__last.{quote(c)}").alias(c) for c in names),
        F.when(present, UPDATE).otherwise(DELETE).alias(OP),
        keep.alias(KEEP),
        F.col(KNOWN),
    )


def _rows_to_insert(target: Target, rows: DataFrame) -> DataFrame:
    """Return the rows to insert into a new table."""
    deleted = F.col(OP) == DELETE
    return rows.where(KNOWN).withColumn(DELETED, deleted) if DELETED in target.own else rows.where(~deleted)


def _merge_held(batch: Batch, last: pa.Table) -> str:
    """MERGE the last event of each key, which this process holds. Return how rows were found."""
    types = {c: batch.types[c] for c in batch.target.columns} | {OP: "string"}
    unconditionally = _skips_comparison(batch)
    clauses = _clauses(batch, unconditionally=unconditionally)
    is_delete = pc.equal(last[OP], DELETE).to_numpy()
    applies = {n: ~is_delete if isinstance(c, Insert) else is_delete for n, c in enumerate(clauses) if c.when}
    how = batch.merge(HeldRows(last.select([*types]), types, applies), clauses, last.num_rows)
    return "; ".join(filter(None, (_UNCOMPARED if unconditionally else "", how)))


def _merge(batch: Batch, rows: DataFrame, at_most: int | None, *, unconditionally: bool) -> str:
    """MERGE one row per key; after a truncate, rows that are not in `rows` are deleted. Return how rows were found."""
    types, names = batch.types, batch.target.columns
    rows = rows.selectExpr(*(f"CAST({quote(c)} AS {types[c]}) AS {quote(c)}" for c in names), OP, KEEP, KNOWN)
    clauses: list[Clause | str] = [*_clauses(batch, unconditionally=unconditionally)]
    if batch.is_emptied:
        soft = DELETED in batch.target.own
        then = f"AND NOT t.{DELETED} THEN UPDATE SET t.{DELETED} = true" if soft else "THEN DELETE"
        clauses.append(f"WHEN NOT MATCHED BY SOURCE {then}")
    return batch.merge(rows, clauses, at_most)


def _clauses(batch: Batch, *, unconditionally: bool) -> list[Clause]:
    """Return what happens to the rows of the keys that a window changes."""
    target, types, names = batch.target, batch.types, batch.target.columns
    soft = DELETED in target.own
    rest = [c for c in names if c not in target.key]
    new = {c: f"s.{quote(c)}" for c in rest}
    if soft or batch.stats.unavailable:
        new = {
            c: f"CASE WHEN array_contains(s.{KEEP}, {literal(c)}) THEN t.{quote(c)} ELSE {v} END"
            for c, v in new.items()
        }
    values = {c: f"s.{quote(c)}" for c in names}
    deleted = f"(s.{OP} = '{DELETE}')"
    if soft:
        new[DELETED] = values[DELETED] = deleted
    compared = {} if unconditionally else {c: types[c] for c in new}
    # A row that was inserted and deleted within the window existed nevertheless.
    inserted = f"s.{KNOWN}" if soft else f"NOT {deleted}"
    return [
        Delete(f"s.{OP} = '{REMOVE if soft else DELETE}'"),
        *([Update(values=new, compared=compared)] if new else []),
        Insert(inserted, values),
    ]

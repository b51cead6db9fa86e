"""Current rows (SCD1): one row per key, as in the source."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.final.added_columns import DELETED
from lake_assets.final.events.key_changes import PRESENT
from lake_assets.final.events.key_histories import Needs, needs, with_truncates
from lake_assets.final.events.reduction import KEEP, KNOWN, latest, order, place
from lake_assets.final.events.staging_events import keys_of, states_of
from lake_assets.final.events.window_stats import Batch, Stats
from lake_assets.final.modes.partition_overwrite import overwrite
from lake_assets.final.modes.row_copies import REMOVE, changed_copies
from lake_assets.final.stored_rows import as_events, merge_rows, prune_by, replace_rows, stored_rows
from lake_assets.final.target import Target
from lake_assets.formats.event_model import DELETE, OP, READ, TRUNCATE, UPDATE
from lake_assets.lake import quote, thresholds
from lake_assets.lake.names import literal
from lake_assets.tables.merge_pruning import Pruning
from lake_assets.tables.spark_frames import checkpoint, together


def apply(target: Target, batch: Batch) -> tuple[str, str]:
    """Write the keys of the window, by MERGE or by partitions; return strategy and reason."""
    stats, deletes = batch.stats, target.spec.deletes
    if target.spec.by_row:
        return _apply_copies(target, batch)
    needed = needs(target, batch)
    why, emptied = list(needed.why), bool(stats.truncated) and deletes != "ignore"
    if needed.lost:
        batch.details["inserts_without_old_row"] = needed.lost
    if emptied:
        why.append("the source was truncated")
    rows = _rows(target, batch, needed)
    special = needed.late is not None or needed.tied is not None
    # Rows from a few persisted events are as quickly computed twice as persisted.
    persisted = not special and (stats.events > thresholds.LITERAL_KEYS or target.spec.write != "merge")
    rows = checkpoint(rows) if special else rows.persist() if persisted else rows
    try:
        if target.is_new:
            return "rebuild", replace_rows(target, _rows_to_insert(target, rows), batch)
        if target.spec.write == "overwrite-partitions":
            written, detail = overwrite(target, rows, batch, emptied=emptied)
            if written:
                return "overwrite", "; ".join([*why, detail])
            why.append(f"merged, since {detail}")
        # A truncate leaves nothing to prune: every row that is not in the window is deleted.
        pruning = None if emptied else prune_by(target, rows, None if special else stats.events)
        unconditionally = not special and pruning is not None and _skips_comparison(target, stats, pruning)
        if unconditionally:
            why.append("the events have all columns: stored rows are matched by their keys only")
        _merge(target, rows, pruning, batch, unconditionally=unconditionally)
    finally:
        if persisted:
            rows.unpersist()
    return "merge", "; ".join([*why, *([pruning.why] if pruning else [])])


def _apply_copies(target: Target, batch: Batch) -> tuple[str, str]:
    """Write the row copies that the window adds and removes; return strategy and reason."""
    rows, why = changed_copies(target, batch)
    rows = checkpoint(rows)
    if target.is_new:
        return "rebuild", replace_rows(target, _rows_to_insert(target, rows), batch)
    emptied = bool(batch.stats.truncated) and target.spec.deletes != "ignore"
    if emptied:
        why.append("the source was truncated")
    if target.spec.write == "overwrite-partitions":
        written, detail = overwrite(target, rows, batch, emptied=emptied)
        if written:
            return "overwrite", "; ".join([*why, detail])
        why.append(f"merged, since {detail}")
    pruning = None if emptied else prune_by(target, rows)
    _merge(target, rows, pruning, batch, unconditionally=False)
    return "merge", "; ".join([*why, *([pruning.why] if pruning else [])])


def rebuild(target: Target, batch: Batch) -> DataFrame:
    """Return the rows of the table, computed from all of staging."""
    if target.spec.by_row:
        return _rows_to_insert(target, changed_copies(target, batch)[0])
    return _rows_to_insert(target, _rows(target, batch, needs(target, batch)))


def _skips_comparison(target: Target, stats: Stats, pruning: Pruning) -> bool:
    """Whether updated rows are written without comparing them with the stored rows.

    In a large table, reading all columns takes several times as long as reading the key columns. The comparison avoids
    writing unchanged rows. It matters only for repeated events (these are late) and for events that change columns
    which the table does not have.
    """
    return pruning.is_large and target.spec.deletes == "hard" and not stats.unavailable and not target.spec.columns


def _rows(target: Target, batch: Batch, needed: Needs) -> DataFrame:
    """Return one row per key that the window changes."""
    names, key, stats, deletes = target.columns, target.key, batch.stats, target.spec.deletes
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
        before = checkpoint(stored_rows(target, tied))
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
        parts.append(latest(simple, key, names, with_unavailable=bool(stats.unavailable), with_deleted=soft))
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
    image = F.struct(*(F.col(quote(c)) for c in names))
    last = states.groupBy(*(F.col(quote(k)) for k in key)).agg(
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


def _merge(target: Target, rows: DataFrame, pruning: Pruning | None, batch: Batch, *, unconditionally: bool) -> None:
    """MERGE one row per key; without `pruning`, rows missing from `rows` are deleted (a truncate came first)."""
    types, soft = target.types, DELETED in target.own
    names = target.columns
    rest = [c for c in names if c not in target.key]
    rows = rows.selectExpr(*(f"CAST({quote(c)} AS {types[c]}) AS {quote(c)}" for c in names), OP, KEEP, KNOWN)
    on = " AND ".join(f"t.{quote(k)} = s.{quote(k)}" for k in target.key)
    new = {c: f"s.{quote(c)}" for c in rest}
    if not unconditionally:
        new = {
            c: f"CASE WHEN array_contains(s.{KEEP}, {literal(c)}) THEN t.{quote(c)} ELSE {v} END"
            for c, v in new.items()
        }
    values = {c: f"s.{quote(c)}" for c in names}
    deleted = f"(s.{OP} = '{DELETE}')"
    if soft:
        new[DELETED] = values[DELETED] = deleted
    # Unchanged rows are not written again, so the feed of this table has only real changes.
    differs = " OR ".join(f"NOT (t.{quote(c)} <=> {value})" for c, value in new.items())
    sets = ", ".join(f"t.{quote(c)} = {value}" for c, value in new.items())
    # A row that was inserted and deleted within the window existed nevertheless.
    inserted = f"s.{KNOWN}" if soft else f"NOT {deleted}"
    delete_missing = f"AND NOT t.{DELETED} THEN UPDATE SET t.{DELETED} = true" if soft else "THEN DELETE"
    clauses = [
        f"WHEN MATCHED AND s.{OP} = '{REMOVE if soft else DELETE}' THEN DELETE",
        *([f"WHEN MATCHED {'' if unconditionally else f'AND ({differs}) '}THEN UPDATE SET {sets}"] if new else []),
        f"WHEN NOT MATCHED AND {inserted} THEN INSERT ({', '.join(map(quote, values))}) "
        f"VALUES ({', '.join(values.values())})",
        *([f"WHEN NOT MATCHED BY SOURCE {delete_missing}"] if pruning is None else []),
    ]
    merge_rows(target, rows, on, clauses, pruning, batch)

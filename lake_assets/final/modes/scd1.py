"""One row a key, as the source holds it now (SCD1)."""

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
from lake_assets.lake import quote
from lake_assets.lake.names import literal
from lake_assets.tables.merge_pruning import MAX_LITERALS, Pruning
from lake_assets.tables.spark_frames import held, together


def apply(target: Target, batch: Batch) -> tuple[str, str]:
    """Write the keys of the window, by MERGE or by partitions; returns strategy and reason."""
    stats, deletes = batch.stats, target.spec.deletes
    if target.spec.by_row:
        return _apply_copies(target, batch)
    found = needs(target, batch)
    why, emptied = list(found.why), bool(stats.truncated) and deletes != "ignore"
    if found.lost:
        batch.details["inserts_without_old_row"] = found.lost
    if emptied:
        why.append("the source was truncated")
    rows = _rows(target, batch, found)
    special = found.late is not None or found.tied is not None
    # Made of a few events that are kept already, they are as quickly made twice as kept.
    kept = not special and (stats.events > MAX_LITERALS or target.spec.write != "merge")
    rows = held(rows) if special else rows.persist() if kept else rows
    try:
        if target.is_new:
            return "rebuild", replace_rows(target, _inserted(target, rows), batch)
        if target.spec.write == "overwrite-partitions":
            done, said = overwrite(target, rows, batch, emptied=emptied)
            if done:
                return "overwrite", "; ".join([*why, said])
            why.append(f"merged, since {said}")
        # Before a truncate's deletes there is nothing to prune: every row that is not in the window goes.
        pruning = None if emptied else prune_by(target, rows, None if special else stats.events)
        blindly = not special and pruning is not None and _may_write_blindly(target, stats, pruning)
        if blindly:
            why.append("all columns come with the events: those of the stored rows are not read")
        _merge(target, rows, pruning, batch, blindly=blindly)
    finally:
        if kept:
            rows.unpersist()
    return "merge", "; ".join([*why, *([pruning.why] if pruning else [])])


def _apply_copies(target: Target, batch: Batch) -> tuple[str, str]:
    """Write the copies of rows that the window adds and takes away; returns strategy and reason."""
    rows, why = changed_copies(target, batch)
    rows = held(rows)
    if target.is_new:
        return "rebuild", replace_rows(target, _inserted(target, rows), batch)
    emptied = bool(batch.stats.truncated) and target.spec.deletes != "ignore"
    if emptied:
        why.append("the source was truncated")
    if target.spec.write == "overwrite-partitions":
        done, said = overwrite(target, rows, batch, emptied=emptied)
        if done:
            return "overwrite", "; ".join([*why, said])
        why.append(f"merged, since {said}")
    pruning = None if emptied else prune_by(target, rows)
    _merge(target, rows, pruning, batch, blindly=False)
    return "merge", "; ".join([*why, *([pruning.why] if pruning else [])])


def rebuild(target: Target, batch: Batch) -> DataFrame:
    """The rows of the table, made of all that staging held."""
    if target.spec.by_row:
        return _inserted(target, changed_copies(target, batch)[0])
    return _inserted(target, _rows(target, batch, needs(target, batch)))


def _may_write_blindly(target: Target, stats: Stats, pruning: Pruning) -> bool:
    """Whether updated rows are written without a look at what they were.

    Of a large table, reading all columns where the key's would do takes several times as long. What it is good for, not
    writing rows that stay as they are, matters where events come again (these are late) or are about columns that the
    table does not have.
    """
    return pruning.is_large and target.spec.deletes == "hard" and not stats.unavailable and not target.spec.columns


def _rows(target: Target, batch: Batch, found: Needs) -> DataFrame:
    """One row a key that the window changes."""
    names, key, stats, deletes = target.columns, target.key, batch.stats, target.spec.deletes
    events, late, tied, history = batch.events, found.late, found.tied, found.history
    truncated = stats.truncated
    if history is not None:
        truncated = history.where(F.col(OP) == TRUNCATE).agg(F.max(order()).alias("last")).collect()[0]["last"]
        if stats.truncated:
            # Any row may have been inserted behind the truncate and have arrived before it.
            late, tied = held(keys_of(target, history)), None
    special: list[DataFrame] = []
    apart: list[DataFrame] = []
    if late is not None and history is not None:
        mine = _cut(target, history.join(late, list(key), "left_semi"), history, truncated)
        if target.projection.is_computed_late:
            apart.append(states_of(target, mine, moved=found.moved, of_source=True))
        else:
            special.append(mine)
    if tied is not None:
        before = held(stored_rows(target, tied))
        known = as_events(target, before, READ)
        if deletes == "soft":
            known = known.unionByName(as_events(target, before.where(F.col(DELETED)), DELETE, 1))
        # What the table holds is what truncates before the window have left: only those of the window count.
        mine = known.unionByName(events.join(tied, list(key), "left_semi"))
        special.append(_cut(target, mine, batch.events, stats.truncated))
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
        apart.append(states_of(target, together(special), moved=found.moved))
    if apart:
        parts.append(_last(target, together(apart)))
    return together(parts)


def _cut(target: Target, events: DataFrame, truncates: DataFrame, last: Row | None) -> DataFrame:
    """Events of keys that need more than their last one, with what truncates mean for them."""
    if last is None or target.spec.deletes == "ignore":
        return events
    if target.spec.deletes == "hard":
        return _after(events, last)
    return with_truncates(events, held(keys_of(target, events)), truncates, target.key)


def _after(events: DataFrame, truncated: Row | None) -> DataFrame:
    return events.where(order() > place(truncated)) if truncated else events


def _last(target: Target, states: DataFrame) -> DataFrame:
    """The last state of each key, from all that has to be known of it."""
    names, key, deletes = target.columns, target.key, target.spec.deletes
    written = ~F.col(OP).isin(DELETE, TRUNCATE)
    if deletes == "ignore":
        states = states.where(written)
    image = F.struct(*(F.col(quote(c)) for c in names))
    last = states.groupBy(*(F.col(quote(k)) for k in key)).agg(
        F.max_by(image, order()).alias("__last"),
        F.max_by(PRESENT, order()).alias("__present"),
        F.max(written).alias(KNOWN),
    )
    present = F.lit(True) if deletes == "ignore" else F.col("__present")
    kept = F.array().cast("array<string>") if deletes == "soft" else F.lit(None).cast("array<string>")
    return last.select(
        *(F.col(f"__last.{quote(c)}").alias(c) for c in names),
        F.when(present, UPDATE).otherwise(DELETE).alias(OP),
        kept.alias(KEEP),
        F.col(KNOWN),
    )


def _inserted(target: Target, rows: DataFrame) -> DataFrame:
    """The rows of a table that holds none yet."""
    deleted = F.col(OP) == DELETE
    return rows.where(KNOWN).withColumn(DELETED, deleted) if DELETED in target.own else rows.where(~deleted)


def _merge(target: Target, rows: DataFrame, pruning: Pruning | None, batch: Batch, *, blindly: bool) -> None:
    """MERGE one row a key; without `pruning` what is not in `rows` goes (a truncate came before them)."""
    types, soft = target.types, DELETED in target.own
    names = target.columns
    rest = [c for c in names if c not in target.key]
    rows = rows.selectExpr(*(f"CAST({quote(c)} AS {types[c]}) AS {quote(c)}" for c in names), OP, KEEP, KNOWN)
    on = " AND ".join(f"t.{quote(k)} = s.{quote(k)}" for k in target.key)
    new = {c: f"s.{quote(c)}" for c in rest}
    if not blindly:
        new = {
            c: f"CASE WHEN array_contains(s.{KEEP}, {literal(c)}) THEN t.{quote(c)} ELSE {v} END"
            for c, v in new.items()
        }
    values = {c: f"s.{quote(c)}" for c in names}
    deleted = f"(s.{OP} = '{DELETE}')"
    if soft:
        new[DELETED] = values[DELETED] = deleted
    # A row that is as it was is not written again: the feed of this table then shows what changed, and no more.
    differs = " OR ".join(f"NOT (t.{quote(c)} <=> {value})" for c, value in new.items())
    sets = ", ".join(f"t.{quote(c)} = {value}" for c, value in new.items())
    # A row that was made and deleted within the window was there all the same.
    inserted = f"s.{KNOWN}" if soft else f"NOT {deleted}"
    gone = f"AND NOT t.{DELETED} THEN UPDATE SET t.{DELETED} = true" if soft else "THEN DELETE"
    clauses = [
        f"WHEN MATCHED AND s.{OP} = '{REMOVE if soft else DELETE}' THEN DELETE",
        *([f"WHEN MATCHED {'' if blindly else f'AND ({differs}) '}THEN UPDATE SET {sets}"] if new else []),
        f"WHEN NOT MATCHED AND {inserted} THEN INSERT ({', '.join(map(quote, values))}) "
        f"VALUES ({', '.join(values.values())})",
        *([f"WHEN NOT MATCHED BY SOURCE {gone}"] if pruning is None else []),
    ]
    merge_rows(target, rows, on, clauses, pruning, batch)

"""Tables without a key (`key: "*"`): how many copies of each row there are.

Every insert adds one copy of its row and every delete takes one away, so that equal rows are as many as at the source.
A final table numbers them: `__row` is the hash of the values, `__copy` counts from 1. The copies of a row are those
with the lowest numbers; what a change writes are the numbers that come or go.

A change that is delivered twice counts once. It is told by its sequence, as far as that goes: all rows of a COPY, or of
a snapshot, share theirs. Equal events of one sequence that come one after the other are therefore so many copies; where
the stream comes back to a sequence, it repeats what it said before.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.final.added_columns import DELETED
from lake_assets.final.events.key_changes import BASE_POSITION
from lake_assets.final.events.key_histories import with_truncates
from lake_assets.final.events.reduction import KEEP, KNOWN, ORDER, order, place
from lake_assets.final.events.staging_events import history_of
from lake_assets.final.events.window_stats import Batch, is_late
from lake_assets.final.row_hash import COPY, ROW
from lake_assets.final.target import Target
from lake_assets.formats.event_model import ARRIVED_AT, DELETE, INDEX, OP, POSITION, READ, SEQUENCE, TRUNCATE, UPDATE
from lake_assets.lake import quote
from lake_assets.tables.merge_pruning import prune
from lake_assets.tables.spark_frames import held

# What becomes of a stored copy that never was, as late events show.
REMOVE = "remove"
_BY, _BEFORE, _MOST = "_by", "_before", "_most"


def changed_copies(target: Target, batch: Batch) -> tuple[DataFrame, list[str]]:
    """Return one row per copy that the window adds or takes away, as `scd1` writes them, and reasons for people.

    Where the window holds a truncate, and where the table is made anew, these are all copies of its rows.
    """
    stats, deletes, why = batch.stats, target.spec.deletes, ["each event adds or removes one copy of its row"]
    emptied = bool(stats.truncated) and deletes != "ignore"
    late, events = None, batch.events
    if stats.late:
        why.append("late or repeated events: the copies of their rows are counted from all of their history")
        history = _once(target, history_of(target, batch.head.snapshot))
        late = None if emptied else held(_rows_of(batch.events.where(is_late(target, batch.before))))
        events = history
    else:
        events = _once(target, events)
    counted = held(_counted(target, events, late, batch, emptied=emptied))
    if lost := counted.agg(F.sum("lost")).collect()[0][0]:
        batch.details["deletes_without_row"] = int(lost)
    return _as_changes(target, counted, everything=emptied or target.is_new), why


def _rows_of(events: DataFrame) -> DataFrame:
    """The rows that events are about; a truncate is about none."""
    return events.where(F.col(OP) != TRUNCATE).select(ROW).distinct()


def _once(target: Target, events: DataFrame) -> DataFrame:
    """Events without those that were delivered again."""
    told = F.expr(f"({target.same_again}) AND {OP} <> '{TRUNCATE}'")
    stream = Window.orderBy(POSITION, INDEX)
    begins = ~F.lag(SEQUENCE).over(stream).eqNullSafe(F.col(SEQUENCE))
    so_far = stream.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = events.withColumn("_run", F.sum(begins.cast("int")).over(so_far))
    # A run may go on in the next batch of files; one that says the same as the part before it is that part again.
    part = Window.partitionBy("_run", ARRIVED_AT)
    content = F.struct(F.count("*").over(part), F.sum(F.xxhash64(ROW, OP).cast("decimal(38,0)")).over(part))
    rows = rows.withColumn("_part", content)
    again = F.dense_rank().over(Window.partitionBy("_run", "_part").orderBy(ARRIVED_AT)) > 1
    rows = rows.withColumn("_again", again).where(~told | ~F.col("_again"))
    same = [ROW, OP, SEQUENCE]
    nth = F.row_number().over(Window.partitionBy(*same, "_run").orderBy(POSITION, INDEX))
    first = F.row_number().over(Window.partitionBy(*same, "_nth").orderBy(POSITION, INDEX))
    rows = rows.withColumn("_nth", nth).withColumn("_first", first)
    return rows.where(~told | (F.col("_first") == 1)).drop("_run", "_part", "_again", "_nth", "_first")


def _counted(target: Target, events: DataFrame, late: DataFrame | None, batch: Batch, *, emptied: bool) -> DataFrame:
    """Per row that the window is about: its values, the copies `n` that there are and `most` that there ever were, both
    also as they are stored (`n0`, `most0`), and how many deletes found none."""
    deletes = target.spec.deletes
    keys = held(_rows_of(events if emptied else batch.events))
    is_stored = not (emptied or target.is_new)
    stored = held(_stored(target, keys)) if is_stored else None
    rows = events.join(keys, ROW, "left_semi")
    if late is not None:
        # Of the others, what is stored stands for all before the window.
        since = _once(target, batch.events).join(late, ROW, "left_anti")
        rows = rows.join(late, ROW, "left_semi").unionByName(since)
    truncates = events.where(F.col(OP) == TRUNCATE)
    if deletes == "ignore":
        rows = rows.where(F.col(OP) != DELETE)
    elif deletes == "soft":
        # What is stored of the others came after all truncates.
        rows = with_truncates(rows, keys if late is None else late, truncates, [ROW])
    elif (last := truncates.agg(F.max(F.expr(ORDER)).alias("last")).collect()[0]["last"]) is not None:
        rows = rows.where(order() > place(last))
    columns = [c for c in target.columns if c not in (ROW, COPY)]
    image = F.struct(*(F.col(quote(c)) for c in columns))
    steps = rows.select(
        ROW, SEQUENCE, POSITION, INDEX, OP, F.when(F.col(OP) != TRUNCATE, image).alias("image"),
        F.expr(f"CASE {OP} WHEN '{DELETE}' THEN -1L WHEN '{TRUNCATE}' THEN 0L ELSE 1L END").alias(_BY),
    )  # fmt: skip
    if stored is not None:
        base = stored if late is None else stored.join(late, ROW, "left_anti")
        steps = steps.unionByName(
            base.select(
                ROW, F.lit("").alias(SEQUENCE), F.lit(BASE_POSITION).alias(POSITION), F.lit(0).alias(INDEX),
                F.lit(READ).alias(OP), F.lit(None).cast(steps.schema["image"].dataType).alias("image"),
                F.col("n0").alias(_BY),
            )
        )  # fmt: skip
    found = _folded(steps)
    if stored is None:
        return found.withColumns({"n0": F.lit(0).cast("bigint"), "most0": F.lit(0).cast("bigint")})
    both = found.join(stored, ROW, "left")
    both = both.withColumns({c: F.coalesce(F.col(c), F.lit(0).cast("bigint")) for c in ("n0", "most0")})
    if late is None:
        return both.withColumn("most", F.greatest("most", "most0"))
    recounted = both.join(late, ROW, "left_semi")
    return recounted.unionByName(both.join(late, ROW, "left_anti").withColumn("most", F.greatest("most", "most0")))


def _folded(steps: DataFrame) -> DataFrame:
    """Per row, the number of copies after all steps: one more or one less each, never below zero."""
    ordered = Window.partitionBy(ROW).orderBy(SEQUENCE, POSITION, INDEX)
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    epochs = steps.withColumn("_epoch", F.sum((F.col(OP) == TRUNCATE).cast("int")).over(so_far))
    within = Window.partitionBy(ROW, "_epoch").orderBy(SEQUENCE, POSITION, INDEX)
    within = within.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    summed = epochs.withColumn("_sum", F.sum(_BY).over(within))
    # Deletes of rows that are not there change nothing: what is below zero is not made up for.
    below = F.least(F.lit(0).cast("bigint"), F.min("_sum").over(within))
    counts = summed.withColumn("_below", below).withColumn("_count", F.col("_sum") - F.col("_below"))
    return counts.groupBy(ROW).agg(
        F.max_by("image", F.when(F.col("image").isNotNull(), order())).alias("image"),
        F.max_by("_count", order()).alias("n"),
        F.max("_count").alias("most"),
        (-F.min("_below")).alias("lost"),
    )


def _stored(target: Target, keys: DataFrame) -> DataFrame:
    """How many copies of these rows the table holds: `n0` that are there, `most0` with those marked as deleted."""
    lake, table = target.lake, target.spec.table
    pruning = prune(keys, (ROW,), lake.table(table), types=target.types)
    where = f" WHERE {pruning.condition}" if pruning.condition else ""
    sql = f"SELECT * FROM {lake.sql_name(table)} t{where}"
    rows = lake.spark().sql(sql, args=pruning.values) if pruning.values else lake.spark().sql(sql)
    there = ~F.col(DELETED) if DELETED in target.own else F.lit(True)
    return rows.join(keys, ROW, "left_semi").groupBy(ROW).agg(
        F.count_if(there).alias("n0"), F.count("*").alias("most0")
    )  # fmt: skip


def _as_changes(target: Target, counted: DataFrame, *, everything: bool) -> DataFrame:
    """One row per copy, with what becomes of it."""
    soft = DELETED in target.own
    first, last = F.lit(1).cast("bigint"), F.col("most") if soft else F.col("n")
    if not everything:
        first = F.least("n", "n0") + 1
        last = F.greatest("most", "most0") if soft else F.greatest("n", "n0")
    copies = counted.where(first <= last).withColumn(COPY, F.explode(F.sequence(first, last)))
    copy = F.col(COPY)
    op = F.when(copy > F.col("n"), DELETE).otherwise(UPDATE)
    if soft:
        op = F.when(copy > F.col("most"), REMOVE).otherwise(op)
    values = [
        F.col(c) if c in (ROW, COPY) else F.col(f"image.{quote(c)}").alias(c) for c in target.columns
    ]  # fmt: skip
    return copies.select(
        *values, op.alias(OP), F.lit(None).cast("array<string>").alias(KEEP), (op != REMOVE).alias(KNOWN)
    )

"""Tables without a key (`key: "*"`): the number of copies of each row.

Every insert adds one copy of its row and every delete removes one, so the table has as many equal rows as the source.
The copies are numbered: `__row` is the hash of the values, `__copy` counts from 1. A row with `n` copies has the
numbers 1 to `n`; a change writes only the numbers that are added or removed.

A change that is delivered twice counts once. It is recognized by its sequence, with a limit: all rows of a COPY, or of
a snapshot, share one sequence. So consecutive equal events of one sequence count as that many copies, and if the stream
returns to an earlier sequence, it repeats earlier events. Equal events of one sequence in two batches that follow each
other may be either: they count as copies, and the table is reported as not exact.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.final.added_columns import DELETED
from lake_assets.final.batch import Batch
from lake_assets.final.events.key_changes import BASE_POSITION
from lake_assets.final.events.reduction import KEEP, KNOWN, ORDER, order, place
from lake_assets.final.events.staging_events import history_of
from lake_assets.final.modes.key_histories import with_truncates
from lake_assets.final.row_hash import COPY, ROW
from lake_assets.final.target import Target
from lake_assets.formats.event_model import ARRIVED_AT, DELETE, INDEX, OP, POSITION, READ, SEQUENCE, TRUNCATE, UPDATE
from lake_assets.ingest.staging.exactness import Reason
from lake_assets.lake import quote
from lake_assets.tables.spark_frames import checkpoint, cols

# The operation that removes a stored copy which never existed, according to late events.
REMOVE = "remove"
# Detail of a step: the number of events that are copies or repeats of earlier ones, and count as copies.
DOUBTFUL = "copies_or_repeats"
_BY, _BEFORE, _MOST = "_by", "_before", "_most"


def copies_or_repeats() -> Reason:
    """Return the reason for a table without a key where equal rows of one position arrived in several batches."""
    return Reason(
        "copies",
        "equal rows with one position in the source's log arrived in several batches. They are further rows of one "
        "statement (COPY, a snapshot), or the connector was restarted and sent some again; all are counted. If it was "
        "restarted, compare the number of rows with the source, and declare a `key`, if the table has one, or let the "
        "connector take another snapshot",
    )


def changed_copies(batch: Batch) -> tuple[DataFrame, list[str]]:
    """Return one row per copy that the window adds or removes, in the form that `scd1` writes, and readable reasons.

    If the window has a truncate, or the table is rebuilt, these are all copies of all rows.
    """
    target, why = batch.target, ["each event adds or removes one copy of its row"]
    late = None
    if batch.stats.late:
        why.append("late or repeated events: the copies of their rows are counted from their whole history")
        events = _once(target, history_of(target, batch.head.snapshot))
        late = None if batch.is_emptied else checkpoint(_rows_of(batch.late_events))
    else:
        events = _once(target, batch.events)
    counted = checkpoint(_count(batch, events, late))
    sums = counted.agg(F.sum("lost").alias("lost"), F.sum("doubtful").alias("doubtful")).collect()[0]
    if sums["lost"]:
        batch.details["deletes_without_row"] = int(sums["lost"])
    if sums["doubtful"]:
        batch.details[DOUBTFUL] = int(sums["doubtful"])
    return _as_changes(target, counted, everything=batch.is_emptied or target.is_new), why


def _rows_of(events: DataFrame) -> DataFrame:
    """Return the distinct rows that events insert or delete (a truncate has no row)."""
    return events.where(F.col(OP) != TRUNCATE).select(ROW).distinct()


def _once(target: Target, events: DataFrame) -> DataFrame:
    """Return the events without repeated deliveries; `_doubtful`: whether an event may be one and counts as a copy."""
    may_repeat = F.expr(f"({target.same_again}) AND {OP} <> '{TRUNCATE}'")
    stream = Window.orderBy(POSITION, INDEX)
    begins = ~F.lag(SEQUENCE).over(stream).eqNullSafe(F.col(SEQUENCE))
    so_far = stream.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = events.withColumn("_run", F.sum(begins.cast("int")).over(so_far))
    # A run may continue in the next batch of files; a part with the same content as an earlier part repeats it.
    part = Window.partitionBy("_run", ARRIVED_AT)
    content = F.struct(F.count("*").over(part), F.sum(F.xxhash64(ROW, OP).cast("decimal(38,0)")).over(part))
    rows = rows.withColumn("_part", content)
    repeated = F.dense_rank().over(Window.partitionBy("_run", "_part").orderBy(ARRIVED_AT)) > 1
    rows = rows.withColumn("_again", repeated).where(~may_repeat | ~F.col("_again"))
    equal = [ROW, OP, SEQUENCE]
    nth = F.row_number().over(Window.partitionBy(*equal, "_run").orderBy(POSITION, INDEX))
    first = F.row_number().over(Window.partitionBy(*equal, "_nth").orderBy(POSITION, INDEX))
    since = F.min(ARRIVED_AT).over(Window.partitionBy(*equal, "_run"))
    rows = rows.withColumn("_nth", nth).withColumn("_first", first)
    # A snapshot that is interrupted begins again, at another place.
    doubtful = may_repeat & (F.col(OP) != READ) & (F.col(ARRIVED_AT) > since)
    rows = rows.withColumn("_doubtful", doubtful)
    return rows.where(~may_repeat | (F.col("_first") == 1)).drop("_run", "_part", "_again", "_nth", "_first")


def _count(batch: Batch, events: DataFrame, late: DataFrame | None) -> DataFrame:
    """Count the copies of each row that the window changes.

    Returns:
        One row per `__row`: `image` with its values, `n` copies now and `most` copies ever, `n0` and `most0` the same
        as stored, and `lost` the number of deletes without a copy to remove.
    """
    target, deletes = batch.target, batch.target.spec.deletes
    keys = checkpoint(_rows_of(events if batch.is_emptied else batch.events))
    stored = checkpoint(_stored(batch, keys)) if not (batch.is_emptied or target.is_new) else None
    rows = events.join(keys, ROW, "left_semi")
    if late is not None:
        # For other rows, the stored copies replace all events before the window.
        since = _once(target, batch.events).join(late, ROW, "left_anti")
        rows = rows.join(late, ROW, "left_semi").unionByName(since)
    truncates = events.where(F.col(OP) == TRUNCATE)
    if deletes == "ignore":
        rows = rows.where(F.col(OP) != DELETE)
    elif deletes == "soft":
        # Stored copies of other rows came after all earlier truncates.
        rows = with_truncates(rows, keys if late is None else late, truncates, [ROW])
    elif (last := truncates.agg(F.max(F.expr(ORDER)).alias("last")).collect()[0]["last"]) is not None:
        rows = rows.where(order() > place(last))
    columns = [c for c in target.columns if c not in (ROW, COPY)]
    image = F.struct(*cols(columns))
    steps = rows.select(
        ROW, SEQUENCE, POSITION, INDEX, OP, F.when(F.col(OP) != TRUNCATE, image).alias("image"),
        F.expr(f"CASE {OP} WHEN '{DELETE}' THEN -1L WHEN '{TRUNCATE}' THEN 0L ELSE 1L END").alias(_BY),
        F.col("_doubtful").cast("bigint"),
    )  # fmt: skip
    if stored is not None:
        base = stored if late is None else stored.join(late, ROW, "left_anti")
        steps = steps.unionByName(
            base.select(
                ROW, F.lit("").alias(SEQUENCE), F.lit(BASE_POSITION).alias(POSITION), F.lit(0).alias(INDEX),
                F.lit(READ).alias(OP), F.lit(None).cast(steps.schema["image"].dataType).alias("image"),
                F.col("n0").alias(_BY), F.lit(0).cast("bigint").alias("_doubtful"),
            )
        )  # fmt: skip
    counts = _fold(steps)
    if stored is None:
        return counts.withColumns({"n0": F.lit(0).cast("bigint"), "most0": F.lit(0).cast("bigint")})
    both = counts.join(stored, ROW, "left")
    both = both.withColumns({c: F.coalesce(F.col(c), F.lit(0).cast("bigint")) for c in ("n0", "most0")})
    if late is None:
        return both.withColumn("most", F.greatest("most", "most0"))
    recounted = both.join(late, ROW, "left_semi")
    return recounted.unionByName(both.join(late, ROW, "left_anti").withColumn("most", F.greatest("most", "most0")))


def _fold(steps: DataFrame) -> DataFrame:
    """Return per row the number of copies after all steps; each adds or removes one, never going below zero."""
    ordered = Window.partitionBy(ROW).orderBy(SEQUENCE, POSITION, INDEX)
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    epochs = steps.withColumn("_epoch", F.sum((F.col(OP) == TRUNCATE).cast("int")).over(so_far))
    within = Window.partitionBy(ROW, "_epoch").orderBy(SEQUENCE, POSITION, INDEX)
    within = within.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    summed = epochs.withColumn("_sum", F.sum(_BY).over(within))
    # Deletes of missing rows change nothing: a negative sum is not carried over.
    below = F.least(F.lit(0).cast("bigint"), F.min("_sum").over(within))
    counts = summed.withColumn("_below", below).withColumn("_count", F.col("_sum") - F.col("_below"))
    return counts.groupBy(ROW).agg(
        F.max_by("image", F.when(F.col("image").isNotNull(), order())).alias("image"),
        F.max_by("_count", order()).alias("n"),
        F.max("_count").alias("most"),
        (-F.min("_below")).alias("lost"),
        F.sum("_doubtful").alias("doubtful"),
    )


def _stored(batch: Batch, keys: DataFrame) -> DataFrame:
    """Return the stored number of copies of these rows: `n0` current ones, `most0` including soft-deleted ones."""
    is_current = ~F.col(DELETED) if DELETED in batch.target.own else F.lit(True)
    counts = (F.count_if(is_current).alias("n0"), F.count("*").alias("most0"))
    return batch.stored_rows(keys, by=[ROW]).groupBy(ROW).agg(*counts)


def _as_changes(target: Target, counted: DataFrame, *, everything: bool) -> DataFrame:
    """Return one row per copy, with the operation to apply to it."""
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

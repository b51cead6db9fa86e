"""From the change events of a window to one row a key: what each key is after them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.events.model import DELETE, INDEX, OP, POSITION, SEQUENCE, TRUNCATE, UNAVAILABLE
from lake_assets.lake import quote

KEEP = "_keep"
KNOWN = "_known"


def order() -> Column:
    """The order of change events: the source's own sequence, ties by place in the stream."""
    return F.struct(F.col(SEQUENCE).alias("sequence"), F.col(POSITION).alias("position"), F.col(INDEX).alias("index"))


def latest(
    events: DataFrame, key: Sequence[str], columns: Sequence[str], *, with_unavailable: bool, with_deleted: bool = False
) -> DataFrame:
    """One row a key: its columns after its last event, `_op` (delete or not), `_keep`, `_known`.

    Args:
        events: `columns` and the technical ones.
        key: the columns that identify a row.
        columns: all columns of the row.
        with_unavailable: whether some event leaves values out. Such a column takes its value from the last event of
            the window that carries it; where none does, its name is in `_keep`, and the stored value stays.
        with_deleted: whether a deleted row is wanted as it was, not as what its delete says of it. Where no event
            wrote it, all of its columns are in `_keep`, and `_known` is false.
    """
    rows = events.where(F.col(OP) != TRUNCATE)
    keys = [F.col(quote(k)) for k in key]
    image = F.struct(*(F.col(quote(c)) for c in columns), F.col(OP), F.col(UNAVAILABLE))
    written = F.col(OP) != DELETE
    aggregates = [
        F.max_by(image, F.when(written, order()) if with_deleted else order()).alias("last"),
        F.max_by(F.col(OP), order()).alias("op"),
        F.max(F.when(written, order())).alias("written"),
    ]
    rest = [c for c in columns if c not in key]
    if with_unavailable or with_deleted:
        for i, column in enumerate(rest):
            carried = ~F.coalesce(F.array_contains(UNAVAILABLE, F.lit(column)), F.lit(False)) & written
            value = F.struct(F.col(quote(column)).alias("value"), order().alias("at"))
            aggregates.append(F.max_by(F.when(carried, value), F.when(carried, order())).alias(f"v{i}"))
    # An update that follows a delete makes the row again: what it leaves out is not what the deleted one held.
    aggregates.append(F.max(F.when(~written, order())).alias("deleted"))
    last = rows.groupBy(*keys).agg(*aggregates)
    known = F.col("last").isNotNull().alias(KNOWN)
    if not with_unavailable and not with_deleted:
        every = [F.col(f"last.{quote(c)}").alias(c) for c in columns]
        return last.select(*every, F.col("op").alias(OP), F.lit(None).cast("array<string>").alias(KEEP), known)
    none, all_ = F.array().cast("array<string>"), F.array(*map(F.lit, rest)).cast("array<string>")
    gone = F.when(F.col("last").isNull(), all_).otherwise(F.coalesce(F.col(f"last.{UNAVAILABLE}"), none))
    again = F.coalesce(F.col("deleted") < F.col("written"), F.lit(False))
    kept = [
        F.when(F.array_contains(gone, F.lit(c)) & F.col(f"v{i}").isNull() & ~again, F.lit(c))
        for i, c in enumerate(rest)
    ]
    values = {
        c: F.when(
            F.array_contains(gone, F.lit(c)),
            F.when(~again | (F.col(f"v{i}.at") > F.col("deleted")), F.col(f"v{i}.value")),
        ).otherwise(F.col(f"last.{quote(c)}"))
        for i, c in enumerate(rest)
    }
    return last.select(
        *(values[c].alias(c) if c in values else F.col(quote(c)) for c in columns),
        F.col("op").alias(OP),
        (F.array_compact(F.array(*kept)) if kept else none).alias(KEEP),
        known,
    )

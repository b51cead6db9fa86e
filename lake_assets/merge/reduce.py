"""From the change events of a window to one row a key: what each key is after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.events.model import DELETE, INDEX, OP, POSITION, SEQUENCE, TRUNCATE, UNAVAILABLE
from lake_assets.lake import quote

KEEP = "_keep"


def order() -> Column:
    """The order of change events: the source's own sequence, ties by place in the stream."""
    return F.struct(F.col(SEQUENCE).alias("sequence"), F.col(POSITION).alias("position"), F.col(INDEX).alias("index"))


def latest(events: DataFrame, key: Sequence[str], columns: Sequence[str], *, with_unavailable: bool) -> DataFrame:
    """One row a key: its columns after its last event, `_op` (delete or not), `_keep`.

    Args:
        events: `columns` and the technical ones.
        key: the columns that identify a row.
        columns: all columns of the row.
        with_unavailable: whether some event leaves values out. Such a column takes its value from the last event of
            the window that carries it; where none does, its name is in `_keep`, and the stored value stays.
    """
    rows = events.where(F.col(OP) != TRUNCATE)
    keys = [F.col(quote(k)) for k in key]
    image = F.struct(*(F.col(quote(c)) for c in columns), F.col(OP), F.col(UNAVAILABLE))
    aggregates = [F.max_by(image, order()).alias("last")]
    rest = [c for c in columns if c not in key]
    if with_unavailable:
        for i, column in enumerate(rest):
            carried = ~F.coalesce(F.array_contains(UNAVAILABLE, F.lit(column)), F.lit(False)) & (F.col(OP) != DELETE)
            value = F.struct(F.col(quote(column)).alias("value"))
            aggregates.append(F.max_by(F.when(carried, value), F.when(carried, order())).alias(f"v{i}"))
    last = rows.groupBy(*keys).agg(*aggregates)
    if not with_unavailable:
        return last.select("last.*").withColumn(KEEP, F.lit(None).cast("array<string>")).drop(UNAVAILABLE)
    gone = F.coalesce(F.col(f"last.{UNAVAILABLE}"), F.array().cast("array<string>"))
    kept = [F.when(F.array_contains(gone, F.lit(c)) & F.col(f"v{i}").isNull(), F.lit(c)) for i, c in enumerate(rest)]
    values: Mapping[str, Column] = {
        c: F.when(F.array_contains(gone, F.lit(c)), F.col(f"v{i}.value")).otherwise(F.col(f"last.{quote(c)}"))
        for i, c in enumerate(rest)
    }
    return last.select(
        *(F.col(f"last.{quote(k)}").alias(k) for k in key),
        *(value.alias(name) for name, value in values.items()),
        F.col(f"last.{OP}").alias(OP),
        F.array_compact(F.array(*kept)).alias(KEEP),
    )

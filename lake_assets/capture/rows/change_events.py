"""Changed rows as change events: one per changed row, with its values before and after."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lake_assets.capture.rows.changed_rows import AFTER, BEFORE, CHANGE, DELETE, INSERT, View, feed
from lake_assets.capture.rows.row_bitmaps import named
from lake_assets.capture.rows.value_differences import PAIR
from lake_assets.lake import quote

OPS = {INSERT: "c", DELETE: "d", AFTER: "u"}


def events(view: View, by: Sequence[str] | None, source: str) -> DataFrame:
    """Return events with `op` (c, u, d), `before`, `after` and `source.table`, as in Debezium's envelope.

    Args:
        by: see `changed_rows.feed`.
    """
    rows = feed(view, by, pairs=True)
    image = F.struct(*named(view.columns))
    commits = view.output[len(view.columns) :]
    unpaired = rows.where(F.col(PAIR).isNull())
    is_insert = F.col(CHANGE) == INSERT
    single = unpaired.select(
        F.when(is_insert, F.lit(OPS[INSERT])).otherwise(F.lit(OPS[DELETE])).alias("op"),
        F.when(~is_insert, image).alias("before"),
        F.when(is_insert, image).alias("after"),
        *named(commits),
    )
    pairs = rows.where(F.col(PAIR).isNotNull()).groupBy(PAIR, *commits)
    update = pairs.agg(
        F.first(F.when(F.col(CHANGE) == BEFORE, image), ignorenulls=True).alias("before"),
        F.first(F.when(F.col(CHANGE) == AFTER, image), ignorenulls=True).alias("after"),
    ).select(F.lit(OPS[AFTER]).alias("op"), "before", "after", *commits)
    name = F.struct(F.lit("iceberg").alias("connector"), F.lit(source).alias("table"))
    return single.unionAll(update).withColumn("source", name)


def reduced(frame: DataFrame, keys: Sequence[str], *, keep_before: bool) -> DataFrame:
    """Reduce a feed or events to the keys, and whole before-images if `keep_before` is set."""
    kinds = {f.name: f.dataType for f in frame.schema.fields}
    if "op" in kinds and isinstance(kinds.get("after"), T.StructType):
        frame = frame.withColumn("after", _key_struct("after", keys))
        return frame if keep_before else frame.withColumn("before", _key_struct("before", keys))
    if not keep_before:
        own = [c for c in frame.columns if c in keys or c.startswith(("_change_", "_commit_"))]
        return frame.select(*named(own))
    # An update is represented by its before-image, an insert, which has none, by its key.
    has_before = F.col(CHANGE).isin(BEFORE, DELETE)
    columns = [
        F.col(quote(c))
        if c in keys or c.startswith(("_change_", "_commit_"))
        else F.when(has_before, F.col(quote(c))).alias(c)
        for c in frame.columns
    ]
    return frame.where(F.col(CHANGE) != AFTER).select(*columns)


def _key_struct(image: str, keys: Sequence[str]) -> Column:
    fields = F.struct(*(F.col(image).getField(k).alias(k) for k in keys))
    return F.when(F.col(image).isNotNull(), fields)

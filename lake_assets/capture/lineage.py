"""Changed rows by row lineage (format v3): which version of which row each side holds.

Rows are told apart by `_row_id` and their versions by `_last_updated_sequence_number`, which engines carry along
when they rewrite a file. To find what changed, 64 row ids at a time become one bitmap a side: comparing bitmaps
shuffles a few bytes for 64 rows, where joining the sides would shuffle every carried-over row whole. The bitmaps
that differ are broadcast, and both sides are read once more for the rows that are in them.

Source: https://iceberg.apache.org/spec/#row-lineage
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets.lake import quote

ROW_ID, VERSION = "_row_id", "_last_updated_sequence_number"
CHANGE = "_change_type"
INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_before", "update_after"
# Bitmaps of this many captured rows (16 bytes for 64) are broadcast; beyond, they are joined by shuffling.
BROADCAST_ROWS = 500_000_000

_BUCKET, _GONE, _NEW = "__lake_bucket", "__lake_gone", "__lake_new"


def changes(
    spark: SparkSession, after: str, before: str, columns: list[str], *, since: int | None, forward: bool, rows: int
) -> tuple[DataFrame, DataFrame]:
    """The before-images and the after-images of every row that differs, each with `_change_type`.

    Args:
        spark: the session.
        after: SQL name of the ICDC table as of the end.
        before: SQL name of the ICDC table as of the start.
        columns: what to read.
        since: rows with a version up to this one are the same on both sides: the sequence number of the newest
            common ancestor. None: not known, so that versions are compared one by one.
        forward: whether the common ancestor is the start itself: then only newer versions are after-images.
        rows: how many rows the sides hold, at most.
    """
    ledger = _ledger(spark, after, before, since)
    small = F.broadcast(ledger) if rows <= BROADCAST_ROWS else ledger
    olds = _flagged(spark.table(before), columns, small, _GONE, _NEW, BEFORE, DELETE)
    news = spark.table(after)
    if forward and since is not None:
        news = news.where(F.col(VERSION) > since)
    return olds, _flagged(news, columns, small, _NEW, _GONE, AFTER, INSERT)


def upserts(spark: SparkSession, after: str, columns: list[str], *, since: int) -> DataFrame:
    """Rows that were inserted or updated after sequence number `since`, an ancestor of the end."""
    return spark.table(after).where(F.col(VERSION) > since).select(*_columns(columns))


def _ledger(spark: SparkSession, after: str, before: str, since: int | None) -> DataFrame:
    """For every 64 row ids with a difference: bitmaps of the rows that are gone and of those that are new."""
    # A version up to `since` is the same version of the row whatever its number.
    version = F.col(VERSION) if since is None else F.greatest(F.col(VERSION), F.lit(since))

    def bitmaps(table: str, name: str) -> DataFrame:
        bit = F.expr(f"shiftleft(1L, CAST({ROW_ID} & 63 AS INT))")
        rows = spark.table(table).select(F.shiftright(ROW_ID, 6).alias(_BUCKET), version.alias("v"), bit.alias("bit"))
        return rows.groupBy(_BUCKET, "v").agg(F.bit_or("bit").alias(name))

    both = bitmaps(before, "b").join(bitmaps(after, "a"), [_BUCKET, "v"], "full")
    b, a = F.coalesce("b", F.lit(0)), F.coalesce("a", F.lit(0))
    gone, new = b.bitwiseAND(F.bitwise_not(a)), a.bitwiseAND(F.bitwise_not(b))
    return both.where(gone != new).groupBy(_BUCKET).agg(F.bit_or(gone).alias(_GONE), F.bit_or(new).alias(_NEW))


def _flagged(
    rows: DataFrame, columns: list[str], ledger: DataFrame, own: str, other: str, if_both: str, if_alone: str
) -> DataFrame:
    """The rows whose bit is set in bitmap `own`, and whether it is set in `other` too."""
    bit = F.expr(f"shiftleft(1L, CAST({ROW_ID} & 63 AS INT))")

    def is_set(bitmap: str) -> Column:
        return F.col(bitmap).bitwiseAND(F.col("__lake_bit")) != 0

    keyed = rows.select(
        *_columns(columns), F.shiftright(ROW_ID, 6).alias(_BUCKET), bit.alias("__lake_bit"), F.col(ROW_ID)
    )
    change = F.when(is_set(other), F.lit(if_both)).otherwise(F.lit(if_alone))
    return keyed.join(ledger, _BUCKET).where(is_set(own)).select(*_columns(columns), change.alias(CHANGE))


def _columns(names: list[str]) -> list[Column]:
    return [F.col(quote(n)) for n in names]

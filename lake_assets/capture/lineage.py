"""Changed rows by row lineage (format v3).

Rows are told apart by `_row_id` and their versions by `_last_updated_sequence_number`, which engines carry along
when they rewrite a file.

Source: https://iceberg.apache.org/spec/#row-lineage
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake_assets.capture.bitmaps import Identity, differences, named

ROW_ID, VERSION = "_row_id", "_last_updated_sequence_number"


def changes(
    spark: SparkSession, after: str, before: str, columns: list[str], *, since: int | None, forward: bool, rows: int
) -> tuple[DataFrame, DataFrame]:
    """The before-images and the after-images of every row that differs; see `bitmaps.differences`.

    Args:
        spark: the session.
        after: SQL name of the ICDC table as of the end.
        before: SQL name of the ICDC table as of the start.
        columns: what to read.
        since: versions up to this one are the same on both sides: the sequence number of the newest common ancestor.
            None: not known, so that versions are compared one by one.
        forward: whether that ancestor is the start itself: then only newer versions can be after-images.
        rows: how many rows the sides have, at most.
    """
    was, now = spark.table(before), spark.table(after)
    if forward and since is not None:
        # What start has is of its time, so that row ids alone tell.
        return differences(was, now, columns, Identity(ROW_ID), rows, came=F.col(VERSION) > since)
    version = F.col(VERSION) if since is None else F.greatest(F.col(VERSION), F.lit(since))
    return differences(was, now, columns, Identity(ROW_ID, version=version), rows)


def upserts(spark: SparkSession, after: str, columns: list[str], *, since: int) -> DataFrame:
    """Rows that were inserted or updated after sequence number `since`, an ancestor of the end."""
    return spark.table(after).where(F.col(VERSION) > since).select(*named(columns))

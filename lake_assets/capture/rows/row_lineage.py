"""Changed rows by row lineage (format v3).

`_row_id` identifies a row, and `_last_updated_sequence_number` its version. Engines keep both when they rewrite a file.

Source: https://iceberg.apache.org/spec/#row-lineage
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture.rows.row_bitmaps import NUMBER, Identity, absent, differences, named

ROW_ID, VERSION = "_row_id", "_last_updated_sequence_number"


def newer(after: DataFrame, columns: list[str], *, since: int | None, first_new: int | None = None) -> DataFrame:
    """Return the rows inserted or updated after sequence number `since`, an ancestor of the end, with their `NUMBER`.

    If `since` is None, all rows were. Without a number, the query is equal for all windows, so Spark need not compile
    it again. Rows with ids from `first_new` on are included whatever their version: an engine that rewrites files
    without keeping row ids may give the new files an old sequence number.
    """
    rows = after
    if since is not None:
        is_newer = F.col(VERSION) > since
        rows = after.where(is_newer if first_new is None else is_newer | (F.col(ROW_ID) >= first_new))
    return rows.select(*named(columns), F.col(ROW_ID).alias(NUMBER))


def deleted(before: DataFrame, after: DataFrame | None, columns: list[str], *, since: int, rows: int) -> DataFrame:
    """Return the rows of `before`, the start at `since`, that the end does not have, or only in a later version."""
    if after is None:
        return before.select(*named(columns), F.col(ROW_ID).alias(NUMBER))
    # All rows of the start have versions up to `since`, so comparing row ids suffices.
    return absent(before, after.where(F.col(VERSION) <= since), columns, Identity(ROW_ID), rows)


def compared(
    before: DataFrame, after: DataFrame, columns: list[str], *, ancestor: int | None, rows: int
) -> tuple[DataFrame, DataFrame]:
    """Return the rows (or versions) that only `before` has, and those that only `after` has.

    Args:
        ancestor: versions up to this sequence number are equal on both sides; None: all versions are compared.
        rows: upper limit of the number of rows on both sides.
    """
    version = F.col(VERSION) if ancestor is None else F.greatest(F.col(VERSION), F.lit(ancestor))
    return differences(before, after, columns, Identity(ROW_ID, version=version), rows)

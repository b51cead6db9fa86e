"""Changed rows by row lineage (format v3).

Rows are told apart by `_row_id` and their versions by `_last_updated_sequence_number`, which engines carry along
when they rewrite a file.

Source: https://iceberg.apache.org/spec/#row-lineage
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture.rows.row_bitmaps import NUMBER, Identity, absent, differences, named

ROW_ID, VERSION = "_row_id", "_last_updated_sequence_number"


def newer(after: DataFrame, columns: list[str], *, since: int | None, first_new: int | None = None) -> DataFrame:
    """Rows that were inserted or updated after sequence number `since`, an ancestor of the end, and their `NUMBER`.

    None: all of them were. A query that names no number is the same in each window, so that Spark need not compile it
    again. Rows with ids from `first_new` on are such rows whatever their version: an engine that rewrites files without
    keeping row ids may give the new files an old sequence number.
    """
    rows = after
    if since is not None:
        is_newer = F.col(VERSION) > since
        rows = after.where(is_newer if first_new is None else is_newer | (F.col(ROW_ID) >= first_new))
    return rows.select(*named(columns), F.col(ROW_ID).alias(NUMBER))


def gone(before: DataFrame, after: DataFrame | None, columns: list[str], *, since: int, rows: int) -> DataFrame:
    """Rows of `before` that the end does not have, or has in a version after `since`, which `before` is of."""
    if after is None:
        return before.select(*named(columns), F.col(ROW_ID).alias(NUMBER))
    # What the start holds is of its time, so that row ids alone tell.
    return absent(before, after.where(F.col(VERSION) <= since), columns, Identity(ROW_ID), rows)


def compared(
    before: DataFrame, after: DataFrame, columns: list[str], *, ancestor: int | None, rows: int
) -> tuple[DataFrame, DataFrame]:
    """The rows that only one side has, or has in another version.

    Args:
        before: the table over files of the start.
        after: the table over files of the end.
        columns: what to read.
        ancestor: versions up to this sequence number are the same on both sides; None: all are compared.
        rows: how many rows the sides have, at most.
    """
    version = F.col(VERSION) if ancestor is None else F.greatest(F.col(VERSION), F.lit(ancestor))
    return differences(before, after, columns, Identity(ROW_ID, version=version), rows)

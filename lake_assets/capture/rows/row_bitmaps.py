"""Find the rows that differ between two sides, if rows are identified by a number.

Each 64 consecutive numbers become one bitmap. The bitmaps of one side, a few bytes per 64 rows, are broadcast to the
scan of the other side, where they remove the common rows: rows that were only carried over are never shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.lake import quote, thresholds

NUMBER = "__lake_number"
_BUCKET, _BIT, _BITS, _VERSION, _FILE = "__lake_bucket", "__lake_bit", "__lake_bits", "__lake_version", "__lake_file"


@dataclass(frozen=True)
class Identity:
    """How rows are identified: by a number, unique in the table or within a file."""

    number: str
    within_file: bool = False
    version: Column | None = None
    """Column that identifies the version of a row, if a row may differ between the sides."""


def differences(
    before: DataFrame, after: DataFrame, columns: list[str], identity: Identity, rows: int
) -> tuple[DataFrame, DataFrame]:
    """Return the rows (or versions) that only `before` has, and the rows that only `after` has; see `absent`."""
    removed = absent(before, after, columns, identity, rows)
    return removed, absent(after, before, columns, identity, rows)


def absent(side: DataFrame, other: DataFrame, columns: list[str], identity: Identity, rows: int) -> DataFrame:
    """Return the rows of `side` that `other` does not have, with `columns` and their `NUMBER`.

    Args:
        side: the rows to filter, with the columns of `identity`.
        other: the rows to compare with.
        rows: upper limit of the number of rows on both sides.
    """
    keys = [F.shiftright(identity.number, 6).alias(_BUCKET)]
    if identity.within_file:
        keys.append(F.col("_file").alias(_FILE))
    if identity.version is not None:
        keys.append(identity.version.alias(_VERSION))
    join_columns = [
        _BUCKET,
        *([_FILE] if identity.within_file else []),
        *([_VERSION] if identity.version is not None else []),
    ]
    bit = F.expr(f"shiftleft(1L, CAST({quote(identity.number)} & 63 AS INT))").alias(_BIT)
    bitmaps = other.select(*keys, bit).groupBy(*join_columns).agg(F.bit_or(_BIT).alias(_BITS))
    bitmaps = F.broadcast(bitmaps) if rows <= thresholds.BROADCAST_ROW_IDS else bitmaps
    numbered = side.select(*named(columns), F.col(identity.number).alias(NUMBER), *keys, bit)
    exists = F.coalesce(F.col(_BITS), F.lit(0)).bitwiseAND(F.col(_BIT)) != 0
    return numbered.join(bitmaps, join_columns, "left").where(~exists).select(*named(columns), F.col(NUMBER))


def named(columns: list[str]) -> list[str]:
    """Quote column names, which may contain any characters."""
    return [quote(c) for c in columns]

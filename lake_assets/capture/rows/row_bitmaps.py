"""Which rows differ between two sides, where rows can be told apart by a number.

64 numbers at a time become one bitmap. The bitmaps of one side, a few bytes for 64 rows, are broadcast to where the
other side is read, and drop the rows that both have: no row that was carried over is ever shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.lake import quote

# Bitmaps of this many captured rows (some tens of bytes for 64 of them) are broadcast; beyond, they are shuffled.
BROADCAST_ROWS = 200_000_000

NUMBER = "__lake_number"
_BUCKET, _BIT, _BITS, _VERSION, _FILE = "__lake_bucket", "__lake_bit", "__lake_bits", "__lake_version", "__lake_file"


@dataclass(frozen=True)
class Identity:
    """How rows are told apart: by a number, in the whole table or within a file."""

    number: str
    within_file: bool = False
    version: Column | None = None
    """Where a row may look different on both sides: a column that tells its versions apart."""


def differences(
    before: DataFrame, after: DataFrame, columns: list[str], identity: Identity, rows: int
) -> tuple[DataFrame, DataFrame]:
    """The rows that only `before` has (or in another version), and those that only `after` has; see `absent`."""
    gone = absent(before, after, columns, identity, rows)
    return gone, absent(after, before, columns, identity, rows)


def absent(side: DataFrame, other: DataFrame, columns: list[str], identity: Identity, rows: int) -> DataFrame:
    """The rows of `side` that `other` does not have, with `columns` and their `NUMBER`.

    Args:
        side: what to read, with the columns that `identity` names.
        other: what to compare with.
        columns: what to read.
        identity: how rows are told apart.
        rows: how many both sides have, at most.
    """
    keys = [F.shiftright(identity.number, 6).alias(_BUCKET)]
    if identity.within_file:
        keys.append(F.col("_file").alias(_FILE))
    if identity.version is not None:
        keys.append(identity.version.alias(_VERSION))
    names = [_BUCKET, *([_FILE] if identity.within_file else []), *([_VERSION] if identity.version is not None else [])]
    bit = F.expr(f"shiftleft(1L, CAST({quote(identity.number)} & 63 AS INT))").alias(_BIT)
    book = other.select(*keys, bit).groupBy(*names).agg(F.bit_or(_BIT).alias(_BITS))
    book = F.broadcast(book) if rows <= BROADCAST_ROWS else book
    numbered = side.select(*named(columns), F.col(identity.number).alias(NUMBER), *keys, bit)
    is_there = F.coalesce(F.col(_BITS), F.lit(0)).bitwiseAND(F.col(_BIT)) != 0
    return numbered.join(book, names, "left").where(~is_there).select(*named(columns), F.col(NUMBER))


def named(columns: list[str]) -> list[str]:
    """The columns of these very names, whatever characters they hold."""
    return [quote(c) for c in columns]

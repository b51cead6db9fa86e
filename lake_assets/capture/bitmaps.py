"""Which rows differ between two sides, where rows can be told apart by a number.

64 numbers at a time become one bitmap a side. Comparing bitmaps shuffles a few bytes for 64 rows, where joining the
sides would shuffle every carried-over row whole. The bitmaps that differ are broadcast, and both sides are read once
more for the rows that are in them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.lake import quote

# Bitmaps of this many captured rows (16 bytes for 64 of them) are broadcast; beyond, they are joined by shuffling.
BROADCAST_ROWS = 500_000_000

IN_BOTH = "__lake_in_both"
NUMBER = "__lake_number"
_BUCKET, _BIT, _VERSION, _FILE = "__lake_bucket", "__lake_bit", "__lake_version", "__lake_file"
_GONE, _NEW = "__lake_gone", "__lake_new"


@dataclass(frozen=True)
class Identity:
    """How rows are told apart: by a number, in the whole table or within a file."""

    number: str
    within_file: bool = False
    version: Column | None = None
    """Where a row may look different on both sides: a column that tells its versions apart."""


def differences(
    before: DataFrame,
    after: DataFrame,
    columns: list[str],
    identity: Identity,
    rows: int,
    *,
    came: Column | None = None,
) -> tuple[DataFrame, DataFrame]:
    """The rows that only `before` has (or in another version), and those that only `after` has.

    Both come with `columns`, their number and `IN_BOTH`: whether the row is on the other side too, in another version.

    Args:
        before: one side, with the columns that `identity` names.
        after: the other.
        columns: what to read.
        identity: how rows are told apart.
        rows: how many both sides have, at most.
        came: what is known to hold for all rows that only `after` has: it spares looking the others up.
    """
    book = _ledger(before, after, identity)
    book = F.broadcast(book) if rows <= BROADCAST_ROWS else book
    gone = _in_bitmap(before, columns, book, identity, own=_GONE, other=_NEW)
    candidates = after if came is None else after.where(came)
    return gone, _in_bitmap(candidates, columns, book, identity, own=_NEW, other=_GONE)


def _ledger(before: DataFrame, after: DataFrame, identity: Identity) -> DataFrame:
    """Bitmaps of the rows that are gone and of those that are new, where there are any."""
    version = F.lit(0) if identity.version is None else identity.version
    names = [*_names(identity), _VERSION]

    def bitmaps(side: DataFrame, name: str) -> DataFrame:
        numbered = side.select(*_keys(identity), version.alias(_VERSION), _bit(identity))
        return numbered.groupBy(*names).agg(F.bit_or(_BIT).alias(name))

    both = bitmaps(before, "b").join(bitmaps(after, "a"), names, "full")
    b, a = F.coalesce("b", F.lit(0)), F.coalesce("a", F.lit(0))
    gone, new = b.bitwiseAND(F.bitwise_not(a)), a.bitwiseAND(F.bitwise_not(b))
    return both.where(b != a).groupBy(*_names(identity)).agg(F.bit_or(gone).alias(_GONE), F.bit_or(new).alias(_NEW))


def _in_bitmap(
    side: DataFrame, columns: list[str], book: DataFrame, identity: Identity, *, own: str, other: str
) -> DataFrame:
    """The rows whose bit is set in the bitmap `own`, and whether it is set in `other` as well."""
    number = F.col(identity.number).alias(NUMBER)
    keyed = side.select(*named(columns), number, *_keys(identity), _bit(identity)).join(book, _names(identity))

    def is_set(bitmap: str) -> Column:
        return F.col(bitmap).bitwiseAND(F.col(_BIT)) != 0

    return keyed.where(is_set(own)).select(*named(columns), F.col(NUMBER), is_set(other).alias(IN_BOTH))


def _keys(identity: Identity) -> list[Column]:
    file = [F.col("_file").alias(_FILE)] if identity.within_file else []
    return [*file, F.shiftright(identity.number, 6).alias(_BUCKET)]


def _names(identity: Identity) -> list[str]:
    return [_FILE, _BUCKET] if identity.within_file else [_BUCKET]


def _bit(identity: Identity) -> Column:
    return F.expr(f"shiftleft(1L, CAST({quote(identity.number)} & 63 AS INT))").alias(_BIT)


def named(columns: list[str]) -> list[Column]:
    """The columns of these very names, whatever characters they hold."""
    return [F.col(quote(c)) for c in columns]

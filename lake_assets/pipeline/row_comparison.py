"""Compare two sets of rows as multisets: how often each distinct row is on either side."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import reduce

from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, MapType, VariantType

from lake_assets.lake import quote
from lake_assets.tables.writing.table_state import KEY_PROPERTY

EXPECTED, FOUND = "_expected", "_found"
# Spark adds floats in any order, so the last digits differ between two runs of one query.
TOLERANCE = 1e-9
_PARTS = 1_000_000


def counted_rows(expected: DataFrame, stored: DataFrame) -> DataFrame:
    """Return every distinct row with its count on each side."""
    one, none = F.lit(1).cast("bigint"), F.lit(0).cast("bigint")
    both = expected.withColumns({EXPECTED: one, FOUND: none}).unionAll(stored.withColumns({EXPECTED: none, FOUND: one}))
    sums = [F.sum(side).alias(side) for side in (EXPECTED, FOUND)]
    return both.groupBy(*(F.col(quote(c)) for c in stored.columns)).agg(*sums)


def differ() -> Column:
    """Return whether a row is not as often on both sides."""
    return F.col(EXPECTED) != F.col(FOUND)


def totals(counted: DataFrame) -> tuple[int, int, int]:
    """Return the number of rows on each side, and of distinct rows that differ."""
    sums = [F.coalesce(F.sum(side), F.lit(0)).alias(side) for side in (EXPECTED, FOUND)]
    (row,) = counted.agg(*sums, F.count_if(differ()).alias("_different")).collect()
    return row[EXPECTED], row[FOUND], row["_different"]


def near(a: Column, b: Column) -> Column:
    """Return whether two numbers are equal up to rounding; may be null if one of them is."""
    size = F.greatest(F.abs(a), F.abs(b))
    # In Spark, NaN is greater than infinity and equal to itself.
    return a.eqNullSafe(b) | ((size < F.lit(math.inf)) & (F.abs(a - b) <= F.lit(TOLERANCE) * size))


def beyond_rounding(differing: DataFrame, rows: DataFrame) -> DataFrame:
    """Drop differing rows that differ only in the last digits of floats.

    Rows that are equal in all other columns are paired in the order of their floats; if all pairs agree up to rounding,
    none of them differs.
    """
    floats = [f.name for f in rows.schema.fields if isinstance(f.dataType, FloatType | DoubleType)]
    if not floats:
        return differing
    others = [c for c in rows.columns if c not in floats]
    values = F.struct(*(F.col(quote(c)).alias(f"f{n}") for n, c in enumerate(floats)))

    def side(more: str, less: str) -> Column:
        times = F.greatest(F.col(more) - F.col(less), F.lit(0)).cast("int")
        return F.sort_array(F.flatten(F.collect_list(F.array_repeat(values, times))))

    def all_near(a: Column, b: Column) -> Column:
        return reduce(Column.__and__, (near(a[f"f{n}"], b[f"f{n}"]) for n in range(len(floats))))

    sides = differing.groupBy(*(F.col(quote(c)).alias(f"k{n}") for n, c in enumerate(others))).agg(
        side(EXPECTED, FOUND).alias("_e"), side(FOUND, EXPECTED).alias("_f")
    )
    is_equal = (F.size("_e") == F.size("_f")) & F.forall(
        F.arrays_zip("_e", "_f"), lambda both: F.coalesce(all_near(both["_e"], both["_f"]), F.lit(False))
    )
    unequal = sides.where(~is_equal)
    matches = reduce(
        Column.__and__,
        (F.col(quote(c)).eqNullSafe(F.col(f"k{n}")) for n, c in enumerate(others)),
        F.lit(True),
    )
    return differing.join(unequal, matches, "left_semi")


def orderable(rows: DataFrame) -> Sequence[Column]:
    """Return the columns that rows can be sorted by."""
    return [F.col(quote(f.name)) for f in rows.schema.fields if not isinstance(f.dataType, MapType | VariantType)]


def in_sample(table: Table, rows: DataFrame, sample: float) -> Column:
    """Return the condition for rows of the sample: by the hash of the key, or of all hashable columns."""
    key: list[str] = json.loads(table.properties.get(KEY_PROPERTY, "[]"))
    kinds: dict[str, DataType] = {f.name: f.dataType for f in rows.schema.fields}
    names = key if key and all(k in kinds for k in key) else list(kinds)
    # Floats may differ in the last digits between the two sides, maps have no hash.
    hashed = [n for n in names if not isinstance(kinds[n], FloatType | DoubleType | MapType | VariantType)]
    if not hashed:
        return F.lit(True)
    place = F.pmod(F.xxhash64(*(F.col(quote(n)) for n in hashed)), F.lit(_PARTS))
    return place < F.lit(round(sample * _PARTS))

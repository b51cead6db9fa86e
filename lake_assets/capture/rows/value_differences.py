"""Changed rows by value: without row lineage, and for rows that were rewritten with new ids.

Without row lineage (formats v1 and v2, and files from before an upgrade to v3), a file on both sides with different
deletes is compared by position; added and removed files are compared by value. A row that was both removed and added
did not change; duplicates are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lake_assets.capture.rows.row_bitmaps import Identity, differences, named
from lake_assets.errors import UnsupportedCaptureError
from lake_assets.lake import quote

# Options of `to_json` that keep microseconds, which Spark truncates to milliseconds by default.
EXACT_JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
SIGN = "__lake_sign"
PAIR = "__lake_pair"
_POSITION = Identity("_pos", within_file=True)


def changes(
    columns: list[str],
    *,
    shared: tuple[DataFrame, DataFrame] | None,
    before: DataFrame | None,
    after: DataFrame | None,
    rows: int,
) -> DataFrame:
    """Return the removed (`SIGN` -1) and added (`SIGN` 1) rows.

    Args:
        shared: the tables over the files on both sides, as before and as after.
        rows: number of rows in the shared files.
    """
    removed, added = ([f.select(*named(columns))] if f is not None else [] for f in (before, after))
    if shared:
        deleted, inserted = differences(shared[0], shared[1], columns, _POSITION, rows)
        removed.append(deleted.select(*named(columns)))
        added.append(inserted.select(*named(columns)))
    parts = [f.withColumn(SIGN, F.lit(sign)) for fs, sign in ((removed, -1), (added, 1)) for f in fs]
    # Shared files have both removed and added rows, and a row may have moved to an added file.
    return net(reduce(DataFrame.unionAll, parts), columns) if removed and added else parts[0]


def net(rows: DataFrame, columns: list[str], within: Sequence[str] = ()) -> DataFrame:
    """Cancel removed against added rows with equal values, as multisets.

    Args:
        rows: removed (`SIGN` -1) and added (`SIGN` 1) rows.
        columns: the columns to compare and return.
        within: more columns to return; only rows with equal values in them cancel out.
    """
    kinds = {f.name: f.dataType for f in rows.schema.fields}
    keys, values = [], []
    for i, c in enumerate(columns):
        key = f"__lake_{i}"
        kind = kinds[c]
        keys.append(canonical(F.col(quote(c)), kind).alias(key))
        if isinstance(kind, T.FloatType | T.DoubleType):
            values.append((F.col(key).cast(kind).alias(c), None))
        elif _is_plain(kind):
            values.append((F.col(key).alias(c), None))
        else:
            # The value cannot be restored from its canonical form, so it is taken from one of the equal rows.
            values.append((F.col(f"{key}_value").alias(c), F.first(quote(c)).alias(f"{key}_value")))
    representatives = [v for _, v in values if v is not None]
    total = F.sum(SIGN).alias("__lake_n")
    grouped = rows.groupBy(*within, *keys).agg(total, *representatives).where("__lake_n <> 0")
    repeated = grouped.withColumn("__lake_each", F.explode(F.expr("array_repeat(0, CAST(abs(__lake_n) AS INT))")))
    return repeated.select(*(v for v, _ in values), *within, F.signum("__lake_n").cast("int").alias(SIGN))


def image(rows: DataFrame, columns: list[str]) -> Column:
    """Return one value per row, equal for two rows if all `columns` are equal."""
    kinds = {f.name: f.dataType for f in rows.schema.fields}
    return F.struct(*(canonical(F.col(quote(c)), kinds[c]).alias(f"_{i}") for i, c in enumerate(columns)))


def paired(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Match removed and added rows with equal `keys` one by one, if they have no `PAIR` yet.

    `PAIR` becomes the same text for both rows of a pair, and stays null for other rows.
    """
    kinds = {f.name: f.dataType for f in rows.schema.fields}
    key_columns = [canonical(F.col(quote(k)), kinds[k]) for k in keys]
    is_unpaired = F.col(PAIR).isNull()
    same_key = Window.partitionBy(*key_columns, is_unpaired)
    nth = F.row_number().over(Window.partitionBy(*key_columns, is_unpaired, SIGN).orderBy(F.lit(0)))
    removed = F.sum(F.when(F.col(SIGN) < 0, 1).otherwise(0)).over(same_key)
    added = F.sum(F.when(F.col(SIGN) > 0, 1).otherwise(0)).over(same_key)
    matched = rows.withColumn("__lake_nth", nth).withColumn("__lake_matches", F.least(removed, added))
    pair_key = F.struct(*(k.alias(f"k{i}") for i, k in enumerate(key_columns)), F.col("__lake_nth").alias("n"))
    name = F.to_json(pair_key, EXACT_JSON)
    pair = F.coalesce(PAIR, F.when(F.col("__lake_nth") <= F.col("__lake_matches"), name))
    return matched.withColumn(PAIR, pair).drop("__lake_nth", "__lake_matches")


def _is_plain(kind: T.DataType) -> bool:
    """Whether Spark's grouping distinguishes values of this type exactly."""
    match kind:
        case T.FloatType() | T.DoubleType() | T.MapType() | T.VariantType():
            return False
        case T.ArrayType():
            return _is_plain(kind.elementType)
        case T.StructType():
            return all(_is_plain(f.dataType) for f in kind.fields)
        case _:
            return True


def canonical(column: Column, kind: T.DataType) -> Column:
    """Return a form of `column` that groups exactly: 0.0 differs from -0.0, NaN equals NaN, maps can be grouped."""
    if _is_plain(kind):
        return column
    match kind:
        case T.FloatType() | T.DoubleType():
            return column.cast("string")
        case T.ArrayType():
            return F.transform(column, lambda x: canonical(x, kind.elementType))
        case T.MapType():
            entries = F.transform(
                F.map_entries(column),
                lambda e: F.struct(canonical(e["key"], kind.keyType), canonical(e["value"], kind.valueType)),
            )
            return F.array_sort(entries)
        case T.StructType():
            fields = (canonical(column.getField(f.name), f.dataType).alias(f"_{i}") for i, f in enumerate(kind.fields))
            return F.when(column.isNotNull(), F.struct(*fields))
        case T.VariantType():
            # The text alone does not distinguish 1 from "1" inside.
            return F.when(column.isNotNull(), F.struct(F.to_json(column), F.schema_of_variant(column)))
        case _:
            raise UnsupportedCaptureError(
                f"rows with a column of type {kind.simpleString()} cannot be compared by value, which the feed of a "
                "window that rewrites rows requires: copy the other columns to a separate table, and capture that table"
            )

"""Changed rows by value: where there is no row lineage, and where rows came under new ids.

Without row lineage (formats v1 and v2, and files from before an upgrade to v3) a file that is on both sides with other
deletes is compared by position, files that came and went by value. A row that both went and came did not change,
duplicates counted.
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

# Options of `to_json` that keep microseconds, which Spark cuts to milliseconds by default.
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
    """The rows that went (`SIGN` -1) and that came (`SIGN` 1).

    Args:
        columns: what to read.
        shared: the tables over the files on both sides, as before and as after.
        before: the table over files that went.
        after: the table over files that came.
        rows: how many rows the shared files have.
    """
    away, added = ([f.select(*named(columns))] if f is not None else [] for f in (before, after))
    if shared:
        gone, new = differences(shared[0], shared[1], columns, _POSITION, rows)
        away.append(gone.select(*named(columns)))
        added.append(new.select(*named(columns)))
    parts = [f.withColumn(SIGN, F.lit(sign)) for fs, sign in ((away, -1), (added, 1)) for f in fs]
    # A table over shared files gives both what went and what came; a row may also have moved to a file that came.
    return net(reduce(DataFrame.unionAll, parts), columns) if away and added else parts[0]


def net(rows: DataFrame, columns: list[str], within: Sequence[str] = ()) -> DataFrame:
    """`rows` without those that both went and came, as multisets; a row and its copies are equal in all `columns`.

    Args:
        rows: what went (`SIGN` -1) and what came (`SIGN` 1).
        columns: what to compare and to keep.
        within: more columns to keep; only rows that agree in them are taken against each other.
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
            # Not to be had back from its canonical form, so that one of the rows that are alike brings it.
            values.append((F.col(f"{key}_value").alias(c), F.first(quote(c)).alias(f"{key}_value")))
    carried = [v for _, v in values if v is not None]
    total = F.sum(SIGN).alias("__lake_n")
    grouped = rows.groupBy(*within, *keys).agg(total, *carried).where("__lake_n <> 0")
    repeated = grouped.withColumn("__lake_each", F.explode(F.expr("array_repeat(0, CAST(abs(__lake_n) AS INT))")))
    return repeated.select(*(v for v, _ in values), *within, F.signum("__lake_n").cast("int").alias(SIGN))


def image(rows: DataFrame, columns: list[str]) -> Column:
    """One value per row that is equal, and orders equally, where all `columns` are."""
    kinds = {f.name: f.dataType for f in rows.schema.fields}
    return F.struct(*(canonical(F.col(quote(c)), kinds[c]).alias(f"_{i}") for i, c in enumerate(columns)))


def paired(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Match, one by one, what went and what came under the same `keys`, where `PAIR` has no match yet.

    `PAIR` becomes the same text for both rows of a pair, and stays null for the others.
    """
    kinds = {f.name: f.dataType for f in rows.schema.fields}
    by = [canonical(F.col(quote(k)), kinds[k]) for k in keys]
    loose = F.col(PAIR).isNull()
    same_key = Window.partitionBy(*by, loose)
    nth = F.row_number().over(Window.partitionBy(*by, loose, SIGN).orderBy(F.lit(0)))
    went = F.sum(F.when(F.col(SIGN) < 0, 1).otherwise(0)).over(same_key)
    came = F.sum(F.when(F.col(SIGN) > 0, 1).otherwise(0)).over(same_key)
    matched = rows.withColumn("__lake_nth", nth).withColumn("__lake_matches", F.least(went, came))
    key = F.struct(*(k.alias(f"k{i}") for i, k in enumerate(by)), F.col("__lake_nth").alias("n"))
    name = F.to_json(key, EXACT_JSON)
    pair = F.coalesce(PAIR, F.when(F.col("__lake_nth") <= F.col("__lake_matches"), name))
    return matched.withColumn(PAIR, pair).drop("__lake_nth", "__lake_matches")


def _is_plain(kind: T.DataType) -> bool:
    """Whether Spark's own grouping tells values of this type apart as they are."""
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
    """A form of `column` that groups exactly: 0.0 is not -0.0 (Spark groups them), NaN is itself, maps group."""
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
            # Text alone does not tell 1 from "1" within.
            return F.when(column.isNotNull(), F.struct(F.to_json(column), F.schema_of_variant(column)))
        case _:
            raise UnsupportedCaptureError(
                f"rows with a column of type {kind.simpleString()} cannot be compared by value, which the feed of a "
                "window that rewrites rows needs: select the other columns into a table of their own and capture that"
            )

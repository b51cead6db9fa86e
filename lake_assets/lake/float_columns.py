"""Floating-point columns as Spark compares them.

In Spark, NaN is greater than every number, and 0.0 equals -0.0. Iceberg's column bounds ignore NaN, and -0.0 is less
than 0.0: if all numbers of a file are too small for a condition, the file is skipped together with its NaNs. So the
result of a query would depend on which rows share a file. Spark does not push conditions on guarded columns down.

Source: https://iceberg.apache.org/spec/#manifests (bounds); https://github.com/apache/iceberg/issues/9130
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from lake_assets.lake.names import quote


def guarded(column: str, kind: str) -> str:
    """Return SQL with the same values, on which conditions are not pushed down."""
    if kind in ("float", "double"):
        return f"nanvl({column}, {column})"
    # Conditions on a field of a struct are pushed down too.
    return f"element_at(array({column}), 1)" if kind.startswith("struct<") and _has_floats(kind) else column


def guarded_rows(rows: DataFrame) -> DataFrame:
    """Return a table's rows with guarded floating-point columns."""
    types = dict(rows.dtypes)
    if not any(map(_has_floats, types.values())):
        return rows
    return rows.selectExpr(*(f"{guarded(quote(c), k)} AS {quote(c)}" for c, k in types.items()))


def _has_floats(kind: str) -> bool:
    return any(f in kind for f in ("float", "double"))

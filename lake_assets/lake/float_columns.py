"""Floating-point columns as Spark compares them.

To Spark NaN is greater than every number, and zero equals zero with a sign. Iceberg's bounds of a file do not count
NaN, and order the zeros: a file is skipped whose numbers are all smaller than what a condition asks for, and its rows
with NaN with it. So what a query gives would depend on which rows share a file. Conditions on columns that are written
as here are not handed down to Iceberg.

Source: https://iceberg.apache.org/spec/#manifests (bounds); https://github.com/apache/iceberg/issues/9130
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from lake_assets.lake.names import quote


def guarded(column: str, kind: str) -> str:
    """SQL of the same values.

    Args:
        column: SQL.
        kind: its type as Spark's simple string.
    """
    if kind in ("float", "double"):
        return f"nanvl({column}, {column})"
    # Conditions on a field of a struct are handed down too.
    return f"element_at(array({column}), 1)" if kind.startswith("struct<") and _has_floats(kind) else column


def guarded_rows(rows: DataFrame) -> DataFrame:
    """The same rows of a table."""
    types = dict(rows.dtypes)
    if not any(map(_has_floats, types.values())):
        return rows
    return rows.selectExpr(*(f"{guarded(quote(c), k)} AS {quote(c)}" for c, k in types.items()))


def _has_floats(kind: str) -> bool:
    return any(f in kind for f in ("float", "double"))

"""SQL of changed rows: signed rows and what remains of them, and how values are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.lake import LakeBase, quote
from lake_assets.tables.spark_frames import new_name, over
from lake_assets.tables.writing.merge_clauses import FLOATING

# Columns of changed rows: 1 inserted, -1 deleted; true for a row to write, null for a deleted key.
SIGN, FOUND = "__sign", "_found"
# How often a row comes (negative: goes), once its signs are added up.
COPIES = "__copies"
_UNCOMPARED = ("map<", "variant", "interval", "collate", "geometry", "geography", "void")


def incomparable(types: Mapping[str, str]) -> str:
    """Return the first column whose values cannot be compared in a MERGE; empty: all can."""
    for name, kind in types.items():
        plain = kind.split("(")[0]
        nested = any(t in plain for t in ("array", "struct")) and any(t in kind for t in FLOATING)
        if nested or any(t in kind for t in _UNCOMPARED):
            return name
    return ""


def signed(new: str, stored: str, types: Mapping[str, str]) -> str:
    """Return SQL of the rows of `new` with sign 1, and of `stored` with sign -1.

    Args:
        new, stored: names or parenthesized queries.
        types: Spark's types by column.
    """
    listed = ", ".join(map(quote, types))
    return f"SELECT {listed}, 1 AS {SIGN} FROM {new} UNION ALL SELECT {listed}, -1 AS {SIGN} FROM {stored}"


def net(delta: str, types: Mapping[str, str], more: str = "") -> str:
    """Return SQL for the distinct rows of a change, with the number of copies to insert or, if negative, to delete.

    Args:
        delta: SQL of rows with `SIGN`.
        types: Spark's types by column of the table, in its order.
        more: further aggregates.
    """
    selected, by = distinct(types)
    return (
        f"SELECT {selected}, CAST(sum({SIGN}) AS INT) AS {COPIES}{', ' if more else ''}{more} "
        f"FROM ({cast(delta, types)}) GROUP BY {by} HAVING sum({SIGN}) <> 0"
    )


def cast(delta: str, types: Mapping[str, str]) -> str:
    """Return SQL for the rows of a change, cast to the table's types."""
    casts = ", ".join(f"CAST({quote(c)} AS {k}) AS {quote(c)}" for c, k in types.items())
    return f"SELECT {casts}, {SIGN} FROM ({delta})"


def count_differences(
    lake: LakeBase, rows: DataFrame, stored: DataFrame, types: Mapping[str, str], key: Sequence[str]
) -> tuple[int, int, int]:
    """Return how many rows would be inserted, updated and deleted if `rows` replaced `stored`.

    Args:
        lake: the lake.
        rows, stored: both have the columns of `types`.
        types: columns with Spark SQL types that can be compared (see `incomparable`).
        key: columns that identify a row; empty: no key, and no row counts as updated.
    """
    expected, existing = new_name(), new_name()
    changed = over(lake.spark(), net(signed(expected, existing, types), types), {expected: rows, existing: stored})
    come, go = F.greatest(F.col(COPIES), F.lit(0)), F.greatest(-F.col(COPIES), F.lit(0))
    if key:
        # A deleted and an inserted row of one key are an update.
        changed = changed.groupBy(*(F.col(quote(k)) for k in key)).agg(F.sum(come).alias("come"), F.sum(go).alias("go"))
        both = F.least("come", "go")
    else:
        changed, both = changed.select(come.alias("come"), go.alias("go")), F.lit(0)
    counted = [F.sum(F.col("come") - both), F.sum(both), F.sum(F.col("go") - both)]
    inserted, updated, deleted = (int(n or 0) for n in changed.agg(*counted).collect()[0])
    return inserted, updated, deleted


def duplicate_key(rows: DataFrame, key: Sequence[str]) -> Row | None:
    """Return a key that several rows share, with their number; None: each row has a key of its own."""
    counted = rows.groupBy(*map(quote, key)).agg(F.count("*").alias("__lake_rows"))
    return counted.where("__lake_rows > 1").first()


def distinct(types: Mapping[str, str]) -> tuple[str, str]:
    """Return SQL to select the columns of distinct rows, and to group rows by.

    Spark groups without sorting only if it aggregates no texts: what is grouped by is selected as it is.
    """
    forms = {quote(c): form(quote(c), kind) for c, kind in types.items()}
    return ", ".join(c if c == f else f"first({c}) AS {c}" for c, f in forms.items()), ", ".join(forms.values())


def form(column: str, kind: str) -> str:
    """Return SQL to group rows by: 0.0 and -0.0 are different values."""
    return f"CAST({column} AS STRING)" if kind in FLOATING else column


def same_key(key: Sequence[str], t: str = "t", s: str = "s") -> str:
    """Return SQL of a condition: two rows have the same key; null equals null."""
    return " AND ".join(f"{t}.{quote(k)} <=> {s}.{quote(k)}" for k in key)

"""Replace the rows of a table by writing only differences, in one commit, so its change feed has only real changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.foreign_errors import is_unreadable
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.commits import committing, count_properties, on_branch
from lake_assets.tables.spark_frames import checkpoint, new_name, over

log = logging.getLogger(__name__)
FLOATING = ("float", "double")
_UNCOMPARED = ("map<", "variant", "interval", "collate", "geometry", "geography", "void")
_SIGN, _COPIES, _GOES = "__lake_sign", "__lake_copies", "__lake_goes"


def write_differences(
    lake: LakeBase,
    table: TableId,
    rows: DataFrame,
    types: Mapping[str, str],
    key: Sequence[str],
    marks: Watermarks,
    base: Watermarks,
    gate: Gate,
    more: Mapping[str, str] | None = None,
) -> bool:
    """Replace the rows of a table with `rows`; return False if its stored rows cannot be read.

    The commit stores the watermarks even if no row differs. Audits run on a branch before the commit is published.

    Args:
        lake: the lake.
        table: the written table.
        rows: all new rows, with the table's columns.
        types: its columns with Spark SQL types that can be compared (see `incomparable`).
        key: columns that identify a row; empty: no key, and copies are counted.
        marks: the watermarks of the commit.
        base: the expected watermarks of the table.
        gate: its audits.
        more: other properties of the commit.

    Raises:
        ConcurrentWriteError: another writer committed first.
        AuditFailedError: a blocking audit fails.
    """
    try:
        _write(lake, table, rows, types, key, marks, base, gate, more)
    except Exception as e:
        if not is_unreadable(e, lake.table(table).location()):
            raise
        log.warning("%s: all rows are written again, since the stored rows cannot be read: %s", table, e)
        return False
    return True


def _write(
    lake: LakeBase,
    table: TableId,
    rows: DataFrame,
    types: Mapping[str, str],
    key: Sequence[str],
    marks: Watermarks,
    base: Watermarks,
    gate: Gate,
    more: Mapping[str, str] | None,
) -> None:
    spark = lake.spark()
    with on_branch(lake, table, marks, base, gate.blocking) as branch:
        stored = spark.table(branch)
        net = checkpoint(_net(lake, rows, stored, types))
        # Zeros with different signs are one key to a MERGE, but different values.
        by_key = bool(key) and not any(types[k] in FLOATING for k in key)
        by_key = by_key and not _is_repeated(stored, key) and not _is_repeated(net.where(f"{_COPIES} > 0"), key)
        with committing(
            spark, table, None, {**count_properties(*_counted(net, key if by_key else ())), **(more or {})}
        ):
            if net.isEmpty():
                stored.limit(0).writeTo(branch).append()
            elif by_key:
                _merge_by_key(lake, branch, net, types, key)
            else:
                _merge_copies(lake, branch, net, types)


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
    return _counted(_net(lake, rows, stored, types), key)


def incomparable(types: Mapping[str, str]) -> str:
    """Return the first column whose values cannot be compared in a MERGE; empty: all can."""
    for name, kind in types.items():
        plain = kind.split("(")[0]
        nested = any(t in plain for t in ("array", "struct")) and any(t in kind for t in FLOATING)
        if nested or any(t in kind for t in _UNCOMPARED):
            return name
    return ""


def _net(lake: LakeBase, rows: DataFrame, stored: DataFrame, types: Mapping[str, str]) -> DataFrame:
    """Return the distinct rows that one side has more often than the other, with the surplus of `rows`."""
    expected, existing = new_name(), new_name()
    casts = ", ".join(f"CAST({quote(c)} AS {kind}) AS {quote(c)}" for c, kind in types.items())
    listed = ", ".join(map(quote, types))
    selected, by = distinct(types)
    return over(
        lake.spark(),
        f"SELECT {selected}, CAST(sum({_SIGN}) AS INT) AS {_COPIES} FROM (SELECT {casts}, 1 AS {_SIGN} FROM {expected} "
        f"UNION ALL SELECT {listed}, -1 AS {_SIGN} FROM {existing}) GROUP BY {by} HAVING sum({_SIGN}) <> 0",
        {expected: rows, existing: stored},
    )


def _is_repeated(rows: DataFrame, key: Sequence[str]) -> bool:
    counted = rows.groupBy(*(F.col(quote(k)) for k in key)).agg(F.count("*").alias(_COPIES))
    return not counted.where(f"{_COPIES} > 1").isEmpty()


def _counted(net: DataFrame, key: Sequence[str]) -> tuple[int, int, int]:
    """Count inserted, updated and deleted rows: a deleted and an inserted row of one key are an update."""
    come, go = F.greatest(F.col(_COPIES), F.lit(0)), F.greatest(-F.col(_COPIES), F.lit(0))
    if key:
        net = net.groupBy(*(F.col(quote(k)) for k in key)).agg(F.sum(come).alias("come"), F.sum(go).alias("go"))
        both = F.least("come", "go")
    else:
        net, both = net.select(come.alias("come"), go.alias("go")), F.lit(0)
    counted = [F.sum(F.col("come") - both), F.sum(both), F.sum(F.col("go") - both)]
    inserted, updated, deleted = (int(n or 0) for n in net.agg(*counted).collect()[0])
    return inserted, updated, deleted


def _merge_by_key(lake: LakeBase, branch: str, net: DataFrame, types: Mapping[str, str], key: Sequence[str]) -> None:
    names = [F.col(quote(c)) for c in types]
    keys = [quote(k) for k in key]
    new_rows, old_rows = net.where(f"{_COPIES} > 0"), net.where(f"{_COPIES} < 0")
    equal = [F.col(f"g.{k}").eqNullSafe(F.col(f"c.{k}")) for k in keys]
    deleted = old_rows.alias("g").join(new_rows.alias("c"), equal, "left_anti")
    source = new_name()
    frame = new_rows.select(*names, F.lit(False).alias(_GOES)).unionAll(
        deleted.select(*names, F.lit(True).alias(_GOES))
    )
    on = " AND ".join(f"t.{k} <=> s.{k}" for k in keys)
    sets = ", ".join(f"t.{quote(c)} = s.{quote(c)}" for c in types if c not in key)
    update = f"WHEN MATCHED THEN UPDATE SET {sets} " if sets else ""
    sql = f"MERGE INTO {branch} t USING {source} s ON {on} WHEN MATCHED AND s.{_GOES} THEN DELETE {update}"
    over(lake.spark(), f"{sql}WHEN NOT MATCHED AND NOT s.{_GOES} THEN {_insert(types)}", {source: frame})


def _merge_copies(lake: LakeBase, branch: str, net: DataFrame, types: Mapping[str, str]) -> None:
    """Delete all copies of a row and write the remaining ones again: MERGE cannot delete one of several copies."""
    spark = lake.spark()
    on = " AND ".join(same(c, kind) for c, kind in types.items())
    surplus, source = new_name(), new_name()
    remaining = checkpoint(
        over(
            spark,
            f"SELECT {', '.join(f'first(s.{quote(c)}) AS {quote(c)}' for c in types)}, "
            f"CAST(count(*) + first(s.{_COPIES}) AS INT) AS {_COPIES} FROM {branch} t JOIN {surplus} s ON {on} "
            f"GROUP BY {', '.join(form(f's.{quote(c)}', kind) for c, kind in types.items())}",
            {surplus: net.where(f"{_COPIES} < 0")},
        )
    )
    deletes = net.where(f"{_COPIES} < 0").selectExpr(*map(quote, types), f"true AS {_GOES}")
    inserts = net.where(f"{_COPIES} > 0").unionAll(remaining.where(f"{_COPIES} > 0"))
    copies = inserts.withColumn("__lake_copy", F.explode(F.array_repeat(F.lit(0), F.col(_COPIES))))
    frame = deletes.unionAll(copies.selectExpr(*map(quote, types), f"false AS {_GOES}"))
    sql = f"MERGE INTO {branch} t USING {source} s ON s.{_GOES} AND {on} WHEN MATCHED THEN DELETE "
    over(spark, f"{sql}WHEN NOT MATCHED AND NOT s.{_GOES} THEN {_insert(types)}", {source: frame})


def _insert(types: Mapping[str, str]) -> str:
    return f"INSERT ({', '.join(map(quote, types))}) VALUES ({', '.join('s.' + quote(c) for c in types)})"


def distinct(types: Mapping[str, str]) -> tuple[str, str]:
    """Return SQL to select the columns of distinct rows, and to group rows by.

    Spark groups without sorting only if it aggregates no texts: what is grouped by is selected as it is.
    """
    forms = {quote(c): form(quote(c), kind) for c, kind in types.items()}
    return ", ".join(c if c == f else f"first({c}) AS {c}" for c, f in forms.items()), ", ".join(forms.values())


def form(column: str, kind: str) -> str:
    """Return SQL to group rows by: 0.0 and -0.0 are different values."""
    return f"CAST({column} AS STRING)" if kind in FLOATING else column


def same(column: str, kind: str) -> str:
    """Return SQL of a condition: rows `t` and `s` of a MERGE have the same value in a column."""
    c = quote(column)
    if kind in FLOATING:
        return f"CAST(t.{c} AS STRING) <=> CAST(s.{c} AS STRING)"
    return f"t.{c} <=> s.{c}"

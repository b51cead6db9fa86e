"""Conditions with literals that let a MERGE read only the files that can hold the changed keys.

`ON t.id = s.id` alone is a full outer join over the whole target: Spark has nothing to skip files by. Literals are
pushed into the scan. Measured in docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.lake import quote

MAX_LITERALS = 1_000
# Values go through Python, whose datetimes end in the year 9999 and, without a zone, are meant in the local one; its
# driver binds decimals by their own digits. So how each type leaves Spark, and how it comes back as what it was.
_CARRIED = {
    "string": ("{c}", "{v}"),
    "int": ("{c}", "{v}"),
    "bigint": ("{c}", "{v}"),
    "date": ("CAST({c} AS STRING)", "CAST({v} AS DATE)"),
    "timestamp": ("unix_micros({c})", "timestamp_micros({v})"),
    "timestamp_ntz": ("CAST({c} AS STRING)", "CAST({v} AS TIMESTAMP_NTZ)"),
    "decimal": ("CAST({c} AS STRING)", "CAST({v} AS {type})"),
}


@dataclass(frozen=True)
class Pruning:
    """A condition on the target `t` and its bound values; empty where nothing could be said."""

    condition: str
    values: dict[str, Any]
    why: str


def prune(source: DataFrame, key: Sequence[str]) -> Pruning:
    """A condition that every target row with one of `source`'s keys meets.

    Args:
        source: the reduced changes (held in memory: it is looked at once here and once by the MERGE).
        key: key columns.
    """
    types = {f.name: f.dataType.simpleString() for f in source.schema.fields}
    carried = {k: _CARRIED[t] for k in key if (t := types[k].split("(")[0]) in _CARRIED}
    usable = list(carried)
    if not usable:
        return Pruning("", {}, "keys of a type without an order: the whole target is joined")
    bounds = [
        F.expr(carried[k][0].format(c=f"{f}({quote(k)})") if f != "count" else f"count({quote(k)})").alias(f"{what}{i}")
        for i, k in enumerate(usable)
        for what, f in _LOOKS
    ]
    row = source.agg(F.count("*").alias("n"), *bounds).collect()[0]
    if not row["n"]:
        return Pruning("1 = 0", {}, "no key changed")
    values: dict[str, Any] = {}
    parts: list[str] = []
    for i, column in enumerate(usable):
        name, bound = f"t.{quote(column)}", row[f"low{i}"] is not None
        if bound:
            values |= {f"low{i}": row[f"low{i}"], f"high{i}": row[f"high{i}"]}
        low, high = (carried[column][1].format(v=f":{what}{i}", type=types[column]) for what in ("low", "high"))
        range_ = f"{name} BETWEEN {low} AND {high}" if bound else "1 = 0"
        parts.append(range_ if row[f"held{i}"] == row["n"] else f"({name} IS NULL OR {range_})")
    why = f"{row['n']} keys, pruned by their range"
    if len(key) == 1 and row["n"] <= MAX_LITERALS and row["held0"] == row["n"]:
        leave, come = carried[key[0]]
        found = [r[0] for r in source.select(F.expr(leave.format(c=quote(key[0])))).collect()]
        values |= {f"k{i}": value for i, value in enumerate(found)}
        listed = (come.format(v=f":k{i}", type=types[key[0]]) for i in range(len(found)))
        parts.append(f"t.{quote(key[0])} IN ({', '.join(listed)})")
        why = f"{row['n']} keys, each a literal"
    return Pruning(" AND ".join(parts), values, why)


_LOOKS = (("low", "min"), ("high", "max"), ("held", "count"))

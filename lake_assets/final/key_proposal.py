"""The key to declare for a table whose events name none: what they tell about the source's own key."""

from __future__ import annotations

from pyspark.sql import functions as F

from lake_assets.final.target import Target
from lake_assets.formats.event_model import DELETE, INSERT, OP, READ
from lake_assets.ingest.staging.staging_columns import projection

_NOT_KEYS = ("float", "double", "binary", "array", "map", "struct", "variant")


def proposed_key(target: Target) -> str:
    """Return the advice on the key, in sentences; reads all of staging, so it is only called for an error.

    A delete carries the key of its row alone, unless the source logs whole rows. Then the first column whose values are
    different in all inserts is proposed.
    """
    spec = target.spec
    columns = projection(target.lake, spec.staging, spec.rename)
    rows = target.lake.spark().table(target.lake.sql_name(spec.staging))
    is_delete, is_insert = F.col(OP) == DELETE, F.col(OP).isin(INSERT, READ)
    counts = [F.count_if(is_delete).alias("deletes"), F.count_if(is_insert).alias("inserts")]
    for i, (kind, sql) in enumerate(columns.values()):
        if not kind.startswith(_NOT_KEYS):
            value = F.expr(sql)
            counts += [
                F.count(F.when(is_delete, value)).alias(f"d{i}"),
                F.count_distinct(F.when(is_insert, value)).alias(f"i{i}"),
            ]
    seen = rows.agg(*counts).collect()[0].asDict()
    deleted = [c for i, c in enumerate(columns) if seen["deletes"] and seen.get(f"d{i}") == seen["deletes"]]
    if deleted and len(deleted) < len(columns) and all(seen.get(f"d{i}") in (0, None, seen["deletes"])
                                                       for i in range(len(columns))):  # fmt: skip
        names = deleted[0] if len(deleted) == 1 else f"[{', '.join(deleted)}]"
        return f"Declare the source's own key: `key: {names}` (its deletes carry nothing else)"
    unique = next(
        (c for i, c in enumerate(columns) if seen["inserts"] > 1 and seen.get(f"i{i}") == seen["inserts"]), ""
    )
    which = f" (perhaps `{unique}`, which is different in {seen['inserts']:,} inserts)" if unique else ""
    without = [
        f"without `{setting}`"
        for setting, is_used in (("mode: append", spec.mode == "append"), ("columns", bool(spec.columns)))
        if is_used
    ]
    return (
        f'If columns identify a row{which}, declare them as `key`. If rows have duplicates, declare `key: "*"`'
        f"{' ' if without else ''}{' and '.join(without)}, which tells rows apart by all of their values (the source "
        "has to log whole old rows, as REPLICA IDENTITY FULL does)"
    )

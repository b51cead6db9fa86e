"""Append tables: one row per insert."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import UnsupportedEventError
from lake_assets.final.batch import Batch
from lake_assets.final.events.staging_events import history_of
from lake_assets.final.target import Target
from lake_assets.formats.event_model import DELETE, INSERT, OP, READ
from lake_assets.ingest.staging.staging_columns import projection
from lake_assets.lake import quote
from lake_assets.lake.counts import plural
from lake_assets.tables.spark_frames import cols

_IDENTITY = "_identity"
_NOT_KEYS = ("float", "double", "binary", "array", "map", "struct", "variant")


def apply(batch: Batch) -> tuple[str, str]:
    """Append the window's inserts; return strategy and reason; see `rows_of` for errors."""
    rows = rows_of(batch)
    if batch.target.is_new:
        return "rebuild", batch.replace(rows)
    batch.writer.append(rows)
    return "append", "every insert is a row" if batch.target.key else "no key: every insert is a row"


def rows_of(batch: Batch) -> DataFrame:
    """Return the rows that the window adds: all rows of the table for a window over all of staging.

    Raises:
        UnsupportedEventError: the window has updates or deletes, and the table is not declared to ignore them.
    """
    target, spec, others = batch.target, batch.target.spec, batch.stats.others
    if others and spec.on_change == "stop":
        if target.key:
            raise UnsupportedEventError(
                f"{spec.table}: {spec.staging} has {plural(others, 'new event')} other than inserts, and the table is "
                "declared to contain inserts only (`mode: append`). Declare `on_change: ignore` to leave such events "
                "out, or another mode"
            )
        raise UnsupportedEventError(
            f"{spec.table}: {spec.staging} has no key, and {plural(others, 'new event')} other than inserts: it is "
            f"unknown which rows these change. {_proposed_key(target)}. To leave such events out, declare "
            "`on_change: ignore`"
        )
    events = batch.events.where(F.col(OP).isin(INSERT, READ))
    if others:
        batch.details["ignored"] = others
    if target.key:
        # A repeated insert is recognized by its position in the source and its key.
        numbered, identifying = F.expr(target.ordering.numbered), [_IDENTITY, *target.key]
        identity = F.expr(target.ordering.identity).alias(_IDENTITY)
        events = events.select("*", identity)
        if batch.stats.late and batch.before:
            before = history_of(target, batch.before.snapshot).where(F.col(OP).isin(INSERT, READ) & numbered)
            existing = before.select(identity, *cols(target.key))
            events = events.join(existing, identifying, "left_anti")
        once = events.where(numbered).dropDuplicates(identifying)
        events = once.unionByName(events.where(~numbered))
    types = batch.types
    return events.select(*(F.col(quote(c)).cast(types[c]).alias(c) for c in target.columns))


def _proposed_key(target: Target) -> str:
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
    counted = rows.agg(*counts).collect()[0].asDict()
    deleted = [c for i, c in enumerate(columns) if counted["deletes"] and counted.get(f"d{i}") == counted["deletes"]]
    if deleted and len(deleted) < len(columns) and all(counted.get(f"d{i}") in (0, None, counted["deletes"])
                                                       for i in range(len(columns))):  # fmt: skip
        names = deleted[0] if len(deleted) == 1 else f"[{', '.join(deleted)}]"
        return f"Declare the source's own key: `key: {names}` (its deletes carry nothing else)"
    unique = next(
        (c for i, c in enumerate(columns) if counted["inserts"] > 1 and counted.get(f"i{i}") == counted["inserts"]), ""
    )
    which = f" (perhaps `{unique}`, which is different in {counted['inserts']:,} inserts)" if unique else ""
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

"""Reduce the change events of a window to one row per key: the state of each key after them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lake_assets.formats.event_model import (
    ARRIVED_AT,
    DELETE,
    EVENT_TIME,
    INDEX,
    OP,
    POSITION,
    SEQUENCE,
    TRUNCATE,
    UNAVAILABLE,
)
from lake_assets.lake import quote
from lake_assets.lake.names import literal
from lake_assets.tables.spark_frames import cols

KEEP = "_keep"
KNOWN = "_known"

# SQL texts, since each call of a function takes several round trips to the JVM.
ORDER = f"struct({SEQUENCE} AS sequence, {POSITION} AS position, {INDEX} AS index)"
HAPPENED = f"coalesce({EVENT_TIME}, {ARRIVED_AT})"


def order() -> Column:
    """Return the order of change events: by the source's sequence, then by position in the stream."""
    return F.expr(ORDER)


def latest(
    events: DataFrame, key: Sequence[str], columns: Sequence[str], *, with_unavailable: bool, with_deleted: bool = False
) -> DataFrame:
    """Return one row per key: its columns after its last event, `_op` (delete or not), `_keep`, `_known`.

    Args:
        events: events with `columns` and the technical columns.
        key: the columns that identify a row.
        columns: all columns of the row.
        with_unavailable: whether some events omit values. An omitted column takes its value from the last event of the
            window that contains it; if none does, its name is in `_keep`, and the stored value remains.
        with_deleted: whether a deleted row gets its last written values rather than the values of the delete. If no
            event wrote it, all of its columns are in `_keep`, and `_known` is false.
    """
    rows = events.where(f"{OP} <> '{TRUNCATE}'")
    keys = cols(key)
    image = f"struct({', '.join(map(quote, columns))}, {OP}, {UNAVAILABLE})"
    is_write = f"{OP} <> '{DELETE}'"
    at_written, at_deleted = f"if({is_write}, {ORDER}, NULL)", f"if({is_write}, NULL, {ORDER})"
    # Underscored names, distinct from the names of the key columns.
    aggregates = [
        f"max_by({image}, {at_written if with_deleted else ORDER}) AS __last",
        f"max_by({OP}, {ORDER}) AS __op",
        f"max({at_written}) AS __written",
    ]
    rest = [c for c in columns if c not in key]
    if with_unavailable or with_deleted:
        for i, column in enumerate(rest):
            has_value = f"coalesce(NOT array_contains({UNAVAILABLE}, {literal(column)}), true) AND {is_write}"
            value = f"struct({quote(column)} AS value, {ORDER} AS at)"
            aggregates.append(f"max_by(if({has_value}, {value}, NULL), if({has_value}, {ORDER}, NULL)) AS __v{i}")
    # An update after a delete creates a new row, which does not inherit omitted values from the deleted row.
    aggregates.append(f"max({at_deleted}) AS __deleted")
    last = rows.groupBy(*keys).agg(*map(F.expr, aggregates))
    known = f"__last IS NOT NULL AS {KNOWN}"
    if not with_unavailable and not with_deleted:
        every = [f"__last.{quote(c)} AS {quote(c)}" for c in columns]
        return last.selectExpr(*every, f"__op AS {OP}", f"CAST(NULL AS array<string>) AS {KEEP}", known)
    none = "CAST(array() AS array<string>)"
    all_ = f"array({', '.join(map(literal, rest))})" if rest else none
    unavailable = f"if(__last IS NULL, {all_}, coalesce(__last.{UNAVAILABLE}, {none}))"
    recreated = "coalesce(__deleted < __written, false)"
    keep = ", ".join(
        f"if(array_contains({unavailable}, {literal(c)}) AND __v{i} IS NULL AND NOT {recreated}, {literal(c)}, NULL)"
        for i, c in enumerate(rest)
    )
    values = {
        c: f"if(array_contains({unavailable}, {literal(c)}), "
        f"if(NOT {recreated} OR __v{i}.at > __deleted, __v{i}.value, NULL), __last.{quote(c)}) AS {quote(c)}"
        for i, c in enumerate(rest)
    }
    return last.selectExpr(
        *(values.get(c, quote(c)) for c in columns),
        f"__op AS {OP}",
        f"{f'array_compact(array({keep}))' if keep else none} AS {KEEP}",
        known,
    )


def place(of: Row) -> Column:
    """Return the position in the order of events that a query returned as a row."""
    return F.struct(*(F.lit(of[part]).alias(part) for part in ("sequence", "position", "index")))


def happened() -> Column:
    """Return the time of a change: the time in its event, else its arrival."""
    return F.expr(HAPPENED)

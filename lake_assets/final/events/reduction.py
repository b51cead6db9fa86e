"""From the change events of a window to one row a key: what each key is after them."""

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

KEEP = "_keep"
KNOWN = "_known"

# As text: each call of a function is some round trips to the JVM.
ORDER = f"struct({SEQUENCE} AS sequence, {POSITION} AS position, {INDEX} AS index)"
HAPPENED = f"coalesce({EVENT_TIME}, {ARRIVED_AT})"


def order() -> Column:
    """The order of change events: the source's own sequence, ties by place in the stream."""
    return F.expr(ORDER)


def latest(
    events: DataFrame, key: Sequence[str], columns: Sequence[str], *, with_unavailable: bool, with_deleted: bool = False
) -> DataFrame:
    """One row a key: its columns after its last event, `_op` (delete or not), `_keep`, `_known`.

    Args:
        events: `columns` and the technical ones.
        key: the columns that identify a row.
        columns: all columns of the row.
        with_unavailable: whether some event leaves values out. Such a column takes its value from the last event of
            the window that carries it; where none does, its name is in `_keep`, and the stored value stays.
        with_deleted: whether a deleted row is wanted as it was, not as what its delete says of it. Where no event
            wrote it, all of its columns are in `_keep`, and `_known` is false.
    """
    rows = events.where(f"{OP} <> '{TRUNCATE}'")
    keys = [F.col(quote(k)) for k in key]
    image = f"struct({', '.join(map(quote, columns))}, {OP}, {UNAVAILABLE})"
    written = f"{OP} <> '{DELETE}'"
    at_written, at_deleted = f"if({written}, {ORDER}, NULL)", f"if({written}, NULL, {ORDER})"
    # Beside these stands the key: its columns may be called anything.
    aggregates = [
        f"max_by({image}, {at_written if with_deleted else ORDER}) AS __last",
        f"max_by({OP}, {ORDER}) AS __op",
        f"max({at_written}) AS __written",
    ]
    rest = [c for c in columns if c not in key]
    if with_unavailable or with_deleted:
        for i, column in enumerate(rest):
            carried = f"coalesce(NOT array_contains({UNAVAILABLE}, {literal(column)}), true) AND {written}"
            value = f"struct({quote(column)} AS value, {ORDER} AS at)"
            aggregates.append(f"max_by(if({carried}, {value}, NULL), if({carried}, {ORDER}, NULL)) AS __v{i}")
    # An update that follows a delete makes the row again: what it leaves out is not what the deleted one held.
    aggregates.append(f"max({at_deleted}) AS __deleted")
    last = rows.groupBy(*keys).agg(*map(F.expr, aggregates))
    known = f"__last IS NOT NULL AS {KNOWN}"
    if not with_unavailable and not with_deleted:
        every = [f"__last.{quote(c)} AS {quote(c)}" for c in columns]
        return last.selectExpr(*every, f"__op AS {OP}", f"CAST(NULL AS array<string>) AS {KEEP}", known)
    none = "CAST(array() AS array<string>)"
    all_ = f"array({', '.join(map(literal, rest))})" if rest else none
    gone = f"if(__last IS NULL, {all_}, coalesce(__last.{UNAVAILABLE}, {none}))"
    again = "coalesce(__deleted < __written, false)"
    kept = ", ".join(
        f"if(array_contains({gone}, {literal(c)}) AND __v{i} IS NULL AND NOT {again}, {literal(c)}, NULL)"
        for i, c in enumerate(rest)
    )
    values = {
        c: f"if(array_contains({gone}, {literal(c)}), if(NOT {again} OR __v{i}.at > __deleted, __v{i}.value, NULL), "
        f"__last.{quote(c)}) AS {quote(c)}"
        for i, c in enumerate(rest)
    }
    return last.selectExpr(
        *(values.get(c, quote(c)) for c in columns),
        f"__op AS {OP}",
        f"{f'array_compact(array({kept}))' if kept else none} AS {KEEP}",
        known,
    )


def place(of: Row) -> Column:
    """The place in the order of events that a row of a query holds."""
    return F.struct(*(F.lit(of[part]).alias(part) for part in ("sequence", "position", "index")))


def happened() -> Column:
    """When a change happened: as its event says, or else when it arrived."""
    return F.expr(HAPPENED)

"""Find the events of a staging table that no event can need any more: later ones have replaced all of their values.

Each column of a row has the value of the last event that contains it. An event is superseded once every column that it
contains is in a later event of its key: whatever still arrives, however late, the row after it is the same. So of each
key the last event remains, and older ones with values that later ones omit (an unchanged TOAST value).

An event only supersedes those that are before it in the order of the source, in another transaction, and in the order
of arrival: a tombstone takes its place from the event that arrived before it. These remain as they are:

- truncates;
- the keys of rows that were inserted and deleted within one transaction, whose number decides;
- the keys of a key change whose insert omits values, since the deleted row has them;
- delete and insert of other key changes: nothing else tells that the two keys were those of one row (for erasing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import Refused
from lake_assets.final.events.key_changes import certain_changes, entangled, halves, is_moved, key_side
from lake_assets.final.ordering import Ordering
from lake_assets.formats.event_model import DELETE, INDEX, OP, POSITION, SEQUENCE, TRUNCATE, UNAVAILABLE
from lake_assets.lake import quote
from lake_assets.lake.names import literal
from lake_assets.tables.spark_frames import checkpoint, cols

# What the lines of a key are compared by: the whole sequence of a change, its transaction.
_WHOLE, _TX = "_whole", "_tx"


def superseded(
    events: DataFrame,
    key: Sequence[str],
    ordering: Ordering,
    is_old: str,
    *,
    is_reset: bool,
    rename: Mapping[str, str] | None = None,
) -> DataFrame | Refused:
    """Return position and index of the events that later ones have superseded.

    Args:
        events: all events of a table: the columns of the key and the technical columns.
        key: the columns that identify a row.
        ordering: the order of the stream's events.
        is_old: SQL over the events: only these are superseded, and only by each other.
        is_reset: whether nothing of a row remains once it is deleted (`deletes: hard`).
        rename: declared names of columns by former ones.

    Returns:
        A refusal while the other half of a key change has not arrived: its row may be any.
    """
    rows = events.where(" AND ".join([f"{OP} <> '{TRUNCATE}'", *(f"{quote(k)} IS NOT NULL" for k in key)]))
    special = entangled(rows, key, ordering)
    if not rows.where(is_moved()).limit(1).isEmpty():
        pairs = checkpoint(halves(rows, key, ordering))
        paired = pairs.select(F.col(f"new.{POSITION}").alias(POSITION), F.col(f"new.{INDEX}").alias(INDEX))
        alone = rows.where(is_moved()).join(paired, [POSITION, INDEX], "left_anti")
        if count := alone.count():
            return Refused(f"{count:,} inserts omit values of rows whose deletes under another key have not arrived")
        special = special.union(key_side(pairs, "old", key)).union(key_side(pairs, "new", key))
    pairs = certain_changes(rows, key, ordering)
    sides = [pairs.select(f"{side}.{POSITION}", f"{side}.{INDEX}") for side in ("old", "new")]
    changes = checkpoint(sides[0].union(sides[1]).distinct())
    rows = rows.join(checkpoint(special.distinct()), list(key), "left_anti")
    of_key = ", ".join(map(quote, key))
    # Deliveries of a change differ in how much of its position they have.
    whole = f"max({SEQUENCE}) OVER (PARTITION BY {of_key}, {ordering.identity})"
    rows = rows.selectExpr(
        *map(quote, key), OP, POSITION, INDEX, UNAVAILABLE, f"({is_old}) AS _old",
        f"if({ordering.numbered}, {whole}, {SEQUENCE}) AS {_WHOLE}", f"({ordering.transaction}) AS {_TX}",
    ).where("_old")  # fmt: skip
    is_delete, omitted = f"{OP} = '{DELETE}'", _omitted_columns(rows, rename or {})
    # A delete ends what a row was: it is needed until all columns are in later events, and replaces them only if
    # nothing of a deleted row remains.
    writes = "true" if is_reset else f"NOT {is_delete}"
    parts = [("true", "true"), ("true", writes)]
    parts += [
        (f"({is_delete} OR NOT {omits})", f"({is_delete} OR NOT {omits}) AND {writes}") for omits in omitted.values()
    ]
    line = f"struct({_WHOLE} AS whole, {POSITION} AS position, {INDEX} AS index, {_TX} AS tx)"
    last = [
        f"max(if({has}, {line}, NULL)) OVER (PARTITION BY {of_key}) AS _last{i}" for i, (_, has) in enumerate(parts)
    ]
    rows = rows.selectExpr("*", *last)
    replaced = [f"(NOT {needs} OR {_is_before(f'_last{i}')})" for i, (needs, _) in enumerate(parts)]
    gone = rows.where(" AND ".join(replaced)).select(*cols((POSITION, INDEX)))
    return gone.join(changes, [POSITION, INDEX], "left_anti")


def _is_before(last: str) -> str:
    """Return SQL: an event is before the last one that replaces a part of it, as `superseded` says."""
    return (
        f"coalesce({_WHOLE} < {last}.whole AND {POSITION} < {last}.position AND "
        f"NOT coalesce({_TX} = {last}.tx, false), false)"
    )


def _omitted_columns(rows: DataFrame, rename: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that some events omit, each with SQL of whether an event omits it, under any of its names."""
    found = rows.select(F.explode(UNAVAILABLE).alias("name")).distinct().collect()
    names: dict[str, list[str]] = {}
    for name in sorted(r["name"] for r in found):
        names.setdefault(rename.get(name, name), []).append(name)
    return {
        column: f"coalesce({' OR '.join(f'array_contains({UNAVAILABLE}, {literal(n)})' for n in of)}, false)"
        for column, of in names.items()
    }

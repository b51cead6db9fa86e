"""Deletes that identify their row by another declared key than the table's key.

`key: [[id], [email]]` declares that either column identifies a row. A delete by `email` removes the row that had this
email at the time: the row of the last earlier event with this email, unless the row's email was changed, or the row was
deleted, in between. The delete is then read as if it had the `id` of that row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.final.events.reduction import order
from lake_assets.formats.event_model import DELETE, INDEX, OP, POSITION, TRUNCATE, UNAVAILABLE
from lake_assets.lake import quote
from lake_assets.tables.spark_frames import checkpoint, cols

_PLACE = [POSITION, INDEX]
_AT = "_at"


def has_other_key(key: Sequence[str], others: Sequence[Sequence[str]]) -> Column:
    """Whether an event is a delete that lacks a value of the key and has all values of another key."""
    lacks_key, has_other = F.lit(False), F.lit(False)
    for k in key:
        lacks_key = lacks_key | F.col(quote(k)).isNull()
    for other in others:
        is_complete = F.lit(True)
        for c in other:
            is_complete = is_complete & F.col(quote(c)).isNotNull()
        has_other = has_other | is_complete
    return (F.col(OP) == DELETE) & lacks_key & has_other


def identify_deletes(
    events: DataFrame, history: DataFrame, key: Sequence[str], others: Sequence[Sequence[str]]
) -> tuple[DataFrame, int]:
    """Fill in the key of each event; return them, and the number of deletes left out because no row had their key.

    `events` are rows of staging, `history` all rows up to the last of them, and `others` the other declared keys.
    """
    unidentified = events.where(has_other_key(key, others))
    deletes = checkpoint(unidentified.select(*_PLACE, order().alias(_AT), *_columns(others)))
    if deletes.isEmpty():
        return events, 0
    matches: DataFrame | None = None
    for other in others:
        rows = _rows_with(deletes, history, key, other)
        matches = rows if matches is None else matches.unionByName(rows.join(matches, _PLACE, "left_anti"))
    assert matches is not None
    matches = checkpoint(matches)
    filled = unidentified.drop(*key).join(matches, _PLACE).select(*cols(events.columns))
    lost = deletes.count() - matches.count()
    return events.where(~has_other_key(key, others)).unionByName(filled), lost


def _columns(keys: Sequence[Sequence[str]]) -> list[Column]:
    return [F.col(quote(c)) for c in dict.fromkeys(c for key in keys for c in key)]


def _rows_with(deletes: DataFrame, history: DataFrame, key: Sequence[str], other: Sequence[str]) -> DataFrame:
    """Return the position of each delete, and the key of the row that had its other key at that time."""
    names: Mapping[str, str] = {c: f"_said_{i}" for i, c in enumerate(other)}
    values = deletes.select(*_PLACE, _AT, *(F.col(quote(c)).alias(n) for c, n in names.items())).dropna(
        subset=list(names.values())
    )
    place = F.struct(*(F.col(p) for p in _PLACE)).alias("_place")
    earlier = history.where(F.col(OP) != TRUNCATE).select(
        *cols(key), order().alias("_then"), OP, UNAVAILABLE,
        *(F.col(quote(c)).alias(f"_has_{i}") for i, c in enumerate(other)),
    ).dropna(subset=list(key))  # fmt: skip
    matches, has_value = F.lit(True), F.lit(True)
    for i, c in enumerate(other):
        matches = matches & F.col(f"_has_{i}").eqNullSafe(F.col(names[c]))
        has_value = has_value & ~F.coalesce(F.array_contains(UNAVAILABLE, F.lit(c)), F.lit(False))
    # The keys that ever had the other key before, and the last value of it that each of them had.
    deleted_keys = values.select(place, _AT, *names.values())
    candidates = earlier.where(F.col(OP) != DELETE).join(deleted_keys, matches & (F.col("_then") < F.col(_AT)))
    keys = checkpoint(candidates.select("_place", _AT, *names.values(), *cols(key)).distinct())
    later = earlier.join(keys, list(key)).where((F.col("_then") < F.col(_AT)) & ((F.col(OP) == DELETE) | has_value))
    last = Window.partitionBy("_place", *cols(key)).orderBy(F.desc("_then"))
    now = later.withColumn("_n", F.row_number().over(last)).where("_n = 1").where((F.col(OP) != DELETE) & matches)
    newest = Window.partitionBy("_place").orderBy(F.desc("_then"))
    return (
        now.withColumn("_n", F.row_number().over(newest))
        .where("_n = 1")
        .select(*(F.col(f"_place.{p}").alias(p) for p in _PLACE), *cols(key))
    )

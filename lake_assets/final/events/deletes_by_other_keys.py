"""Deletes that say another one of the declared keys than the one that a table has.

`key: [[id], [email]]` declares that either identifies a row. A delete by `email` takes the row that had this email
then: the one of the last event before it that says this email, unless that row has been given another email, or was
deleted, in between. The delete is then read as if it had said the `id`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.final.events.reduction import order
from lake_assets.formats.event_model import DELETE, INDEX, OP, POSITION, TRUNCATE, UNAVAILABLE
from lake_assets.lake import quote
from lake_assets.tables.spark_frames import checkpoint

_PLACE = [POSITION, INDEX]
_AT = "_at"


def says_other_key(key: Sequence[str], others: Sequence[Sequence[str]]) -> Column:
    """Whether an event is a delete that does not say the key, and says all of another one."""
    lacking, said = F.lit(False), F.lit(False)
    for k in key:
        lacking = lacking | F.col(quote(k)).isNull()
    for other in others:
        whole = F.lit(True)
        for c in other:
            whole = whole & F.col(quote(c)).isNotNull()
        said = said | whole
    return (F.col(OP) == DELETE) & lacking & said


def identified(
    events: DataFrame, history: DataFrame, key: Sequence[str], others: Sequence[Sequence[str]]
) -> tuple[DataFrame, int]:
    """Return the events with the key in each, and how many deletes were left out because no row had their key.

    Args:
        events: rows of staging.
        history: all rows of staging up to the last of them.
        key: columns of the key that the table has.
        others: the other declared keys whose columns are there.
    """
    strange = events.where(says_other_key(key, others))
    asking = checkpoint(strange.select(*_PLACE, order().alias(_AT), *_columns(others)))
    if asking.isEmpty():
        return events, 0
    found: DataFrame | None = None
    for other in others:
        rows = _rows_with(asking, history, key, other)
        found = rows if found is None else found.unionByName(rows.join(found, _PLACE, "left_anti"))
    assert found is not None
    found = checkpoint(found)
    filled = strange.drop(*key).join(found, _PLACE).select(*(F.col(quote(c)) for c in events.columns))
    lost = asking.count() - found.count()
    return events.where(~says_other_key(key, others)).unionByName(filled), lost


def _columns(keys: Sequence[Sequence[str]]) -> list[Column]:
    return [F.col(quote(c)) for c in dict.fromkeys(c for key in keys for c in key)]


def _rows_with(asking: DataFrame, history: DataFrame, key: Sequence[str], other: Sequence[str]) -> DataFrame:
    """The place of each delete, and the key of the row that had its other key when it came."""
    names: Mapping[str, str] = {c: f"_said_{i}" for i, c in enumerate(other)}
    said = asking.select(*_PLACE, _AT, *(F.col(quote(c)).alias(n) for c, n in names.items())).dropna(
        subset=list(names.values())
    )
    place = F.struct(*(F.col(p) for p in _PLACE)).alias("_place")
    told = history.where(F.col(OP) != TRUNCATE).select(
        *(F.col(quote(k)) for k in key), order().alias("_then"), OP, UNAVAILABLE,
        *(F.col(quote(c)).alias(f"_has_{i}") for i, c in enumerate(other)),
    ).dropna(subset=list(key))  # fmt: skip
    matches, says = F.lit(True), F.lit(True)
    for i, c in enumerate(other):
        matches = matches & F.col(f"_has_{i}").eqNullSafe(F.col(names[c]))
        says = says & ~F.coalesce(F.array_contains(UNAVAILABLE, F.lit(c)), F.lit(False))
    # The keys that ever had the other key before, and the last that each of them says of it.
    asked = said.select(place, _AT, *names.values())
    once = told.where(F.col(OP) != DELETE).join(asked, matches & (F.col("_then") < F.col(_AT)))
    keys = checkpoint(once.select("_place", _AT, *names.values(), *(F.col(quote(k)) for k in key)).distinct())
    later = told.join(keys, list(key)).where((F.col("_then") < F.col(_AT)) & ((F.col(OP) == DELETE) | says))
    last = Window.partitionBy("_place", *(F.col(quote(k)) for k in key)).orderBy(F.desc("_then"))
    now = later.withColumn("_n", F.row_number().over(last)).where("_n = 1").where((F.col(OP) != DELETE) & matches)
    newest = Window.partitionBy("_place").orderBy(F.desc("_then"))
    return (
        now.withColumn("_n", F.row_number().over(newest))
        .where("_n = 1")
        .select(*(F.col(f"_place.{p}").alias(p) for p in _PLACE), *(F.col(quote(k)) for k in key))
    )

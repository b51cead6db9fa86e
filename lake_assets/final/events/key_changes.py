"""Rows whose keys change: which row each event is about, and what values it has after it.

Events name keys, not rows. Mostly that is the same; where it is not, this module tells them apart:

- A key change comes as a delete under the old key and an insert under the new one. Where the insert leaves values out
  (an unchanged TOAST value), they are those of the row that the delete took away, through chains and swaps.
- A unique key that is checked at the end of a transaction lets one key have two rows for a while: `SET pos = pos + 1`
  inserts 2 before it deletes 2. What counts then is not the last event but what came and went: a key has a row after
  the transaction if it had one before and as many came as went, or one more came than went. The row that goes is the
  one that has been there longest, so that the one that stays is the one that came last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.final.events.reduction import ORDER, order
from lake_assets.formats import EventFormat
from lake_assets.formats.event_model import (
    DELETE,
    INDEX,
    INSERT,
    OP,
    POSITION,
    READ,
    SEQUENCE,
    TRUNCATE,
    UNAVAILABLE,
    UPDATE,
)
from lake_assets.formats.format_base import Format
from lake_assets.lake import quote
from lake_assets.lake.names import literal
from lake_assets.tables.spark_frames import checkpoint

PRESENT = "_present"
# Before every event: where rows stand that are taken from the table instead of from events.
BASE_POSITION = -(2**62)

_TX, _NUMBERED, _ROW, _GROUP, _CAME, _WENT, _GONE = "_tx", "_numbered", "_row", "_group", "_came", "_went", "_gone"
# More key changes of one row than anyone makes between two of its values being written: an end to what has none.
_MOST_ROUNDS = 40


@dataclass(frozen=True)
class Ordering:
    """What the sequences of a stream say; SQL over `_sequence` (see `EventFormat`)."""

    numbered: str
    transaction: str
    identity: str = SEQUENCE

    @classmethod
    def of(cls, reader: EventFormat) -> Ordering:
        """What a format's sequences say."""
        return cls(reader.numbered, reader.transaction, reader.identity)

    @property
    def has_transactions(self) -> bool:
        """Whether any event says which transaction it is of."""
        return self.transaction != Format.transaction

    def is_late(self, sequence: str, position: int) -> Column:
        """Whether an event is not entirely after another one: before it, in its transaction, or half of the same
        change."""
        said = literal(sequence)
        after = f"({SEQUENCE} > {said} OR {SEQUENCE} = {said} AND {POSITION} > {position})"
        same = f"coalesce(({self.transaction}) = ({self.transaction.replace(SEQUENCE, said)}), false)"
        half = f"({self.numbered}) AND {SEQUENCE} = {said}"
        return F.expr(f"NOT {after} OR {same} OR {half}")


def entangled(events: DataFrame, key: Sequence[str], ordering: Ordering) -> DataFrame:
    """Keys with an insert and a later delete in one transaction."""
    keys = [F.col(quote(k)) for k in key]
    transaction = F.expr(f"({ordering.transaction}) AS {_TX}")
    return (
        events.where(f"{OP} IN ('{INSERT}', '{DELETE}') AND ({ordering.transaction}) IS NOT NULL")
        .groupBy(*keys, transaction)
        .agg(
            F.expr(f"min(if({OP} = '{INSERT}', {ORDER}, NULL)) AS {_CAME}"),
            F.expr(f"max(if({OP} = '{DELETE}', {ORDER}, NULL)) AS {_WENT}"),
        )
        .where(f"{_CAME} < {_WENT}")
        .select(*keys)
        .distinct()
    )


IS_MOVED = f"({OP} IN ('{INSERT}', '{READ}') AND {UNAVAILABLE} IS NOT NULL)"


def is_moved() -> Column:
    """Whether an event is an insert that leaves values out."""
    return F.expr(IS_MOVED)


def halves(events: DataFrame, key: Sequence[str], ordering: Ordering) -> DataFrame:
    """The key changes whose inserts leave values out: columns `new` (key and place of the insert) and `old`.

    The halves of a change share their sequence. Where others may share it as well, they are beside each other: parts of
    one record, or a record, perhaps its tombstone, and the next.
    """
    side = [*(F.col(quote(k)).alias(f"k{i}") for i, k in enumerate(key)), POSITION, INDEX]
    numbered = F.expr(ordering.numbered).alias(_NUMBERED)
    new = events.where(is_moved()).select(SEQUENCE, numbered, F.struct(*side).alias("new"))
    old = events.where(F.col(OP) == DELETE).select(SEQUENCE, F.struct(*side).alias("old"))
    apart = F.col(f"new.{POSITION}") - F.col(f"old.{POSITION}")
    one_record = (apart == 0) & (F.col(f"old.{INDEX}") == F.col(f"new.{INDEX}") - 1)
    other_key = F.lit(False)
    for i in range(len(key)):
        other_key = other_key | ~F.col(f"new.k{i}").eqNullSafe(F.col(f"old.k{i}"))
    found = new.join(old, SEQUENCE).where(other_key & (F.col(_NUMBERED) | one_record | apart.between(1, 2)))
    nearest = Window.partitionBy("new").orderBy(F.when(apart < 0, 1).otherwise(0), F.abs(apart), F.abs("old._index"))
    return found.withColumn("_n", F.row_number().over(nearest)).where("_n = 1").select(SEQUENCE, "new", "old")


def key_side(pairs: DataFrame, side: str, key: Sequence[str]) -> DataFrame:
    """The keys of one side of `halves`."""
    return pairs.select(*(F.col(f"{side}.k{i}").alias(k) for i, k in enumerate(key)))


def states(
    events: DataFrame,
    key: Sequence[str],
    columns: Sequence[str],
    ordering: Ordering,
    *,
    moved: bool,
) -> DataFrame:
    """Each event with the whole row as its key has it after the event; `_present` is whether it has one.

    Of an absent row, the values are those that it had. What no event says is null.

    Args:
        events: all events of the keys in question, in whatever order, or rows to begin with and what came since.
        key: columns that identify a row.
        columns: all columns of the row.
        ordering: what the sequences say.
        moved: whether some inserts leave values out.
    """
    keys = [F.col(quote(k)) for k in key]
    rest = [c for c in columns if c not in key]
    told = _numbered(_without_repeats(events, keys, ordering), keys, ordering)
    so_far = Window.partitionBy(*keys, _ROW).orderBy(SEQUENCE, POSITION, INDEX)
    so_far = so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    written = ~F.col(OP).isin(DELETE, TRUNCATE)
    values = {
        f"v{i}": F.last(
            F.when(
                written & ~F.coalesce(F.array_contains(UNAVAILABLE, F.lit(c)), F.lit(False)),
                F.struct(F.col(quote(c)).alias("value")),
            ),
            ignorenulls=True,
        ).over(so_far)
        for i, c in enumerate(rest)
    }
    others = [c for c in events.columns if c not in columns]
    full = told.select(
        *keys, *others, _ROW, _GONE, PRESENT, *(value.alias(name) for name, value in values.items())
    )  # fmt: skip
    if moved and rest:
        full = _with_moved(checkpoint(full), key, len(rest), ordering)
    return full.select(
        *(
            F.col(quote(c)) if c in key else F.col(f"v{rest.index(c)}.value").alias(c)
            for c in columns
        ),
        *others, PRESENT,
    )  # fmt: skip


def _without_repeats(events: DataFrame, keys: Sequence[Column], ordering: Ordering) -> DataFrame:
    again = Window.partitionBy(*keys, F.expr(ordering.identity), OP).orderBy(POSITION, INDEX)
    first = events.withColumn(_NUMBERED, F.expr(ordering.numbered)).withColumn("_n", F.row_number().over(again))
    return first.where((F.col("_n") == 1) | ~F.col(_NUMBERED)).drop("_n", _NUMBERED)


def _numbered(events: DataFrame, keys: Sequence[Column], ordering: Ordering) -> DataFrame:
    """Adds the number of the key's row that an event is about, of the row that a delete takes, and presence."""
    ordered = Window.partitionBy(*keys).orderBy(SEQUENCE, POSITION, INDEX)
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    of_group = Window.partitionBy(*keys, _GROUP)
    in_group = of_group.orderBy(SEQUENCE, POSITION, INDEX)
    group_so_far = in_group.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole_group = in_group.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    op = F.col(OP)

    def number(condition: Column) -> Column:
        return condition.cast("int")

    # Rows of a snapshot, what the table held and truncates belong to no transaction.
    rows = events.withColumn(_TX, F.when(op.isin(INSERT, UPDATE, DELETE), F.expr(ordering.transaction)))
    rows = rows.withColumn("_cuts", F.sum(number(F.col(_TX).isNull())).over(so_far))
    rows = rows.withColumn("_starts", number(op.isin(INSERT, READ)))
    rows = rows.withColumn(_GROUP, F.struct(F.col("_cuts"), F.col(_TX)))
    rows = rows.withColumn(_CAME, F.sum("_starts").over(group_so_far))
    rows = rows.withColumn(_WENT, F.sum(number(op == DELETE)).over(group_so_far))
    rows = rows.withColumn("_mixed", F.max(number((op == DELETE) & (F.col(_CAME) > 0))).over(whole_group))
    left = F.last(_CAME).over(whole_group) - F.last(_WENT).over(whole_group)
    # What is deleted or updated first was there before.
    was_there = F.first(OP).over(whole_group).isin(DELETE, UPDATE)
    # What is there after a transaction, where that can be told without knowing what was there before it.
    after = (
        F.when(F.col("_mixed") == 0, number(~F.last(OP).over(whole_group).isin(DELETE, TRUNCATE)))
        .when(was_there, number(left >= 0))
        .when(left > 0, F.lit(1))
        .when(left < 0, F.lit(0))
    )
    is_last = F.lead(OP).over(in_group).isNull()
    rows = rows.withColumn("_after", F.when(is_last, after))
    held = F.coalesce(F.last("_after", ignorenulls=True).over(before), F.lit(0))
    rows = rows.withColumn("_before", held).withColumn("_was", F.lag(OP).over(in_group))
    rows = rows.withColumn("_held", F.when(was_there, F.lit(1)).otherwise(F.col("_before")))
    # An update of a row that is not there makes it, without what the one before it held.
    missing = F.when(F.col("_was").isNull(), F.col("_before") == 0).otherwise(F.col("_was") == DELETE)
    rows = rows.withColumn("_again", number((op == UPDATE) & (F.col("_mixed") == 0) & missing))
    rows = rows.withColumn(_ROW, F.sum(F.col("_starts") + F.col("_again")).over(so_far))
    longest = F.least(F.col(_ROW) - F.col(_CAME) + F.col(_WENT) - F.col("_held"), F.col(_ROW))
    gone = F.when(op == DELETE, F.when(F.col("_mixed") == 1, longest).otherwise(F.col(_ROW)))
    present = F.when(F.col("_mixed") == 1, F.col("_held") + F.col(_CAME) - F.col(_WENT) > 0)
    return rows.withColumn(_GONE, gone).withColumn(PRESENT, F.coalesce(present, ~op.isin(DELETE, TRUNCATE)))


def _with_moved(full: DataFrame, key: Sequence[str], width: int, ordering: Ordering) -> DataFrame:
    """Fill what inserts leave out from the rows that their deletes took away.

    A row that was moved may have been moved before: each round looks one key change further back, then two, then four.
    """
    names = [f"v{i}" for i in range(width)]
    keys = [F.col(quote(k)).alias(f"k{i}") for i, k in enumerate(key)]
    pairs = halves(full, key, ordering)
    at = F.struct(*keys, POSITION, INDEX)
    # Which row came by which insert, and which row the other half took.
    inserted = full.where(is_moved()).select(at.alias("new"), F.struct(*keys, F.col(_ROW).alias("row")).alias("me"))
    deleted = full.where(F.col(OP) == DELETE).select(
        at.alias("old"), F.struct(*keys, F.col(_GONE).alias("row")).alias("parent")
    )
    parents = pairs.join(inserted, "new").join(deleted, "old").select("me", "parent")
    ends = full.groupBy(F.struct(*keys, F.col(_ROW).alias("row")).alias("me")).agg(
        F.max_by(F.struct(*names), order()).alias("v")
    )
    rows = checkpoint(ends.join(parents, "me", "left").select("me", F.col("parent").alias("next"), "v.*"))
    lacking = F.lit(False)
    for name in names:
        lacking = lacking | F.col(name).isNull()
    for _ in range(_MOST_ROUNDS):
        if not rows.where(F.col("next").isNotNull() & lacking).limit(1).count():
            break
        known = rows.select(
            F.col("me").alias("next"), F.col("next").alias("then"), *(F.col(n).alias(f"p{n}") for n in names)
        )
        filled = (F.coalesce(F.col(n), F.col(f"p{n}")).alias(n) for n in names)
        rows = checkpoint(rows.join(known, "next", "left").select("me", F.col("then").alias("next"), *filled))
    known = parents.join(rows.withColumnRenamed("me", "parent"), "parent").select(
        F.col("me"), *(F.col(n).alias(f"p{n}") for n in names)
    )
    me = F.struct(*keys, F.col(_ROW).alias("row"))
    others = [c for c in full.columns if c not in names]
    joined = full.withColumn("me", me).join(known, "me", "left")
    return joined.select(
        *(F.col(quote(c)) for c in others), *(F.coalesce(F.col(n), F.col(f"p{n}")).alias(n) for n in names)
    )

"""Rows whose keys change: assign each event to a row, and compute the values of that row after the event.

Events name keys, not rows. Usually a key stands for one row. This module handles the exceptions:

- A key change arrives as a delete under the old key and an insert under the new key. If the insert omits values (an
  unchanged TOAST value), they come from the deleted row, even through chains and swaps of keys.
- If the source checks a unique key at the end of a transaction, one key may temporarily have two rows:
  `SET pos = pos + 1` inserts 2 before it deletes 2. Then the last event is not decisive, only the number of inserts and
  deletes: a key has a row after the transaction if it had one before and there are as many inserts as deletes, or if
  there is one insert more. A delete removes the oldest row, so the row that was inserted last remains.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.final.events.reduction import ORDER, order
from lake_assets.final.ordering import Ordering
from lake_assets.formats.event_model import (
    ARRIVED_AT,
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
from lake_assets.lake import quote
from lake_assets.tables.spark_frames import checkpoint, cols

PRESENT = "_present"
# The position of stored rows among events: before every event.
BASE_POSITION = -(2**62)

_TX, _NUMBERED, _ROW, _GROUP, _CAME, _WENT, _GONE = "_tx", "_numbered", "_row", "_group", "_came", "_went", "_gone"
_AT, _FIRST, _LAST, _PART, _AGAIN, _WHOLE = "_at", "_first", "_last", "_part", "_again_delivered", "_whole"
# An upper limit of key changes of one row between two writes of its values, so that the loop ends.
_MOST_ROUNDS = 40


def entangled(events: DataFrame, key: Sequence[str], ordering: Ordering) -> DataFrame:
    """Return the keys that have an insert and a later delete in one transaction."""
    keys = cols(key)
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
    """Whether an event is an insert that omits values."""
    return F.expr(IS_MOVED)


def halves(events: DataFrame, key: Sequence[str], ordering: Ordering) -> DataFrame:
    """Return the key changes whose inserts omit values: `new` has key and position of the insert, `old` of the delete.

    Insert and delete of a change share their sequence. If other events may have the same sequence, the two are
    adjacent: parts of one record, or a record, perhaps its tombstone, and the next record.
    """
    side = [*(F.col(quote(k)).alias(f"k{i}") for i, k in enumerate(key)), POSITION, INDEX]
    numbered = F.expr(ordering.numbered).alias(_NUMBERED)
    new = events.where(is_moved()).select(SEQUENCE, numbered, F.struct(*side).alias("new"))
    old = events.where(F.col(OP) == DELETE).select(SEQUENCE, F.struct(*side).alias("old"))
    distance, one_record, other_key = _between_halves(len(key))
    candidates = new.join(old, SEQUENCE).where(other_key & (F.col(_NUMBERED) | one_record | distance.between(1, 2)))
    nearest = Window.partitionBy("new").orderBy(
        F.when(distance < 0, 1).otherwise(0), F.abs(distance), F.abs("old._index")
    )
    return candidates.withColumn("_n", F.row_number().over(nearest)).where("_n = 1").select(SEQUENCE, "new", "old")


def certain_changes(events: DataFrame, key: Sequence[str], ordering: Ordering) -> DataFrame:
    """Return the key changes of rows that the source surely logged as one change; columns as in `halves`.

    Their delete and insert have a number that no other change has. All rows of a statement may have the same one, as in
    a binary log: then they are adjacent, or parts of one record.
    """
    side = F.struct(*(F.col(quote(k)).alias(f"k{i}") for i, k in enumerate(key)), POSITION, INDEX)
    change = F.expr(f"if({ordering.numbered}, {ordering.identity}, {SEQUENCE}) AS {_AT}")
    numbered, is_old = F.expr(ordering.numbered).alias(_NUMBERED), F.col(_WENT)
    rows = events.where(F.col(OP).isin(INSERT, READ, DELETE))
    rows = rows.select(change, numbered, (F.col(OP) == DELETE).alias(_WENT), side.alias("side"), POSITION, INDEX)
    # The rows of a snapshot share their place, in which nothing is deleted.
    rows = rows.join(rows.where(is_old).select(_AT).distinct(), _AT, "left_semi")
    whole = Window.partitionBy(_AT)
    earlier = whole.orderBy(POSITION, INDEX).rowsBetween(Window.unboundedPreceding, -1)
    is_only = F.col(_NUMBERED)
    for of_side in (is_old, ~is_old):
        its_key = F.when(of_side, F.struct(*(f"side.k{i}" for i in range(len(key)))))
        is_only = is_only & F.min(its_key).over(whole).eqNullSafe(F.max(its_key).over(whole))
    old = F.when(is_old, F.col("side"))
    found = F.when(is_only, F.max(old).over(whole)).otherwise(F.last(old, ignorenulls=True).over(earlier))
    pairs = rows.select(
        _NUMBERED, F.when(~is_old, F.col("side")).alias("new"), is_only.alias("_only"), found.alias("old")
    )
    distance, one_record, other_key = _between_halves(len(key))
    is_one = F.col("_only") | one_record | (F.col(_NUMBERED) & distance.between(1, 2))
    return pairs.where(F.col("new").isNotNull() & F.col("old").isNotNull() & other_key & is_one).select("new", "old")


def _between_halves(width: int) -> tuple[Column, Column, Column]:
    """Return the distance of `old` and `new`, whether one record has both, and whether their keys differ."""
    distance = F.col(f"new.{POSITION}") - F.col(f"old.{POSITION}")
    one_record = (distance == 0) & (F.col(f"old.{INDEX}") == F.col(f"new.{INDEX}") - 1)
    other_key = F.lit(False)
    for i in range(width):
        other_key = other_key | ~F.col(f"new.k{i}").eqNullSafe(F.col(f"old.k{i}"))
    return distance, one_record, other_key


def key_side(pairs: DataFrame, side: str, key: Sequence[str]) -> DataFrame:
    """Return the keys of one side of `halves`."""
    return pairs.select(*(F.col(f"{side}.k{i}").alias(k) for i, k in enumerate(key)))


def states(
    events: DataFrame,
    key: Sequence[str],
    columns: Sequence[str],
    ordering: Ordering,
    *,
    omits_values: bool,
) -> DataFrame:
    """Return each event with the whole row of its key after the event; `_present` is whether the row exists.

    A missing row has its last values. Values that no event contains are null.

    Args:
        events: all events of the keys in any order, or stored rows (`as_events`) and all events since.
        key: columns that identify a row.
        columns: all columns of the row.
        ordering: properties of the sequences.
        omits_values: whether some inserts omit values.
    """
    keys = cols(key)
    rest = [c for c in columns if c not in key]
    numbered = _numbered(_without_repeats(events, keys, ordering), keys, ordering)
    so_far = Window.partitionBy(*keys, _ROW).orderBy(SEQUENCE, POSITION, INDEX)
    so_far = so_far.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    is_write = ~F.col(OP).isin(DELETE, TRUNCATE)
    values = {
        f"v{i}": F.last(
            F.when(
                is_write & ~F.coalesce(F.array_contains(UNAVAILABLE, F.lit(c)), F.lit(False)),
                F.struct(F.col(quote(c)).alias("value")),
            ),
            ignorenulls=True,
        ).over(so_far)
        for i, c in enumerate(rest)
    }
    others = [c for c in events.columns if c not in columns]
    full = numbered.select(
        *keys, *others, _ROW, _GONE, PRESENT, *(value.alias(name) for name, value in values.items())
    )  # fmt: skip
    if omits_values and rest:
        full = _with_moved(checkpoint(full), key, len(rest), ordering)
    return full.select(
        *(
            F.col(quote(c)) if c in key else F.col(f"v{rest.index(c)}.value").alias(c)
            for c in columns
        ),
        *others, PRESENT,
    )  # fmt: skip


def _without_repeats(events: DataFrame, keys: Sequence[Column], ordering: Ordering) -> DataFrame:
    """Return the events without repeated deliveries.

    Several changes of a row may share an identity; they are applied in the order of the stream. If one of them comes
    again, with the same op and values, the stream goes on from there: the first one and all between the two were a
    delivery that is repeated.

        c1 u2 u3            all are kept
        c1 u2 d | u2        u2 and d are repeated from u2 on: c1 u2
        c1 u2 d | u2 d c3   c1 u2 d c3
    """
    change = [*keys, F.expr(ordering.identity)]
    in_order = Window.partitionBy(*change).orderBy(POSITION, INDEX)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    of_change = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    copies = Window.partitionBy(*change, OP, _content(events))
    at = F.col(_AT)
    rows = events.withColumns({_NUMBERED: F.expr(ordering.numbered), _AT: F.struct(POSITION, INDEX)})
    rows = rows.withColumns({_LAST: F.max(_AT).over(copies), _FIRST: F.min(_AT).over(copies)})
    delivery = F.sum((at > F.col(_FIRST)).cast("int")).over(so_far)
    rows = rows.withColumn(_PART, F.struct(delivery.alias("delivery"), F.col(_LAST).alias("last")))
    comes_again = F.max(_PART).over(so_far)["last"] > at
    # One insert or delete is one, even if its deliveries differ in form, as after a column was added.
    is_one = (F.min(OP).over(of_change) == F.max(OP).over(of_change)) & (F.col(OP) != UPDATE)
    rows = rows.withColumn(_AGAIN, F.when(is_one, F.max(_AT).over(of_change) > at).otherwise(comes_again))
    # Deliveries differ in how much of the position they have: wal2json 2 without the line that begins a transaction.
    position = F.when(F.col(_NUMBERED), F.max(SEQUENCE).over(of_change)).otherwise(F.col(SEQUENCE))
    rows = rows.withColumn(_WHOLE, position).where(~F.col(_NUMBERED) | ~F.col(_AGAIN))
    return rows.withColumn(SEQUENCE, F.col(_WHOLE)).drop(_NUMBERED, _AT, _LAST, _FIRST, _PART, _AGAIN, _WHOLE)


def _content(events: DataFrame) -> Column:
    """Return a hash of what an event says, however often it is delivered."""
    of_delivery = (SEQUENCE, POSITION, INDEX, ARRIVED_AT)
    # Maps cannot be hashed.
    fields = [
        f.name for f in events.schema.fields if f.name not in of_delivery and "map<" not in f.dataType.simpleString()
    ]
    return F.xxhash64(*cols(fields))


def _numbered(events: DataFrame, keys: Sequence[Column], ordering: Ordering) -> DataFrame:
    """Add `_row`, the number of the event's row within its key, `_gone`, the row that a delete removes; `_present`."""
    ordered = Window.partitionBy(*keys).orderBy(SEQUENCE, POSITION, INDEX)
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    earlier = ordered.rowsBetween(Window.unboundedPreceding, -1)
    of_group = Window.partitionBy(*keys, _GROUP)
    in_group = of_group.orderBy(SEQUENCE, POSITION, INDEX)
    group_so_far = in_group.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole_group = in_group.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    op = F.col(OP)

    def number(condition: Column) -> Column:
        return condition.cast("int")

    # Snapshot rows, stored rows and truncates belong to no transaction.
    rows = events.withColumn(_TX, F.when(op.isin(INSERT, UPDATE, DELETE), F.expr(ordering.transaction)))
    rows = rows.withColumn("_cuts", F.sum(number(F.col(_TX).isNull())).over(so_far))
    rows = rows.withColumn("_starts", number(op.isin(INSERT, READ)))
    rows = rows.withColumn(_GROUP, F.struct(F.col("_cuts"), F.col(_TX)))
    rows = rows.withColumn(_CAME, F.sum("_starts").over(group_so_far))
    rows = rows.withColumn(_WENT, F.sum(number(op == DELETE)).over(group_so_far))
    rows = rows.withColumn("_mixed", F.max(number((op == DELETE) & (F.col(_CAME) > 0))).over(whole_group))
    remaining = F.last(_CAME).over(whole_group) - F.last(_WENT).over(whole_group)
    # A key whose first event is a delete or update had a row before.
    existed = F.first(OP).over(whole_group).isin(DELETE, UPDATE)
    # The number of rows after a transaction, if it does not depend on the rows before it.
    after = (
        F.when(F.col("_mixed") == 0, number(~F.last(OP).over(whole_group).isin(DELETE, TRUNCATE)))
        .when(existed, number(remaining >= 0))
        .when(remaining > 0, F.lit(1))
        .when(remaining < 0, F.lit(0))
    )
    is_last = F.lead(OP).over(in_group).isNull()
    rows = rows.withColumn("_after", F.when(is_last, after))
    before_count = F.coalesce(F.last("_after", ignorenulls=True).over(earlier), F.lit(0))
    rows = rows.withColumn("_before", before_count).withColumn("_was", F.lag(OP).over(in_group))
    rows = rows.withColumn("_held", F.when(existed, F.lit(1)).otherwise(F.col("_before")))
    # An update of a missing row creates it, without the values of an earlier row.
    missing = F.when(F.col("_was").isNull(), F.col("_before") == 0).otherwise(F.col("_was") == DELETE)
    rows = rows.withColumn("_again", number((op == UPDATE) & (F.col("_mixed") == 0) & missing))
    rows = rows.withColumn(_ROW, F.sum(F.col("_starts") + F.col("_again")).over(so_far))
    longest = F.least(F.col(_ROW) - F.col(_CAME) + F.col(_WENT) - F.col("_held"), F.col(_ROW))
    removed = F.when(op == DELETE, F.when(F.col("_mixed") == 1, longest).otherwise(F.col(_ROW)))
    present = F.when(F.col("_mixed") == 1, F.col("_held") + F.col(_CAME) - F.col(_WENT) > 0)
    return rows.withColumn(_GONE, removed).withColumn(PRESENT, F.coalesce(present, ~op.isin(DELETE, TRUNCATE)))


def _with_moved(full: DataFrame, key: Sequence[str], width: int, ordering: Ordering) -> DataFrame:
    """Fill values that inserts omit from the rows that were deleted under the old keys.

    The key of such a row may have changed before: rounds look 1, 2, 4, ... key changes further back.
    """
    names = [f"v{i}" for i in range(width)]
    keys = [F.col(quote(k)).alias(f"k{i}") for i, k in enumerate(key)]
    pairs = halves(full, key, ordering)
    at = F.struct(*keys, POSITION, INDEX)
    # The row that each insert adds, and the row that the matching delete removes.
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
        parents_of = rows.select(
            F.col("me").alias("next"), F.col("next").alias("then"), *(F.col(n).alias(f"p{n}") for n in names)
        )
        filled = (F.coalesce(F.col(n), F.col(f"p{n}")).alias(n) for n in names)
        rows = checkpoint(rows.join(parents_of, "next", "left").select("me", F.col("then").alias("next"), *filled))
    inherited = parents.join(rows.withColumnRenamed("me", "parent"), "parent").select(
        F.col("me"), *(F.col(n).alias(f"p{n}") for n in names)
    )
    me = F.struct(*keys, F.col(_ROW).alias("row"))
    others = [c for c in full.columns if c not in names]
    joined = full.withColumn("me", me).join(inherited, "me", "left")
    return joined.select(*cols(others), *(F.coalesce(F.col(n), F.col(f"p{n}")).alias(n) for n in names))

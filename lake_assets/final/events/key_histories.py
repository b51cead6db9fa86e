"""Which keys of a window can be told from its events alone, and what else is needed for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.final.events.key_changes import entangled, halves, is_moved, key_side
from lake_assets.final.events.staging_events import history_of, keys_of
from lake_assets.final.events.window_stats import Batch, is_late
from lake_assets.final.target import Target
from lake_assets.formats.event_model import INDEX, OP, POSITION, TRUNCATE
from lake_assets.lake import quote
from lake_assets.tables.spark_frames import checkpoint

# A chain of key changes is followed so far in each direction.
_MOST_ROUNDS = 40


@dataclass(frozen=True)
class Needs:
    """What a window's keys need.

    Attributes:
        late: keys whose state has to be computed from all that staging holds of them; None: none are.
        tied: other keys, whose rows are to be known as they were before the window; None: none are.
        history: all events of staging; None: it need not be read.
        moved: whether some inserts leave values out.
        lost: how many of these have no other half to take the values from.
    """

    late: DataFrame | None
    tied: DataFrame | None
    history: DataFrame | None
    moved: bool
    lost: int
    why: tuple[str, ...]


def needs(target: Target, batch: Batch) -> Needs:
    """Look for events that are late, key changes that leave values out, and keys with two rows for a while."""
    key, stats, why = target.key, batch.stats, list[str]()
    late = keys_of(target, batch.events.where(is_late(target, batch.before))) if stats.late else None
    tied: DataFrame | None = None
    if stats.moved:
        why.append("keys changed: values that are left out come from the rows under the old keys")
        pairs = checkpoint(halves(batch.events, key, target.ordering))
        tied = key_side(pairs, "old", key).union(key_side(pairs, "new", key))
        # The other half may be in staging already; a few events may have come before theirs.
        alone = keys_of(target, _alone(batch.events, pairs))
        if checkpoint(alone).limit(1).count():
            late = late.union(alone) if late is not None else alone
    if stats.inserts and stats.deletes and target.ordering.has_transactions:
        crossed = entangled(batch.events, key, target.ordering)
        if not crossed.isEmpty():
            crossed = checkpoint(crossed)
            why.append("keys were taken and left within one transaction")
            tied = tied.union(crossed) if tied is not None else crossed
    if tied is not None and target.spec.deletes == "ignore":
        # Rows that are kept beyond their delete do not tell what the source held.
        late, tied = (late.union(tied) if late is not None else tied), None
    if late is None:
        return Needs(
            None, checkpoint(tied.distinct()) if tied is not None else None, None, bool(stats.moved), 0, tuple(why)
        )
    why.append("late or repeated events: their keys are computed from all of their history")
    history = history_of(target, batch.head.snapshot)
    late, lost, moved = checkpoint(late.distinct()), 0, bool(history.where(is_moved()).limit(1).count())
    if moved:
        pairs = checkpoint(halves(history, key, target.ordering))
        late = _connected(late, pairs, key, batch)
        lost = _alone(history.where(is_moved()).join(late, list(key), "left_semi"), pairs).count()
    if tied is not None:
        tied = checkpoint(tied.distinct().join(late, list(key), "left_anti"))
    return Needs(late, tied, history, moved, lost, tuple(why))


def _alone(events: DataFrame, pairs: DataFrame) -> DataFrame:
    """Inserts that leave values out and whose other half is not there."""
    paired = pairs.select(F.col(f"new.{POSITION}").alias(POSITION), F.col(f"new.{INDEX}").alias(INDEX))
    return events.where(is_moved()).join(paired, [POSITION, INDEX], "left_anti")


def _connected(keys: DataFrame, pairs: DataFrame, key: Sequence[str], batch: Batch) -> DataFrame:
    """`keys` and those that rows were moved to or from, directly or through others."""
    names, found = list(key), keys
    size = found.count()
    for _ in range(_MOST_ROUNDS):
        near = [found]
        for here, there in (("old", "new"), ("new", "old")):
            other = pairs.select(
                *(F.col(f"{here}.k{i}").alias(k) for i, k in enumerate(names)), F.col(there).alias("there")
            )
            reached = other.join(found, names, "left_semi")
            near.append(reached.select(*(F.col(f"there.k{i}").alias(k) for i, k in enumerate(names))))
        found = checkpoint(near[0].union(near[1]).union(near[2]).distinct())
        grown = found.count()
        if grown == size:
            break
        size = grown
    return found


def with_truncates(events: DataFrame, keys: DataFrame, truncates: DataFrame, key: Sequence[str]) -> DataFrame:
    """`events`, and each truncate once for every key."""
    names = [F.col(quote(k)) for k in key]
    each = truncates.where(F.col(OP) == TRUNCATE).drop(*key).crossJoin(keys.select(*names))
    return events.unionByName(each.select(*(F.col(quote(c)) for c in events.columns)))

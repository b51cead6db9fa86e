"""Find the keys of a window whose rows do not follow from its events alone, and what else they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.final.batch import Batch
from lake_assets.final.events.key_changes import entangled, halves, is_moved, key_side
from lake_assets.final.events.staging_events import history_of, keys_of
from lake_assets.formats.event_model import INDEX, OP, POSITION, TRUNCATE
from lake_assets.tables.spark_frames import checkpoint, cols

# The length up to which a chain of key changes is followed in each direction.
_MOST_ROUNDS = 40


@dataclass(frozen=True)
class Needs:
    """Data that the keys of a window need besides the events of the window.

    Attributes:
        late: keys whose state has to be computed from all their events in staging; None: no keys.
        tied: other keys whose stored rows are needed; None: no keys.
        history: all events of staging; None: not needed.
        omits_values: whether some inserts omit values because the row's key changed.
        why: reasons, as text for the outcome.
    """

    late: DataFrame | None
    tied: DataFrame | None
    history: DataFrame | None
    omits_values: bool
    why: tuple[str, ...]


def needs(batch: Batch) -> Needs:
    """Find late events, key changes whose inserts omit values, and keys that temporarily have two rows."""
    target, key, stats, why = batch.target, batch.target.key, batch.stats, list[str]()
    late = keys_of(target, batch.late_events) if stats.late else None
    tied: DataFrame | None = None
    if stats.partial_inserts:
        why.append("keys changed: omitted values come from the rows under the old keys")
        pairs = checkpoint(halves(batch.events, key, target.ordering))
        tied = key_side(pairs, "old", key).union(key_side(pairs, "new", key))
        # The other half may already be in staging, or not have arrived yet.
        alone = keys_of(target, _alone(batch.events, pairs))
        if checkpoint(alone).limit(1).count():
            late = late.union(alone) if late is not None else alone
    if stats.inserts and stats.deletes and target.ordering.has_transactions:
        crossed = entangled(batch.events, key, target.ordering)
        if not crossed.isEmpty():
            crossed = checkpoint(crossed)
            why.append("keys were inserted and deleted within one transaction")
            tied = tied.union(crossed) if tied is not None else crossed
    if tied is not None and target.spec.deletes == "ignore":
        # A table that ignores deletes does not show which rows the source had.
        late, tied = (late.union(tied) if late is not None else tied), None
    if late is None:
        tied = checkpoint(tied.distinct()) if tied is not None else None
        return Needs(None, tied, None, bool(stats.partial_inserts), tuple(why))
    why.append("late or repeated events: their keys are computed from their whole history")
    history = history_of(target, batch.head.snapshot)
    late, omits_values = checkpoint(late.distinct()), bool(history.where(is_moved()).limit(1).count())
    if omits_values:
        pairs = checkpoint(halves(history, key, target.ordering))
        late = _connected(late, pairs, key)
        # Inserts without a matching delete that has the values.
        if lost := _alone(history.where(is_moved()).join(late, list(key), "left_semi"), pairs).count():
            batch.details["inserts_without_old_row"] = lost
    if tied is not None:
        tied = checkpoint(tied.distinct().join(late, list(key), "left_anti"))
    return Needs(late, tied, history, omits_values, tuple(why))


def _alone(events: DataFrame, pairs: DataFrame) -> DataFrame:
    """Return the inserts that omit values and have no matching delete in `pairs`."""
    paired = pairs.select(F.col(f"new.{POSITION}").alias(POSITION), F.col(f"new.{INDEX}").alias(INDEX))
    return events.where(is_moved()).join(paired, [POSITION, INDEX], "left_anti")


def _connected(keys: DataFrame, pairs: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return `keys` and all keys that share a row with them through one or more key changes."""
    names, connected = list(key), keys
    size = connected.count()
    for _ in range(_MOST_ROUNDS):
        reachable = [connected]
        for side, other_side in (("old", "new"), ("new", "old")):
            neighbours = pairs.select(
                *(F.col(f"{side}.k{i}").alias(k) for i, k in enumerate(names)), F.col(other_side).alias("other")
            )
            reached = neighbours.join(connected, names, "left_semi")
            reachable.append(key_side(reached, "other", names))
        connected = checkpoint(reachable[0].union(reachable[1]).union(reachable[2]).distinct())
        grown = connected.count()
        if grown == size:
            break
        size = grown
    return connected


def with_truncates(events: DataFrame, keys: DataFrame, truncates: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the events and, for every key, a copy of each truncate."""
    names = cols(key)
    each = truncates.where(F.col(OP) == TRUNCATE).drop(*key).crossJoin(keys.select(*names))
    return events.unionByName(each.select(*cols(events.columns)))

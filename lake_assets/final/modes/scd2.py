"""All versions of each row (SCD2), with the time interval in which each was valid.

A version is valid in `[effective_from, effective_to)`; the current one ends at 9999-12-31. The versions of a key follow
from its events in the order of the source, no matter when they arrived:

- Times never go back: an event with an earlier time than its predecessor (in the source's order) gets the time of the
  predecessor. So the intervals of a key do not overlap, even if the clock of the source was set back.
- Of several events with the same time only the last one counts: the others were valid for no length of time.
- A change of untracked columns is written into the version that is valid at its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lake_assets.final.added_columns import CURRENT, FROM, TO
from lake_assets.final.batch import Batch, as_events
from lake_assets.final.events.key_changes import PRESENT
from lake_assets.final.events.reduction import happened
from lake_assets.final.events.staging_events import keys_of, states_of
from lake_assets.final.modes.key_histories import Needs, needs, with_truncates
from lake_assets.final.target import Target
from lake_assets.formats.event_model import DELETE, INDEX, OP, POSITION, READ, SEQUENCE, TRUNCATE
from lake_assets.lake import quote
from lake_assets.tables.spark_frames import checkpoint, cols, together
from lake_assets.tables.writing.merge_clauses import Delete, Update, insert, source_values

# 9999-12-31 00:00:00 UTC in seconds since 1970.
_OPEN_END = 253_402_214_400
_VERSION = "_version"


def apply(batch: Batch) -> tuple[str, str]:
    """MERGE the versions of the window's keys that differ; return strategy and reason."""
    target, needed = batch.target, needs(batch)
    why = [*needed.why, *(["the source was truncated"] if batch.stats.truncated else [])]
    computed, keys = _versions(batch, needed)
    changes = checkpoint(_differing(batch, computed, batch.stored_rows(keys)))
    if target.is_new:
        return "rebuild", batch.replace(changes)
    if not changes.limit(1).count():
        batch.writer.nothing()
        return "none", "; ".join([*why, "no version differs"])
    names = [*target.columns, *target.own]
    clauses = [
        Delete(f"s.{OP} = '{DELETE}'"),
        Update(values=source_values([c for c in names if c not in target.row_key])),
        insert(names, when=f"s.{OP} <> '{DELETE}'"),
    ]
    how = batch.merge(changes, clauses)
    return "merge", "; ".join([*why, *([how] if how else [])])


def rows_of(batch: Batch) -> DataFrame:
    """Return all versions, computed from all of staging."""
    return _versions(batch, needs(batch))[0]


def _versions(batch: Batch, needed: Needs) -> tuple[DataFrame, DataFrame | None]:
    """Return the versions of the keys whose versions may differ, and these keys (None: all keys)."""
    rows, keys = _states(batch, needed)
    return versions(rows, batch.target.key, batch.target.columns, batch.target.tracked), keys


def _states(batch: Batch, needed: Needs) -> tuple[DataFrame, DataFrame | None]:
    """Return the states of the keys whose versions may differ, and these keys (None: all keys)."""
    target, key, late, history = batch.target, list(batch.target.key), needed.late, needed.history
    truncates = batch.events.where(F.col(OP) == TRUNCATE)
    keys = keys_of(target, batch.events)
    everything = bool(batch.stats.truncated)
    if everything:
        # A truncate ends all open versions. Any row may have been inserted after it and have arrived before it.
        late = checkpoint(keys_of(target, history)) if history is not None else None
        keys = keys.union(batch.stored_rows(None).select(*cols(key))).distinct()
    parts: list[DataFrame] = []
    separate: list[DataFrame] = []
    if late is not None and history is not None:
        key_events = with_truncates(history.join(late, key, "left_semi"), late, history, key)
        if target.projection.is_computed_late:
            separate.append(states_of(target, key_events, omits_values=needed.omits_values, of_source=True))
        else:
            parts.append(key_events)
        keys = keys.join(late, key, "left_anti")
    keys = checkpoint(keys)
    parts.append(_as_events(target, batch.stored_rows(keys)))
    key_events = batch.events.join(keys, key, "left_semi")
    parts.append(with_truncates(key_events, keys, truncates, key) if everything else key_events)
    rows = together([*separate, states_of(target, together(parts), omits_values=needed.omits_values)])
    if everything:
        return rows, None
    return rows, checkpoint(keys.union(late)) if late is not None else keys


def _as_events(target: Target, stored: DataFrame) -> DataFrame:
    """Return stored versions as the events that would produce them."""
    number = F.row_number().over(Window.partitionBy(*cols(target.key)).orderBy(FROM)) * 2
    rows = stored.withColumn("_number", number)
    opened = as_events(target, rows, READ, F.col("_number"), F.col(FROM))
    closed = as_events(target, rows.where(~F.col(CURRENT)), DELETE, F.col("_number") + 1, F.col(TO))
    return opened.unionByName(closed)


def versions(rows: DataFrame, key: Sequence[str], columns: Sequence[str], track: Sequence[str]) -> DataFrame:
    """Return the versions that follow from the `states` of keys: `columns` and the interval.

    A change of the columns `track` opens a new version.
    """
    keys = cols(key)
    rest = [c for c in columns if c not in key]
    ordered = Window.partitionBy(*keys).orderBy(SEQUENCE, POSITION, INDEX)
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    timed = rows.withColumn(FROM, F.max(happened()).over(so_far))
    last = Window.partitionBy(*keys, FROM).orderBy(F.desc(SEQUENCE), F.desc(POSITION), F.desc(INDEX))
    moments = timed.withColumn("_rank", F.row_number().over(last)).where("_rank = 1")

    before = Window.partitionBy(*keys).orderBy(FROM)
    was_present = F.coalesce(F.lag(PRESENT).over(before), F.lit(False))
    differs: Column = F.lit(False)
    for c in track:
        differs = differs | ~F.lag(quote(c)).over(before).eqNullSafe(F.col(quote(c)))
    starts = (F.col(PRESENT) & (~was_present | differs)) | (~F.col(PRESENT) & was_present)
    numbered = moments.withColumn(_VERSION, starts.cast("int")).withColumn(_VERSION, F.sum(_VERSION).over(before))
    image = F.struct(*cols(rest), F.col(PRESENT))
    grouped = (
        numbered.where(F.col(_VERSION) > 0)
        .groupBy(*keys, _VERSION)
        .agg(F.max_by(image, F.col(FROM)).alias("row"), F.min(FROM).alias(FROM))
    )
    open_end = F.timestamp_seconds(F.lit(_OPEN_END))
    closed = grouped.withColumn(TO, F.coalesce(F.lead(FROM).over(before), open_end))
    return closed.where(F.col(f"row.{PRESENT}")).select(
        *(F.col(quote(c)) if c in key else F.col(f"row.{quote(c)}").alias(c) for c in columns),
        FROM,
        TO,
        (F.col(TO) == open_end).alias(CURRENT),
    )


def _differing(batch: Batch, computed: DataFrame, stored: DataFrame) -> DataFrame:
    """Return versions that differ from the stored ones, and stored versions to delete (`_op` delete)."""
    target, types, identifying = batch.target, batch.types, batch.target.row_key
    rest = [c for c in (*target.columns, *target.own) if c not in identifying]

    def side(frame: DataFrame, name: str) -> DataFrame:
        return frame.select(
            *(F.col(quote(c)).cast(types[c]).alias(c) for c in identifying),
            F.struct(*(F.col(quote(c)).cast(types[c]).alias(c) for c in rest)).alias(name),
        )

    both = side(computed, "new").join(side(stored, "old"), list(identifying), "full_outer")
    is_obsolete = F.col("new").isNull()
    # As a whole: of a condition over every column, the optimizer derives one for each subset of the columns.
    return both.where(~F.col("new").eqNullSafe(F.col("old"))).select(
        *cols(identifying),
        *(F.col(f"new.{quote(c)}").alias(c) for c in rest),
        F.when(is_obsolete, DELETE).otherwise(READ).alias(OP),
    )

"""Events of staging: the events of a window, all events, and the row states that follow from them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import Capture
from lake_assets.errors import LostEventsError
from lake_assets.final.events.deletes_by_other_keys import has_other_key, identify_deletes
from lake_assets.final.events.key_changes import states
from lake_assets.final.staging_projection import source_name
from lake_assets.final.target import Target
from lake_assets.formats.event_model import INDEX, OP, POSITION, TRUNCATE
from lake_assets.lake import quote, thresholds
from lake_assets.lake.counts import plural
from lake_assets.tables.spark_frames import cols
from lake_assets.tables.writing.table_ddl import columns_of


def window_events(target: Target, captured: Capture) -> tuple[DataFrame, int]:
    """Return the window's events, and how many deletes by another key were left out because they match no row.

    Raises:
        LostEventsError: staging was rolled back, and lacks events that are in the final table.
    """
    window_ = captured.window
    end = window_.end.snapshot_id if window_.end else None
    rows, without_row = _identified(target, captured.upserts(target.lake.spark(), thresholds.LOCAL_EVENTS), end)
    events = target.projection.events(rows)
    if window_.is_forward or window_.start is None or window_.end is None:
        return events, without_row
    # Staging was rolled back and has caught up: reingested events are new rows.
    place = [POSITION, INDEX]
    before, after = (staging_at(target, p.snapshot_id).select(*place) for p in (window_.start, window_.end))
    if lost := before.join(after, place, "left_anti").count():
        raise LostEventsError(
            f"{target.spec.table}: {target.spec.staging} was rolled back and lacks {plural(lost, 'event')} that "
            f"{target.spec.table} has absorbed"
        )
    return events.join(before, place, "left_anti"), without_row


def history_of(target: Target, snapshot: int | None) -> DataFrame:
    """Return all events of staging: as events of the source if `is_computed_late`, else of the table."""
    rows, _ = _identified(target, staging_at(target, snapshot), snapshot)
    if target.projection.is_computed_late:
        return target.projection.source_events(rows, target.key, target.source_key)
    return target.projection.events(rows)


def staging_at(target: Target, snapshot: int | None) -> DataFrame:
    """Return the rows of staging as of a snapshot; columns that were added later are null."""
    rows = target.lake.rows_at(target.spec.staging, snapshot)
    later = {n: t for n, t in columns_of(target.lake, target.spec.staging).items() if n not in rows.columns}
    return rows.withColumns({n: F.lit(None).cast(t) for n, t in later.items()}) if later else rows


def has_other_keys(target: Target, snapshot: int | None) -> bool:
    """Whether some delete in staging has another declared key: its row then depends on other events."""
    if not _other_keys(target):
        return False
    return not staging_at(target, snapshot).where(has_other_key(target.source_key, _other_keys(target))).isEmpty()


def keys_of(target: Target, events: DataFrame) -> DataFrame:
    """Return the distinct keys of events (a truncate has no key)."""
    return events.where(F.col(OP) != TRUNCATE).select(*cols(target.key)).distinct()


def states_of(target: Target, events: DataFrame, *, omits_values: bool, of_source: bool = False) -> DataFrame:
    """Return each event with the whole row of its key after it (see `key_changes.states`).

    `of_source`: whether they are events of the source (see `history_of`).
    """
    if not of_source:
        return states(events, target.key, target.columns, target.ordering, omits_values=omits_values)
    source_columns = [c for c in events.columns if c.startswith(source_name(""))]
    rows = states(events, target.key, [*target.key, *source_columns], target.ordering, omits_values=omits_values)
    values = (
        F.col(quote(name)) if name in target.key else F.expr(item.sql(source_name)).alias(name)
        for name, item in target.items.items()
    )
    return rows.select(*values, *(F.col(c) for c in rows.columns if c not in (*target.key, *source_columns)))


def _other_keys(target: Target) -> list[tuple[str, ...]]:
    """Return the declared keys besides the table's key: deletes may identify rows by them."""
    existing = target.projection.source.keys()
    return [k for k in target.spec.keys if set(k) != set(target.source_key) and set(k) <= existing]


def _identified(target: Target, rows: DataFrame, snapshot: int | None) -> tuple[DataFrame, int]:
    if not _other_keys(target):
        return rows, 0
    return identify_deletes(rows, staging_at(target, snapshot), target.source_key, _other_keys(target))

"""Fold a staging table: delete the old events that later ones have superseded, once its final table has absorbed them.

Nothing downstream changes: a final table with one row per key (SCD1) is the same without them, whatever arrives later
(see `events.folding`). Tables that need each event, such as those with all versions of a row, refuse.
"""

from __future__ import annotations

from datetime import UTC, datetime

from pyiceberg.table import Table

from lake_assets.errors import Refused
from lake_assets.final.declaration import reason_to_rebuild
from lake_assets.final.events.folding import superseded
from lake_assets.final.events.staging_events import staging_at
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.target import Target
from lake_assets.formats.event_model import ARRIVED_AT, INDEX, POSITION, UNAVAILABLE
from lake_assets.ingest.staging.due_records import in_place
from lake_assets.lake import LakeBase
from lake_assets.lake.metadata.row_counts import UPKEEP_PROPERTY
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.tables.merge_pruning import Pruning
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.spark_frames import checkpoint, cols
from lake_assets.tables.writing.merge_clauses import Delete, Match
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import columns_of, key_in
from lake_assets.tables.writing.table_writer import TableWriter

# Table property of a staging table: superseded events from before may have been deleted, as an ISO time.
FOLDED_PROPERTY = "lake-assets.folded-until"


def folded_until(staging: Table) -> datetime | None:
    """Return the time before which superseded events may have been deleted; None: all events are there."""
    text = staging.properties.get(FOLDED_PROPERTY)
    return datetime.fromisoformat(text) if text else None


def why_every_event(spec: FinalSpec) -> str:
    """Return why a final table needs each event of its staging table; empty: the last of each key are enough."""
    if spec.mode != "scd1":
        return f"`mode: {spec.mode}` is computed from every event"
    if spec.by_row:
        return "rows without a key are counted by every event"
    if spec.order_by:
        return "an event with a later value in `order_by` may be about any time"
    if len(spec.keys) > 1:
        return "deletes may name rows by another key"
    return ""


def fold(lake: LakeBase, spec: FinalSpec, before: datetime) -> int | Refused:
    """Delete superseded events that arrived before a time.

    Args:
        spec: the only table that reads the staging table.

    Returns:
        How many were deleted; or why none can be.

    Raises:
        ConcurrentWriteError: another writer was faster.
    """
    staging, table = lake.table(spec.staging), lake.find(spec.table)
    absorbed = _absorbed(lake, spec, staging, table)
    if isinstance(absorbed, Refused):
        return absorbed
    target = Target(lake, spec, is_new=False)
    if target.mode != "scd1" or set(target.source_key) != {spec.rename.get(k, k) for k in key_in(staging)}:
        return Refused(f"the rows of {spec.table} are not identified by the key of {spec.staging}")
    columns = columns_of(lake, spec.staging)
    if in_place(staging) or any(old != new and {old, new} <= columns.keys() for old, new in spec.rename.items()):
        return Refused("a renamed column has its values in two columns")
    rows = staging_at(target, absorbed)
    projected = target.projection.events(rows).drop(UNAVAILABLE)
    # With all that an event omits, also of columns that the final table does not have.
    events = projected.join(rows.select(POSITION, INDEX, UNAVAILABLE), [POSITION, INDEX])
    until = before.astimezone(UTC)
    is_old = f"{ARRIVED_AT} < TIMESTAMP '{until:%Y-%m-%d %H:%M:%S.%f+00:00}'"
    gone = superseded(events, target.key, target.ordering, is_old, is_reset=spec.deletes == "hard", rename=spec.rename)
    if isinstance(gone, Refused):
        return gone
    gone = checkpoint(gone)
    count = gone.count()
    settings = {FOLDED_PROPERTY: until.isoformat()}
    commit = Commit(lake, spec.staging, staging, known_marks(staging), settings=settings)
    if count:
        low, high = gone.selectExpr(f"min({POSITION})", f"max({POSITION})").collect()[0]
        writer = TableWriter(commit, columns)
        pruning = Pruning(f"t.{POSITION} BETWEEN {int(low)} AND {int(high)}", {}, "")
        place = [POSITION, INDEX]
        writer.merge(
            gone.select(*cols(place)), Match(place, nulls_match=False), [Delete()], lambda: pruning,
            properties={UPKEEP_PROPERTY: "events"}, at_most=count,
        )  # fmt: skip
    return count


def _absorbed(lake: LakeBase, spec: FinalSpec, staging: Table, table: Table | None) -> int | Refused:
    """Return the snapshot of staging that the final table has absorbed, if it goes on from there."""
    if why := why_every_event(spec):
        return Refused(f"{spec.table}: {why}")
    mark = known_marks(table).get(str(spec.staging))
    if table is None or mark is None or mark.snapshot is None:
        return Refused(f"{spec.table} has absorbed nothing yet")
    is_same = mark.uuid == str(staging.metadata.table_uuid) and staging.snapshot_by_id(mark.snapshot) is not None
    if not is_same or not between(staging.metadata, mark.snapshot, staging.metadata.current_snapshot_id).is_forward:
        return Refused(f"{spec.staging} has another history than {spec.table} has absorbed")
    if why := reason_to_rebuild(lake, spec, table, staging):
        return Refused(f"{spec.table} is about to be rebuilt: {why}")
    return mark.snapshot

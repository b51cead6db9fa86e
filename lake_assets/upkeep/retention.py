"""How long records of raw and events of staging stay: what is older than declared, and removing it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime

from pyiceberg.table import Table

from lake_assets.capture.files.column_bounds import bound
from lake_assets.capture.files.manifests import DATA, ManifestReader
from lake_assets.errors import Refused
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.folded_staging import fold, folded_until
from lake_assets.formats.event_model import ARRIVED_AT
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.old_records import delete_old_records
from lake_assets.ingest.raw_tables import kept_since
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.row_counts import number, summary_of
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermark
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.upkeep_policy import DAY, Retention, UpkeepPolicy
from lake_assets.upkeep.upkeep_actions import Action

log = logging.getLogger(__name__)
# Old rows go once they are older than declared by this share: each time, a part of the table is read and rewritten.
_SLACK = 0.1
_COLUMNS = {"records": "arrived_at", "events": ARRIVED_AT}


def overdue(table: Table, policy: UpkeepPolicy, now: float) -> list[Action]:
    """Return the action that removes old records or events, if some are older than declared by a tenth.

    Reads the manifests of a table of which nothing was removed before.
    """
    retention = policy.retention
    if not policy.is_on or retention is None or retention.refused or not may_be_overdue(table, policy, now):
        return []
    done = _removed_until(table, retention)
    oldest = done or _oldest(table, _COLUMNS[retention.kind])
    if oldest is None or not _is_over(retention, oldest, now):
        return []
    kept, age = f"`keep_{retention.kind}: {retention.seconds / DAY:g}d`", (now - oldest.timestamp()) / DAY
    reason = f"{retention.kind} are up to {age:,.1f} days old ({kept})"
    # The rows are found by reading the table, and about a tenth of it goes.
    summary = summary_of(table.current_snapshot())
    files = number(summary, "total-records") * _SLACK / thresholds.UPKEEP_ROWS_A_FILE
    return [Action(".".join(table.name()), retention.kind, reason, files, number(summary, "total-files-size"))]


def may_be_overdue(table: Table, policy: UpkeepPolicy, now: float) -> bool:
    """Whether a table may hold older records or events than declared: what its loaded metadata tell."""
    if (retention := policy.retention) is None or retention.refused or table.metadata.current_snapshot_id is None:
        return False
    done = _removed_until(table, retention)
    return done is None or _is_over(retention, done, now)


def _is_over(retention: Retention, oldest: datetime, now: float) -> bool:
    return now - oldest.timestamp() > retention.seconds * (1 + _SLACK)


def _removed_until(table: Table, retention: Retention) -> datetime | None:
    return kept_since(table) if retention.kind == "records" else folded_until(table)


def _oldest(table: Table, column: str) -> datetime | None:
    """Return the smallest time in a column, by the bounds of its files; None: the table is empty.

    A file without bounds may hold any.
    """
    snapshot, field = table.current_snapshot(), table.schema().find_field(column)
    if snapshot is None:
        return None
    reader = ManifestReader(table.io)
    manifests, _ = reader.manifest_list(snapshot.manifest_list)
    files = reader.completed(reader.entries(manifests, keep=lambda e: e.content == DATA))
    lows = [bound(field.field_type, e.statistic("lower_bounds").get(field.field_id), upper=False) for e in files]
    return min((low or datetime.min.replace(tzinfo=UTC) for low in lows), default=None)


def remove_outdated(lake: LakeBase, name: TableId, policy: UpkeepPolicy, now: float) -> int | Refused:
    """Delete the records of a raw table, or fold the events of a staging table, that are older than declared.

    Returns:
        How many rows were deleted; or why none can be for now.

    Raises:
        ConcurrentWriteError: another writer was faster.
    """
    retention = policy.retention
    if retention is None:
        return 0
    declared = {r.table for r in retention.readers}
    if others := [t for t, _ in readers_in(lake, name) if t not in declared]:
        return Refused(f"{others[0]}, which the pipeline does not declare, reads them")
    before = datetime.fromtimestamp(now - retention.seconds, UTC)
    if retention.kind == "records":
        return delete_old_records(lake, name, [r for r in retention.readers if isinstance(r, StagingSpec)], before)
    [final] = [r for r in retention.readers if isinstance(r, FinalSpec)]
    return fold(lake, final, before)


def readers_in(lake: LakeBase, source: TableId) -> Iterator[tuple[TableId, Watermark]]:
    """Yield the tables of the lake that have absorbed a table, with their watermarks of it; those that cannot be read
    are left out."""
    for target in lake.all_tables():
        try:
            loaded = lake.find(target)
            marks = known_marks(loaded) if loaded is not None and PIPELINE_PROPERTY in loaded.properties else {}
        except Exception as e:  # broken metadata make PyIceberg raise many
            log.warning("what %s has absorbed of %s is not known: %s", target, source, lake.config.hidden(str(e)))
            continue
        if mark := marks.get(str(source)):
            yield target, mark

"""Find the commits of a shared raw table that brought records for one of its source tables."""

from __future__ import annotations

import json

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.formats import SourceTable
from lake_assets.formats.event_model import MANY
from lake_assets.ingest.raw_tables import ARRIVED_PROPERTY
from lake_assets.lake.metadata.snapshot_log import between


def nothing_until(raw: Table, start: int | None, end: int | None, source: SourceTable) -> int | None:
    """Return the last snapshot of a window before the first that may have brought records of a source table.

    The summaries of landings count their records per source table. Reads loaded metadata only.

    Args:
        raw: the raw table.
        start, end: snapshots of the window; None: before the first snapshot, and an empty table.
        source: the source table.

    Returns:
        `start` if the very next snapshot may have brought some, `end` if none may.
    """
    names = tuple(f"{json.dumps(name)}:" for name in (str(source), MANY))
    for snapshot in _steps(raw, start, end) or ():
        if _may_hold(snapshot, names):
            break
        start = snapshot.snapshot_id
    return start


def arrived(raw: Table, start: int | None, end: int | None, source: SourceTable) -> int | None:
    """Count the records of a window about a source table, alone or with others; None: a commit has no counts.

    Args:
        raw: the raw table.
        start, end: snapshots of the window; None: before the first snapshot, and an empty table.
        source: the source table.
    """
    steps = _steps(raw, start, end)
    if steps is None:
        return None
    records = 0
    for snapshot in steps:
        summary = snapshot.summary
        counts = summary.additional_properties.get(ARRIVED_PROPERTY) if summary else None
        if summary is None or (counts is None and summary.operation != Operation.REPLACE):
            return None
        by_source = json.loads(counts) if counts else {}
        records += int(by_source.get(str(source), 0)) + int(by_source.get(MANY, 0))
    return records


def _steps(raw: Table, start: int | None, end: int | None) -> tuple[Snapshot, ...] | None:
    """Return the snapshots of a window, oldest first.

    Returns:
        None if `start` is no ancestor of `end` (the table was rolled back), or snapshots between them have expired.
    """
    log = between(raw.metadata, start, end)
    # The step after an expired snapshot still names it as its parent.
    if (log.ancestor and log.undone) or (log.steps and log.steps[0].parent_snapshot_id != start):
        return None
    return log.steps if start is not None or not log.steps or _is_first(log.steps[0]) else None


def _is_first(snapshot: Snapshot) -> bool:
    """Whether the table was empty before: an expired parent may leave a snapshot without one as well."""
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    return summary.get("total-records", "") == summary.get("added-records")


def _may_hold(snapshot: Snapshot, names: tuple[str, ...]) -> bool:
    """Whether a commit counts records under one of the names (as JSON keys), or has no counts."""
    summary = snapshot.summary
    if summary is None:
        return True
    if summary.operation == Operation.REPLACE:
        return False  # compaction brings no records
    counts = summary.additional_properties.get(ARRIVED_PROPERTY)
    # Searched as text: for an idle table, each sensor tick checks thousands of commits.
    return counts is None or any(name in counts for name in names)

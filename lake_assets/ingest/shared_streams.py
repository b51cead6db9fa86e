"""Which commits of a raw table brought records for one of the source tables that share it."""

from __future__ import annotations

import json

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lake_assets.formats import SourceTable
from lake_assets.formats.event_model import MANY
from lake_assets.ingest.raw_tables import ARRIVED_PROPERTY
from lake_assets.lake.metadata.snapshot_log import between


def nothing_until(raw: Table, start: int | None, end: int | None, source: SourceTable) -> int | None:
    """The last snapshot of a window before the first one that may have brought records of a source table.

    Landings say how many they bring of which; reads what was loaded only.

    Args:
        raw: the raw table.
        start, end: the window; None: the beginning, and a table that is empty.
        source: the source table.

    Returns:
        `start` where that is the first one, `end` where there is none.
    """
    named = tuple(f"{json.dumps(name)}:" for name in (str(source), MANY))
    for snapshot in _steps(raw, start, end) or ():
        if _may_hold(snapshot, named):
            break
        start = snapshot.snapshot_id
    return start


def arrived(raw: Table, start: int | None, end: int | None, source: SourceTable) -> int | None:
    """How many records a window has that are about a source table, alone or with others; None: its commits do not say.

    Args:
        raw: the raw table.
        start, end: the window; None: the beginning, and a table that is empty.
        source: the source table.
    """
    steps = _steps(raw, start, end)
    if steps is None:
        return None
    found = 0
    for snapshot in steps:
        said = snapshot.summary
        counts = said.additional_properties.get(ARRIVED_PROPERTY) if said else None
        if said is None or (counts is None and said.operation != Operation.REPLACE):
            return None
        of = json.loads(counts) if counts else {}
        found += int(of.get(str(source), 0)) + int(of.get(MANY, 0))
    return found


def _steps(raw: Table, start: int | None, end: int | None) -> tuple[Snapshot, ...] | None:
    """The snapshots of a window, oldest first; None: the one end does not lead to the other, since the table was rolled
    back, or snapshots have expired."""
    log = between(raw.metadata, start, end)
    # The step after an expired snapshot still names it as its parent.
    if (log.ancestor and log.undone) or (log.steps and log.steps[0].parent_snapshot_id != start):
        return None
    return log.steps if start is not None or not log.steps or _is_first(log.steps[0]) else None


def _is_first(snapshot: Snapshot) -> bool:
    """Whether nothing was in the table before; who expires snapshots may leave their children without parents."""
    said = snapshot.summary.additional_properties if snapshot.summary else {}
    return said.get("total-records", "") == said.get("added-records")


def _may_hold(snapshot: Snapshot, named: tuple[str, ...]) -> bool:
    """Whether a commit says that it brought records under some names (as JSON), or does not say what it brought."""
    said = snapshot.summary
    if said is None:
        return True
    if said.operation == Operation.REPLACE:
        return False  # compaction brings nothing
    counts = said.additional_properties.get(ARRIVED_PROPERTY)
    # Looked for in the text: a table that nothing comes for has thousands of commits to look at, with each tick.
    return counts is None or any(name in counts for name in named)

"""Snapshots that a connector took of its source tables, as landing sees them: where a table was read again.

Rows that were deleted while nothing was recorded have no event. They are missing in the next snapshot of the whole
table, which begins at a known record: the tables downstream are exact again if they start there (`start_position`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from pyiceberg.table import Table

from lake_assets.formats.event_model import SnapshotRow
from lake_assets.lake.metadata.snapshot_log import ancestors

# Snapshot property of a raw table: the last snapshot of each source table that was read whole.
PROPERTY = "lake-assets.source-snapshots"


@dataclass(frozen=True)
class TableSnapshot:
    """The last snapshot of a whole source table.

    Attributes:
        place: the place in the source's log that all of its rows have.
        start: position of its first record in the raw table.
        is_complete: whether its last row has arrived.
        is_repeated: whether records of the table had arrived before it.
    """

    place: str
    start: int
    is_complete: bool = False
    is_repeated: bool = False


def follow(snapshots: dict[str, TableSnapshot], table: str, row: SnapshotRow, position: int, *, is_known: bool) -> None:
    """Add a row of a snapshot to the snapshots so far.

    Args:
        snapshots: the last snapshot by source table; changed.
        table: the source table of the row.
        row: what its record says about the snapshot.
        position: position of the record.
        is_known: whether records of the table had arrived before.
    """
    last = snapshots.get(table)
    if last is None or last.place != row.place:
        last = TableSnapshot(row.place, position, is_repeated=is_known)
    snapshots[table] = TableSnapshot(last.place, last.start, last.is_complete or row.is_last, last.is_repeated)


def read_snapshots(raw: Table, snapshot_id: int | None = None) -> dict[str, TableSnapshot]:
    """Return the last snapshot of each source table as of a commit of the raw table; None: the current one."""
    for commit in ancestors(raw, snapshot_id):
        if commit.summary and (text := commit.summary.additional_properties.get(PROPERTY)):
            return {name: TableSnapshot(*fields) for name, fields in json.loads(text).items()}
    return {}


def to_properties(snapshots: Mapping[str, TableSnapshot]) -> dict[str, str]:
    """Return the snapshot property that stores the snapshots."""
    return {PROPERTY: json.dumps({name: astuple(s) for name, s in sorted(snapshots.items())}, separators=(",", ":"))}

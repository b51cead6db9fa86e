"""Snapshots that a connector took of its source tables, as landing sees them: where a table was read again.

Rows that were deleted while nothing was recorded have no event. They are missing in the next snapshot of the whole
table, which begins at a known record: the tables downstream are exact again if they start there (`start_position`).
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace

from pyiceberg.table import Table

from lake_assets.formats.event_model import SnapshotRow
from lake_assets.ingest.raw_tables import stored

# Snapshot property of a raw table: the last snapshot of each source table that was read whole.
PROPERTY = "lake-assets.source-snapshots"
# In a snapshot's place: no row of it counts.
_VOIDED = "voided"


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


class TableSnapshots:
    """The last snapshot of each source table, as records land."""

    def __init__(self, raw: Table) -> None:
        self._of = read_snapshots(raw)

    def follow(self, table: str, row: SnapshotRow, position: int, *, is_known: bool) -> None:
        """Take a row of a snapshot into account; `is_known`: whether records of its table had arrived before."""
        last = self._of.get(table)
        if last is None or last.place != row.place:
            is_voided = last is not None and last.place == _VOIDED
            last = TableSnapshot(row.place, position, is_repeated=is_known and not is_voided)
        if row.is_last and not last.is_complete:
            last = replace(last, is_complete=True)
        self._of[table] = last

    def void(self, table: str, position: int) -> None:
        """Take into account that a table was truncated here, before a snapshot of it."""
        self._of[table] = TableSnapshot(_VOIDED, position)

    def properties(self) -> dict[str, str]:
        """Return the snapshot properties that the next landing starts from."""
        values = {table: astuple(s) for table, s in sorted(self._of.items())}
        return {PROPERTY: json.dumps(values, separators=(",", ":"))} if values else {}


def read_snapshots(raw: Table, snapshot_id: int | None = None) -> dict[str, TableSnapshot]:
    """Return the last snapshot of each source table as of a commit of the raw table; None: the current one."""
    return {table: TableSnapshot(*fields) for table, fields in stored(raw, PROPERTY, snapshot_id).items()}

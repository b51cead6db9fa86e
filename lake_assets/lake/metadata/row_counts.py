"""Row counts from snapshot summaries, without deleted rows."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

# Summary property of commits that remove rows without any change to what the rows say: no table downstream follows.
UPKEEP_PROPERTY = "lake-assets.upkeep"


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """Return the properties of a snapshot's summary; empty if it has none."""
    return snapshot.summary.additional_properties if snapshot and snapshot.summary else {}


def number(summary: Mapping[str, str], name: str) -> int:
    """Return a number in a summary; 0 if it is missing."""
    return int(summary.get(name) or 0)


def row_count(table: Table) -> int | None:
    """Return the number of rows in the current snapshot; None if its summary does not tell."""
    return rows_in(table, table.current_snapshot())


def rows_in(table: Table, snapshot: Snapshot | None) -> int | None:
    """Return the number of rows in a snapshot of a table; None if its summary does not tell.

    Equality deletes remove an unknown number of rows. Position deletes of format version 2 may delete one row twice,
    and outlive the file of that row; deletion vectors do neither.
    """
    if snapshot is None:
        return 0
    summary = summary_of(snapshot)
    hidden = number(summary, "total-position-deletes")
    if "total-records" not in summary or number(summary, "total-equality-deletes"):
        return None
    if hidden and table.metadata.format_version < 3:
        return None
    return number(summary, "total-records") - hidden


def visible_rows(snapshot: Snapshot | None) -> int:
    """Estimate the number of rows in a snapshot, for planning."""
    summary = summary_of(snapshot)
    return max(0, number(summary, "total-records") - number(summary, "total-position-deletes"))


def rows_added_and_deleted(snapshot: Snapshot | None) -> tuple[int, int]:
    """Return the number of rows that a commit added to files, and the number that it deleted.

    `deleted-records` counts all rows of the removed files, including rows that were deleted before. The deletes of
    these rows are removed with their files and counted in `removed-position-deletes`.
    """
    summary = summary_of(snapshot)
    hidden = number(summary, "added-position-deletes") - number(summary, "removed-position-deletes")
    return number(summary, "added-records"), max(0, number(summary, "deleted-records") + hidden)


def keeps_rows(snapshot: Snapshot) -> bool:
    """Whether a commit changed no row: upkeep, or a watermark alone."""
    summary = snapshot.summary
    if summary is None:
        return False
    file_counts = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")
    changed = any(number(summary.additional_properties, name) for name in file_counts)
    return summary.operation == Operation.REPLACE or not changed


def is_upkeep(snapshot: Snapshot) -> bool:
    """Whether a commit is upkeep: files were rewritten, or rows removed that no table downstream has to follow."""
    summary = snapshot.summary
    if summary is None:
        return False
    return summary.operation == Operation.REPLACE or UPKEEP_PROPERTY in summary.additional_properties

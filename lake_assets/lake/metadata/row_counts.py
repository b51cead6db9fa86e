"""Numbers of rows from snapshot summaries, without those that deletes hide."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """The properties of a snapshot's summary; empty where it has none."""
    return snapshot.summary.additional_properties if snapshot and snapshot.summary else {}


def number(summary: Mapping[str, str], name: str) -> int:
    """A number of a summary; 0 where it is missing."""
    return int(summary.get(name) or 0)


def row_count(table: Table) -> int | None:
    """Rows of the current snapshot; None where its summary does not tell.

    Equality deletes hide an unknown number of rows. Position deletes of format version 2 may hide one row twice, and
    outlive the files whose rows they hide; a delete vector does neither.
    """
    snapshot = table.current_snapshot()
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
    """About how many rows a snapshot has, for planning."""
    summary = summary_of(snapshot)
    return max(0, number(summary, "total-records") - number(summary, "total-position-deletes"))


def rows_added_and_deleted(snapshot: Snapshot | None) -> tuple[int, int]:
    """Rows that a commit put into files, and rows that it took out of sight.

    `deleted-records` counts all rows of the files that a commit removed, those that deletes had hidden before as well.
    The deletes go with their files, as `removed-position-deletes` says.
    """
    summary = summary_of(snapshot)
    hidden = number(summary, "added-position-deletes") - number(summary, "removed-position-deletes")
    return number(summary, "added-records"), max(0, number(summary, "deleted-records") + hidden)

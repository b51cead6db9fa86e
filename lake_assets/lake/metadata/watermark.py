"""Watermarks: the absorbed snapshot of each source, stored in the target's snapshot summaries.

One property holds the watermarks of all sources. The commit that writes the data also writes the property, so the two
never disagree. A rerun reads the property again, and a target that is rolled back catches up by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.errors import CorruptMetadataError, SnapshotExpiredError
from lake_assets.lake.metadata.row_counts import summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors

PROPERTY = "lake-assets.watermark"
PIPELINE_PROPERTY = "lake-assets.pipeline"


@dataclass(frozen=True)
class Watermark:
    """Progress of a target in one source.

    Attributes:
        uuid: the source table's uuid; it changes if the table is dropped and created again.
        snapshot: the absorbed source snapshot; None while the source was empty.
        high: the greatest absorbed (sequence, position) of a change event, if the target orders by it.
        time: the latest absorbed time of a change event (microseconds), if the target stores times.
        transaction: the transaction of the last absorbed event, which may continue, if it differs from `high`'s.
    """

    uuid: str
    snapshot: int | None
    high: tuple[str, int] | None = None
    time: int | None = None
    transaction: str | None = None


Watermarks = Mapping[str, Watermark]


def find_property(table: Table, key: str, snapshot_id: int | None = None) -> tuple[str, Snapshot] | None:
    """Return a summary property of the newest ancestor of a snapshot (default: the current one) that has it.

    Commits of other programs lack it.
    """
    for snapshot in ancestors(table, snapshot_id):
        if snapshot.summary and (value := snapshot.summary.additional_properties.get(key)):
            return value, snapshot
    return None


def read_marks(table: Table) -> dict[str, Watermark]:
    """Return the target's watermarks by source name; empty for a table that has absorbed nothing yet.

    Raises:
        SnapshotExpiredError: a pipeline filled the table, but the snapshot with its watermark has expired.
        CorruptMetadataError: the property was not written by this package.
    """
    stored = find_property(table, PROPERTY)
    if stored is None:
        if table.metadata.current_snapshot_id is not None and PIPELINE_PROPERTY in table.properties:
            raise SnapshotExpiredError(
                f"{'.'.join(table.name())} contains data, but no snapshot says which source snapshots are in it: the "
                "snapshot with its watermark has expired, or somebody has replaced the table. Rebuild it from its "
                f"sources: `lake-assets rebuild {'.'.join(table.name())}`"
            )
        return {}
    try:
        return parse_marks(stored[0])
    except (ValueError, TypeError, AttributeError, LookupError) as e:
        raise CorruptMetadataError(
            f"{'.'.join(table.name())}: the watermark in snapshot {stored[1].snapshot_id} is not valid: {e}"
        ) from e


def back_to_watermark(table: Table) -> Iterator[int]:
    """Yield the ancestors of main's snapshot that lead to the watermark; none if it is in that snapshot itself."""
    for snapshot, parent in pairwise(ancestors(table)):
        if PROPERTY in summary_of(snapshot):
            return
        yield parent.snapshot_id


def parse_marks(text: str) -> dict[str, Watermark]:
    """Parse the watermarks in a property."""
    return {name: _mark(mark) for name, mark in json.loads(text).items()}


def _mark(mark: dict[str, Any]) -> Watermark:
    position = mark.get("high")
    high = (str(position[0]), int(position[1])) if position else None
    return Watermark(mark["uuid"], mark["snapshot"], high, mark.get("time"), mark.get("transaction"))


def to_properties(marks: Watermarks) -> dict[str, str]:
    """Return the summary properties that store `marks`."""
    vector = {
        source: {
            field: value
            for field, value in asdict(mark).items()
            if value is not None or field not in ("high", "time", "transaction")
        }
        for source, mark in sorted(marks.items())
    }
    return {PROPERTY: json.dumps(vector, separators=(",", ":"))}

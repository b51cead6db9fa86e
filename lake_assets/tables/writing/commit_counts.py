"""The rows that a commit changed, from its summary."""

from __future__ import annotations

from pyiceberg.table.snapshots import Snapshot

from lake_assets.lake.metadata.row_counts import rows_added_and_deleted, summary_of

_COUNTED = ("inserted", "updated", "deleted")
# Of a commit that writes more rows than it changes; of a MERGE that this process or Spark carried out.
_OWN_COUNTS, _MERGED_COUNTS, _SPARKS_COUNTS = (
    "lake-assets.rows-",
    "lake-assets.merged-rows-",
    "spark.merge-into.num-target-rows-",
)


def count_properties(inserted: int, updated: int, deleted: int) -> dict[str, str]:
    """Return snapshot properties with the counts of a commit that writes more rows than it changes."""
    return {_OWN_COUNTS + what: str(n) for what, n in zip(_COUNTED, (inserted, updated, deleted), strict=True)}


def merge_properties(inserted: int, updated: int, deleted: int) -> dict[str, str]:
    """Return snapshot properties with the counts of a MERGE that Spark did not carry out."""
    return {_MERGED_COUNTS + what: str(n) for what, n in zip(_COUNTED, (inserted, updated, deleted), strict=True)}


def has_counts(snapshot: Snapshot | None) -> bool:
    """Whether a commit stores its number of changed rows (`count_properties`)."""
    return _OWN_COUNTS + _COUNTED[0] in summary_of(snapshot)


def counts(snapshot: Snapshot | None) -> tuple[int, int, int]:
    """Return the rows inserted, updated and deleted by a commit."""
    summary = summary_of(snapshot)
    for prefix in (_OWN_COUNTS, _MERGED_COUNTS, _SPARKS_COUNTS):
        values = [summary.get(prefix + what) for what in _COUNTED]
        if any(v is not None for v in values):
            inserted, updated, deleted = (int(v or 0) for v in values)
            return inserted, updated, deleted
    added, deleted = rows_added_and_deleted(snapshot)
    return added, 0, deleted

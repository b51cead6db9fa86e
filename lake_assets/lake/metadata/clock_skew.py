"""Reset future timestamps of tables that were written by a clock running ahead.

Iceberg rejects commits and metadata that go back in time by more than a minute: after one commit by a clock that is an
hour ahead, all others fail for an hour (`Invalid update timestamp`). PyIceberg does not check this, so its next commit
would make the table unreadable for Spark. Therefore future timestamps are reset before the next commit.

Source: https://github.com/apache/iceberg/blob/main/core/src/main/java/org/apache/iceberg/TableMetadata.java
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

from pyiceberg.table import Table

from lake_assets.lake.metadata.metadata_commits import Metadata, can_rewrite, commit, now_ms

log = logging.getLogger(__name__)
# Iceberg's tolerance.
TOLERANCE_MS = 60_000


def is_ahead(table: Table, now: int) -> bool:
    """Whether a commit at `now` (milliseconds since 1970) would fail.

    It fails if timestamps of the table are later than `now` or out of order.
    """
    metadata = table.metadata
    for history in (metadata.snapshot_log, metadata.metadata_log):
        times = [*(entry.timestamp_ms for entry in history), metadata.last_updated_ms, now]
        if any(later < earlier - TOLERANCE_MS for earlier, later in itertools.pairwise(times)):
            return True
    return False


def reset_future_times(table: Table) -> bool:
    """Reset a table's future timestamps to now, so that commits succeed; return whether there were any.

    Does nothing with a catalog behind a server, since only the server can do it.

    Raises:
        MovedError, CommitFailedException, CorruptMetadataError: see `metadata_commits.commit`.
    """
    if not can_rewrite(table.catalog) or not is_ahead(table, now_ms()):
        return False
    log.warning(
        "%s was written by a clock running ahead: future timestamps are reset to now, or commits would fail until then",
        ".".join(table.name()),
    )
    commit(table, lambda metadata: not_after(metadata, now_ms()))
    return True


def not_after(metadata: Metadata, now: int) -> Metadata:
    """Return the metadata with ordered timestamps, none of them after `now`."""
    last = min(metadata["last-updated-ms"], now)
    return {
        **metadata,
        "last-updated-ms": last,
        "snapshots": [{**s, "timestamp-ms": min(s["timestamp-ms"], now)} for s in metadata.get("snapshots", ())],
        "snapshot-log": _in_order(metadata.get("snapshot-log", ()), last),
        "metadata-log": _in_order(metadata.get("metadata-log", ()), last),
    }


def _in_order(history: Sequence[dict[str, Any]], latest: int) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for entry in reversed(history):
        latest = min(latest, entry["timestamp-ms"])
        entries.append({**entry, "timestamp-ms": latest})
    return entries[::-1]

"""Tables that a clock running ahead has written.

Iceberg lets no commit go back in time by more than a minute, and reads no metadata that does: after one commit by a
clock that is an hour ahead every other one fails for an hour (`Invalid update timestamp`). PyIceberg does not look, so
that its next commit makes the table unreadable for Spark. The times are taken back before the next commit instead.

Source: https://github.com/apache/iceberg/blob/main/core/src/main/java/org/apache/iceberg/TableMetadata.java
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

from pyiceberg.table import Table

from lake_assets.lake.metadata.metadata_commits import Metadata, can_commit, commit, now_ms

log = logging.getLogger(__name__)
# Iceberg's own.
TOLERANCE_MS = 60_000


def is_ahead(table: Table, now: int) -> bool:
    """Whether a commit at `now` (milliseconds since 1970) would fail: times of the table are later than that, or than
    what came after them."""
    metadata = table.metadata
    for history in (metadata.snapshot_log, metadata.metadata_log):
        times = [*(entry.timestamp_ms for entry in history), metadata.last_updated_ms, now]
        if any(later < earlier - TOLERANCE_MS for earlier, later in itertools.pairwise(times)):
            return True
    return False


def take_back(table: Table) -> bool:
    """Let a table's times end now where they lie ahead, so that it can be committed to; returns whether they did.

    Where the catalog is a server, only that can do it, and nothing happens here.

    Raises:
        MovedError, CommitFailedException, CorruptMetadataError: see `metadata_commits.commit`.
    """
    if not can_commit(table.catalog) or not is_ahead(table, now_ms()):
        return False
    log.warning(
        "%s was written by a clock that was ahead: its times end now, else nobody could commit to it until then",
        ".".join(table.name()),
    )
    commit(table, lambda metadata: until(metadata, now_ms()))
    return True


def until(metadata: Metadata, now: int) -> Metadata:
    """The same metadata with no time after `now`, and none after what followed it."""
    last = min(metadata["last-updated-ms"], now)
    return {
        **metadata,
        "last-updated-ms": last,
        "snapshots": [{**s, "timestamp-ms": min(s["timestamp-ms"], now)} for s in metadata.get("snapshots", ())],
        "snapshot-log": _in_order(metadata.get("snapshot-log", ()), last),
        "metadata-log": _in_order(metadata.get("metadata-log", ()), last),
    }


def _in_order(history: Sequence[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for entry in reversed(history):
        last = min(last, entry["timestamp-ms"])
        found.append({**entry, "timestamp-ms": last})
    return found[::-1]

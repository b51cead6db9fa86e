"""Tables as a clock that is ahead leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lake_assets import Lake
from lake_assets.lake.metadata.metadata_commits import commit


def written_ahead(lake: Lake, table: str, ahead: timedelta, *, last: int = 1) -> None:
    """Let the last commits of a table have been made by a clock that was ahead."""
    by = int(ahead.total_seconds() * 1000)

    def later(entries: Any) -> list[Mapping[str, Any]]:
        first = max(0, len(entries) - last)
        return [{**e, "timestamp-ms": e["timestamp-ms"] + by} if i >= first else e for i, e in enumerate(entries)]

    def change(metadata: dict[str, Any]) -> dict[str, Any]:
        logs = {what: later(metadata.get(what, ())) for what in ("snapshots", "snapshot-log", "metadata-log")}
        return {**metadata, **logs, "last-updated-ms": metadata["last-updated-ms"] + by}

    commit(lake.table(table), change)

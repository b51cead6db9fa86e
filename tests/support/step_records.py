"""Records of steps as a journal holds them, made by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from lake_assets.journal.step_records import StepRecord

NOW = datetime.now(UTC)


def step(
    table: str,
    strategy: str = "merge",
    *,
    cpu: float = 1.0,
    of: int = 0,
    start: int | None = 1,
    ago: float = 60.0,
    pipeline: str = "shop",
    status: str = "absorbed",
    **more: Any,
) -> StepRecord:
    """Return the record of a step.

    Args:
        cpu: its core-seconds.
        of: size of its sources, in bytes.
        start: the snapshot from which its window begins; None: it read everything.
        ago: the seconds since it began.
    """
    window = {"source": "raw.events", "start_snapshot": start, "end_snapshot": 2, "files": 1, "bytes": 10}
    at = (NOW - timedelta(seconds=ago)).timestamp()
    return StepRecord(
        pipeline, table, status, at, cpu / 2, cpu, strategy=strategy, source_bytes=of, sources=[window], **more
    )

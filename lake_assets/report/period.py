"""The period of a report, and what the steps in it cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from lake_assets.errors import PipelineError
from lake_assets.journal import step_journal
from lake_assets.journal.step_costs import StepCost, step_costs
from lake_assets.lake import LakeBase, thresholds
from lake_assets.pipeline.config.setting_types import seconds_of


def since_of(text: str, now: datetime | None = None) -> datetime:
    """Return the beginning of a period that is named by its length, a date or a time (in UTC).

    Raises:
        PipelineError: it is none of these, or later than now.
    """
    now = now or datetime.now(UTC)
    try:
        start = now - timedelta(seconds=seconds_of(text))
    except (ValueError, OverflowError):
        try:
            start = datetime.fromisoformat(text)
        except ValueError:
            raise PipelineError(
                f"--since {text}: write how far back (12h, 7d), or a date or time in UTC (2026-11-01, 2026-11-01T06:00)"
            ) from None
        start = start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)
    if start > now:
        raise PipelineError(f"--since {text} is later than now ({now:%Y-%m-%d %H:%M} UTC): write an earlier time")
    return start


def costs_since(lake: LakeBase, start: datetime) -> Sequence[StepCost]:
    """Return the costs of all steps and published backfills since then, the oldest first, with estimates that also use
    earlier steps."""
    records = step_journal.read(lake, start, backfills=True)
    if not records:
        return []
    first = datetime.now(UTC) - timedelta(days=thresholds.JOURNAL_DAYS + 1)
    earlier = step_journal.read(lake, first, start, only_complete=True) if first < start else []
    return step_costs(records, earlier)

"""When a silence is no longer usual, and when steps have become slower: pure functions over what steps have shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from lake_assets.journal.step_digests import Activity, StepBrief
from lake_assets.lake import thresholds

_DAY = 86_400.0


def usual_gap(activity: Activity) -> float:
    """Return the longest time between two moments that is usual, in seconds: one as long occurs every week."""
    weeks = int((activity.last - activity.first) / _DAY / thresholds.RHYTHM_WEEK_DAYS)
    # Of a week, the longest gap; of five weeks, the fifth: that leaves out single outages, and keeps every weekend.
    return activity.gaps[min(max(1, weeks), len(activity.gaps)) - 1] if activity.gaps else 0.0


def longest_silence(activity: Activity | None) -> float | None:
    """Return after how many seconds without anything more is wrong; None: too little is known."""
    if activity is None:
        return None
    known_for = activity.last - activity.first
    if activity.moments < thresholds.RHYTHM_ARRIVALS or known_for < thresholds.RHYTHM_SECONDS:
        return None
    # The night of a source that came for the first time today is not known yet.
    least = max(thresholds.SILENCE_LEAST_SECONDS, known_for if known_for < _DAY else 0.0)
    return max(least, thresholds.SILENCE_FACTOR * usual_gap(activity))


def longest_step(steps: Sequence[StepBrief]) -> float | None:
    """Return after how many seconds a step takes far longer than usual; None: too little is known.

    Args:
        steps: the steps of a table that absorbed something; failed ones say nothing.
    """
    if len(steps) < thresholds.SLOWER_STEPS:
        return None
    return max(thresholds.OVERLONG_SECONDS, thresholds.SLOWER_FACTOR * max(s.seconds for s in steps))


@dataclass(frozen=True)
class Slowdown:
    """Steps that take longer than before.

    Attributes:
        before, now: seconds of most steps before, and of the steps since.
        since: when the first of these began, in seconds since 1970.
        steps: their number.
    """

    before: float
    now: float
    since: float
    steps: int


def slowdown(steps: Sequence[StepBrief]) -> Slowdown | None:
    """Return since when the newest steps are slower than earlier ones of their size; None: they are not.

    Args:
        steps: the steps of a table that absorbed something, the oldest first.
    """
    for start in range(thresholds.SLOWER_STEPS, len(steps)):
        before = steps[:start]
        forecasts = [_forecast(before, of=step) for step in steps[start:]]
        if all(f is not None and _is_slower(s, *f) for s, f in zip(steps[start:], forecasts, strict=True)):
            now = median(s.seconds for s in steps[start:])
            return Slowdown(max(f[0] for f in forecasts if f), now, steps[start].started_at, len(steps) - start)
    return None


def _forecast(before: Sequence[StepBrief], of: StepBrief) -> tuple[float, float] | None:
    """Return what three of four earlier steps of a step's size took at most, and the longest; None: too few are known.

    A step with many more rows than all others is not slower, but larger. One that waited for Spark's start is compared
    with such ones.
    """
    share = thresholds.SLOWER_SIZE
    alike = [s for s in before if s.started_spark == of.started_spark]
    took = [s.seconds for s in alike if s.rows >= share * of.rows and s.bytes >= share * of.bytes]
    if len(took) < thresholds.SLOWER_STEPS:
        return None
    return quantiles(took, n=4, method="inclusive")[2], max(took)


def _is_slower(step: StepBrief, usual: float, longest: float) -> bool:
    return (
        step.seconds > thresholds.SLOWER_FACTOR * usual
        and step.seconds > thresholds.SLOWER_THAN_LONGEST * longest
        and step.seconds - usual > thresholds.SLOWER_SECONDS
    )

"""Small charts, as coordinates for SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lake_assets.journal.step_costs import CostLine
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import thresholds
from lake_assets.report.amounts import core_time, duration

# Pixels.
LAG_WIDTH, LAG_HEIGHT = 260, 60
DAYS_WIDTH, DAYS_HEIGHT = 640, 140


@dataclass(frozen=True)
class LagChart:
    """How old the oldest change was that each step absorbed, when it was absorbed.

    Attributes:
        points: coordinates for a polyline.
        dots: coordinates of each point.
        target_y: where the target is; None: there is none.
        most, last: the greatest and the latest lag, as text; `target` in the same way.
        later: how many steps were later than the target.
        seconds: the greatest lag.
        share: that as a share of the target; 0 without one.
    """

    table: str
    points: str
    dots: Sequence[tuple[float, float]]
    target_y: float | None
    most: str
    last: str
    target: str
    steps: int
    later: int
    seconds: float
    share: float


def lag_chart(table: str, records: Iterable[StepRecord], start: float, end: float, target: float | None) -> LagChart:
    """Draw the lag of a table in a period; of many steps, the greatest lag in each part of the period."""
    lags = [(r.ended_at, r.lag_seconds) for r in records if r.lag_seconds is not None]
    most = max((lag for _, lag in lags), default=0.0)
    top = max(most, target or 0.0, 1e-9)
    parts: dict[int, tuple[float, float]] = {}
    width = max(end - start, 1e-9)
    for at, lag in lags:
        part = min(thresholds.REPORT_POINTS - 1, max(0, int((at - start) / width * thresholds.REPORT_POINTS)))
        if part not in parts or lag > parts[part][1]:
            parts[part] = (at, lag)

    def y(lag: float) -> float:
        return round(LAG_HEIGHT - 4 - lag / top * (LAG_HEIGHT - 10), 1)

    dots = [
        (round(4 + min(1.0, max(0.0, (at - start) / width)) * (LAG_WIDTH - 8), 1), y(lag))
        for _, (at, lag) in sorted(parts.items())
    ]
    return LagChart(
        table,
        " ".join(f"{x},{at}" for x, at in dots),
        dots,
        y(target) if target is not None else None,
        duration(most),
        duration(lags[-1][1]) if lags else "",
        duration(target) if target is not None else "",
        len(lags),
        sum(target is not None and lag > target for _, lag in lags),
        most,
        most / target if target else 0.0,
    )


@dataclass(frozen=True)
class Bar:
    """A day in a chart: what its steps used, and what computing everything is estimated to have used."""

    day: str
    x: float
    width: float
    used_height: float
    full_height: float
    text: str


def day_bars(days: Sequence[CostLine]) -> Sequence[Bar]:
    """Draw what steps used on each day, beside the estimate for computing everything."""
    days = days[-thresholds.REPORT_DAYS :]
    top = max((max(d.cpu_seconds, d.in_full) for d in days), default=0.0) or 1.0
    slot = DAYS_WIDTH / max(len(days), 7)
    height = DAYS_HEIGHT - 24
    return [
        Bar(
            d.name,
            round(n * slot + slot * 0.12, 1),
            round(slot * 0.36, 1),
            round(d.cpu_seconds / top * height, 1),
            round(d.in_full / top * height, 1),
            f"{d.name}: used {core_time(d.cpu_seconds)}, in full about {core_time(d.in_full)}",
        )
        for n, d in enumerate(days)
    ]

"""Amounts as people read them: times, shares, money."""

from __future__ import annotations

from datetime import UTC, datetime


def core_time(seconds: float) -> str:
    """Format time of one core: `12 core-seconds`, `3.5 core-hours`."""
    for unit, length in (("hour", 3600), ("minute", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:,.1f} core-{unit}s"
    return f"{seconds:,.1f} core-seconds"


def short_time(seconds: float) -> str:
    """Format time of one core for a table: `12.0 s`, `3.5 min`, `2.1 h`."""
    text = core_time(seconds)
    return text.replace(" core-seconds", " s").replace(" core-minutes", " min").replace(" core-hours", " h")


def duration(seconds: float) -> str:
    """Format a duration in its largest unit, such as `40 s`, `5 min`, `2.5 h` or `3.0 days`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def money(amount: float, currency: str) -> str:
    """Format an amount of money; small ones keep two digits that are not 0."""
    digits = 2 if abs(amount) >= 0.1 or not amount else 4
    return f"{amount:,.{digits}f} {currency}".strip()


def moment(seconds: float) -> str:
    """Format seconds since 1970 as a time in UTC, to the minute."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def counted(count: int | None) -> str:
    """Format a number; None is unknown."""
    return "unknown" if count is None else f"{count:,}"


def size(count: int) -> str:
    """Format a number of bytes with a unit: 1234 -> 1.2 kB."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"

"""Lengths of time for people."""

from __future__ import annotations


def in_words(seconds: float) -> str:
    """Return a length of time in its two largest units: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, days = whole // 60, whole // 86_400
    if minutes < 60:
        return f"{minutes} min"
    if not days:
        return _two(minutes // 60, "h", minutes % 60, "min")
    return _two(days, "d", whole % 86_400 // 3_600, "h")


def _two(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large} {unit} {small} {smaller}" if small else f"{large} {unit}"

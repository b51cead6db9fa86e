"""Durations and shares as settings write them."""

from __future__ import annotations

import re


def seconds_of(duration: str | float) -> float:
    """Convert `30s`, `5m`, `1h`, `7d` or a number to seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|)", str(duration).strip())
    if not match:
        raise ValueError(f"{duration!r} is not a duration: write 30s, 5m, 1h or 7d")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]


def share_of(text: str | float) -> float:
    """Parse a share of a whole: `0.01` or `1%`; above 0 and up to 1."""
    number = str(text).strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is not a share: write a number above 0 and up to 1, such as 0.01 or 1%")
    return share

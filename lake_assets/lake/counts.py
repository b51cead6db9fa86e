"""Numbers of things, as people read them."""

from __future__ import annotations


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """Return a number with its noun: `1 step`, `2,000 steps`."""
    return f"{count:,} {noun if count == 1 else plural_noun or noun + 's'}"

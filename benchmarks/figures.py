"""Figures of a benchmark beside what is required of them, as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Required = tuple[Literal["at least", "at most"], float]


def holds(value: float | str, required: Required | None) -> bool:
    """Whether a figure is as it has to be."""
    if required is None or isinstance(value, str):
        return True
    how, limit = required
    return value >= limit if how == "at least" else value <= limit


def show(found: Mapping[str, float | str], required: Mapping[str, Required]) -> bool:
    """Print the figures; whether one misses what is required of it."""
    print("| what | measured | required |\n|---|---|---|")
    for name, value in found.items():
        limit = required.get(name)
        shown = value if isinstance(value, str) else f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
        missed = "" if holds(value, limit) else " **missed**"
        print(f"| {name} | {shown}{missed} | {f'{limit[0]} {limit[1]:,g}' if limit else ''} |")
    return not all(holds(value, required.get(name)) for name, value in found.items())

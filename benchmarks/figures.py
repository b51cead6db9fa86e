"""Print the figures of a benchmark and their required values as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Required = tuple[Literal["at least", "at most"], float]


def holds(value: float | str, required: Required | None) -> bool:
    """Whether a figure meets its requirement."""
    if required is None or isinstance(value, str):
        return True
    how, limit = required
    return value >= limit if how == "at least" else value <= limit


def show(figures: Mapping[str, float | str], required: Mapping[str, Required]) -> bool:
    """Print the figures; return whether one misses its requirement."""
    print("| what | measured | required |\n|---|---|---|")
    for name, value in figures.items():
        limit = required.get(name)
        text = value if isinstance(value, str) else f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"
        mark = "" if holds(value, limit) else " **missed**"
        print(f"| {name} | {text}{mark} | {f'{limit[0]} {limit[1]:,g}' if limit else ''} |")
    return not all(holds(value, required.get(name)) for name, value in figures.items())

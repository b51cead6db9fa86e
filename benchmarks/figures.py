"""Print the figures of a benchmark and their required values as a Markdown table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
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


def cpu_seconds(root: int | None = None) -> float:
    """Return the CPU seconds, of user and system, of a process (default: this one) and its descendants.

    Those of descendants that have ended count if their parent has waited for them.
    """
    root = os.getpid() if root is None else root
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(stat.parent.name)
        ticks = sum(int(field) for field in fields[11:15])
        parents[pid], seconds[pid] = int(fields[1]), ticks / os.sysconf("SC_CLK_TCK")

    def is_own(pid: int) -> bool:
        return pid == root or (pid in parents and is_own(parents[pid]))

    return sum(own for pid, own in seconds.items() if is_own(pid))

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


def cpu_seconds() -> float:
    """Return the CPU seconds, of users and system, that this process and its living descendants have used."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(stat.parent.name)
        parents[pid], seconds[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_own(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_own(parents[pid]))

    return sum(own for pid, own in seconds.items() if is_own(pid))

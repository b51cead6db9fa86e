"""What is told outside of an error: its first line, without secrets.

Further lines have rows that an audit found, records that could not be read, and the traces of other programs.
"""

from __future__ import annotations

from lake_assets.lake import LakeBase, thresholds


def error_text(lake: LakeBase, text: str) -> str:
    """Return the first line of an error, shortened and without secrets."""
    line = next((line.strip() for line in lake.config.hidden(text).splitlines() if line.strip()), "")
    most = thresholds.SIGNAL_ERROR_CHARACTERS
    return line if len(line) <= most else f"{line[: most - 1]}…"

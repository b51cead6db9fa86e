"""Files and folders that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents for this user only; an existing one keeps its mode."""
    for missing in [p for p in (*reversed(folder.parents), folder) if not p.exists()]:
        missing.mkdir(0o700, exist_ok=True)


def write_private(file: Path, text: str) -> None:
    """Write a file for this user only, replacing an existing one."""
    file.unlink(missing_ok=True)
    # Created with its mode, so never readable by others; O_EXCL refuses a file that somebody else put there.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)

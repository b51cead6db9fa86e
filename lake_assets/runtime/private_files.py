"""Files and folders that only their owner can read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

# Enough for the warnings of months. Not measured.
_LOG_BYTES = 10 << 20


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents for this user only; an existing one keeps its mode."""
    for missing in [p for p in (*reversed(folder.parents), folder) if not p.exists()]:
        missing.mkdir(0o700, exist_ok=True)


def open_log(file: Path) -> IO[bytes]:
    """Open a log to append to. One that has grown large is kept as the last one (`.1`), and a new one is begun.

    Programs that have it open write on into the last one.
    """
    make_private(file.parent)
    with contextlib.suppress(FileNotFoundError):
        if file.stat().st_size > _LOG_BYTES:
            file.replace(file.with_name(f"{file.name}.1"))
    return file.open("ab")


def write_private(file: Path, text: str) -> None:
    """Write a file for this user only, replacing an existing one."""
    file.unlink(missing_ok=True)
    # Created with its mode, so never readable by others; O_EXCL refuses a file that somebody else put there.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)

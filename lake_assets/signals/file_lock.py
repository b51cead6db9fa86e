"""A lock of a folder in the lake's home, for processes that remember something there together."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path

from lake_assets.runtime.private_files import make_private

_LOCK = "lock"
_POLL_SECONDS = 0.05


@contextlib.contextmanager
def locked(folder: Path, seconds: float) -> Generator[bool]:
    """Hold a folder alone; yield whether that was possible within some seconds. A killed process lets go of it."""
    make_private(folder)
    file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _is_locked(file, seconds)
    finally:
        os.close(file)


def _is_locked(file: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True

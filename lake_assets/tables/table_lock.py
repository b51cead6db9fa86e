"""A lock for each table: the steps of a table share it, and upkeep of the table holds it alone.

It spares both the work that the loser of a race does again. It is advisory: what keeps a table right are the checks of
every commit, also among machines that share no folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Generator
from pathlib import Path

from lake_assets.errors import ConcurrentWriteError
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.runtime.private_files import make_private

log = logging.getLogger(__name__)
_FOLDER = "locks"
_POLL_SECONDS = 0.05
# Ending of a second file, which the steps that wait for upkeep hold: it lets go of the table for them.
_WAITING = "-waiting"
# Ending of a third one, and how long its holder is waited for: it reads and writes one small file.
_RECORD, _RECORD_SECONDS = "-record", 10.0


@contextlib.contextmanager
def shared(lake: LakeBase, table: TableId) -> Generator[None]:
    """Hold a table's lock together with other steps. Wait for upkeep, but not for ever."""
    with _opened(lake, table) as file:
        if file is not None and not _locked(file, fcntl.LOCK_SH, 0):
            with _opened(lake, table, _WAITING) as waiting:
                if waiting is not None:
                    _locked(waiting, fcntl.LOCK_SH, 1)
                is_held = _locked(file, fcntl.LOCK_SH, thresholds.UPKEEP_WAIT_SECONDS)
            if not is_held:
                log.warning(
                    "%s: upkeep has held the table for %g s; the step goes on, and one of them may have to start again",
                    table, thresholds.UPKEEP_WAIT_SECONDS,
                )  # fmt: skip
        yield


@contextlib.contextmanager
def alone(lake: LakeBase, table: TableId) -> Generator[bool]:
    """Hold a table's lock alone, if no step has it or waits for it; yield whether it is held."""
    with _opened(lake, table, _WAITING) as waiting:
        is_wanted = waiting is not None and not _locked(waiting, fcntl.LOCK_EX, 0)
    # Without the second file, upkeep could take the lock again and again between two looks of a step.
    with _opened(lake, table) as file:
        yield not is_wanted and (file is None or _locked(file, fcntl.LOCK_EX, 0))


@contextlib.contextmanager
def waited_for(lake: LakeBase, table: TableId) -> Generator[None]:
    """Hold a table's lock alone; wait for the steps that have it.

    Raises:
        ConcurrentWriteError: a step holds it for too long.
    """
    until = time.monotonic() + thresholds.UPKEEP_WAIT_SECONDS
    while True:
        with alone(lake, table) as is_held:
            if is_held:
                yield
                return
        if time.monotonic() >= until:
            raise ConcurrentWriteError(f"a step is at work on {table}: nothing was done, run again once it has ended")
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def of_record(lake: LakeBase, table: TableId) -> Generator[None]:
    """Hold the lock of what upkeep remembers of a table; wait for others, but not for a process that was stopped."""
    with _opened(lake, table, _RECORD) as file:
        if file is not None and not _locked(file, fcntl.LOCK_EX, _RECORD_SECONDS, poll=_POLL_SECONDS / 10):
            log.warning("what upkeep did to %s has been locked for %g s", table, _RECORD_SECONDS)
        yield


@contextlib.contextmanager
def _opened(lake: LakeBase, table: TableId, ending: str = "") -> Generator[int | None]:
    """Open a table's lock file; None if there can be none, as on a read-only disk."""
    name = hashlib.sha256("\0".join(table.parts).encode()).hexdigest()[:24] + ending
    path = Path(lake.config.home) / _FOLDER / name
    try:
        make_private(path.parent)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        log.info("%s is not locked: %s", table, e)
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)  # and with it the lock, as when the process is killed


def _locked(file: int, how: int, seconds: float, *, poll: float = _POLL_SECONDS) -> bool:
    """Lock a file, within some seconds; return whether it is locked."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(poll)
        except OSError as e:  # a file system without locks
            log.info("files of the lake's home cannot be locked: %s", e)
            return True
        else:
            return True

"""Processes that are known to others by more than a number, which the system gives again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

# The tag of a run that says which process it is.
PROCESS_TAG = "lake_assets/process"


def identity(pid: int | None = None) -> tuple[int, float]:
    """A process that cannot be mistaken for a later one with the same id; default: this one.

    Raises:
        ProcessLookupError: it is gone.
    """
    pid = os.getpid() if pid is None else pid
    try:
        if (stat := Path(f"/proc/{pid}/stat")).exists():
            # Ticks since the machine's start: times by the clock change with the clock.
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if fields[0] == "Z":
                raise ProcessLookupError(pid)
            return pid, float(fields[19])
        return pid, psutil.Process(pid).create_time()
    except (psutil.NoSuchProcess, FileNotFoundError) as e:
        raise ProcessLookupError(pid) from e


def is_there(process: Sequence[float]) -> bool:
    """Whether that process (as `identity` gives it), and no later one with its id, is at work."""
    pid, made = process
    try:
        return identity(int(pid))[1] == made
    except ProcessLookupError:
        return False
    except psutil.AccessDenied:
        return True


def here() -> str:
    """Where process ids are known: this start of this machine, and the container. Elsewhere: the machine's name."""
    boot, numbers = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    try:
        return f"{boot.read_text().strip()}/{numbers.readlink()}"
    except OSError:
        return socket.gethostname()


# What `owner` gives, as part of a longer name.
OWNER = r"[0-9a-f]{8}_\d+_\d+"


def owner(process: Sequence[float] | None = None) -> str:
    """A process (as `identity` gives it; default: this one) in the name of what is to go with it."""
    pid, made = process or identity()
    return f"{_here_in_short()}_{int(pid)}_{_thousandths(made)}"


def is_gone(name: str) -> bool | None:
    """Whether the process that `owner` has named is no more; None: it is, or was, where this process cannot see."""
    place, pid, made = name.split("_")
    if place != _here_in_short():
        return None
    try:
        return _thousandths(identity(int(pid))[1]) != int(made)
    except ProcessLookupError:
        return True
    except psutil.AccessDenied:
        return False


def _here_in_short() -> str:
    return hashlib.sha256(here().encode()).hexdigest()[:8]


def _thousandths(made: float) -> int:
    return round(made * 1000)


@dataclass(frozen=True)
class RunProcess:
    """The process of a run, as the run's tag says it.

    Attributes:
        run_id: the run. Runs that repeat another one are given its tags.
        host: where its number is known, as `here` says it.
        pid: its number there.
        made: what sets it apart from others with that number.
    """

    run_id: str
    host: str
    pid: int
    made: float

    @classmethod
    def this(cls, run_id: str) -> RunProcess:
        """This process, for a run."""
        return cls(run_id, here(), *identity())

    @classmethod
    def of(cls, run_id: str, tags: Mapping[str, str]) -> RunProcess | None:
        """The one that a run's tags name; None: they name none of this run's."""
        found = cls(*json.loads(tags[PROCESS_TAG])) if PROCESS_TAG in tags else None
        return found if found and found.run_id == run_id else None

    @property
    def tags(self) -> dict[str, str]:
        """For the run."""
        return {PROCESS_TAG: json.dumps(astuple(self))}

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, where this process is."""
        return self.host == here()

    def is_there(self) -> bool:
        """Whether it is at work."""
        return is_there((self.pid, self.made))

    def kill(self) -> None:
        """End it for good, if it is there."""
        if self.is_there():
            os.kill(self.pid, signal.SIGKILL)

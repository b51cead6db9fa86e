"""Identity of processes beyond their id, which the system reuses."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

# The run tag that identifies its process.
# Dagster shows no tags that begin with this.
PROCESS_TAG = ".dagster/lake_assets.process"


def identity(pid: int | None = None) -> tuple[int, float]:
    """Return an identity of a process (default: this one) that differs from later ones with the same id.

    Raises:
        ProcessLookupError: the process does not exist.
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
    """Whether the process with this `identity` is running, and not a later one with its id."""
    pid, start = process
    try:
        return identity(int(pid))[1] == start
    except ProcessLookupError:
        return False
    except psutil.AccessDenied:
        return True


def here() -> str:
    """Return the scope of process ids: this boot of the machine and the container, or the machine's name."""
    boot, numbers = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    try:
        return f"{boot.read_text().strip()}/{numbers.readlink()}"
    except OSError:
        return socket.gethostname()


def user() -> str:
    """Return the name of the user of this process, or the id of one without a name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


# Pattern of `owner`, as part of a longer name.
OWNER = r"[0-9a-f]{8}_\d+_\d+"


def owner(process: Sequence[float] | None = None) -> str:
    """Return the owner part of names: a process by its `identity` (default: this one)."""
    pid, start = process or identity()
    return f"{_here_in_short()}_{int(pid)}_{_thousandths(start)}"


def is_gone(name: str) -> bool | None:
    """Whether the process named by `owner` has ended; None if it is not visible from this process."""
    place, pid, start = name.split("_")
    if place != _here_in_short():
        return None
    try:
        return _thousandths(identity(int(pid))[1]) != int(start)
    except ProcessLookupError:
        return True
    except psutil.AccessDenied:
        return False


def _here_in_short() -> str:
    return hashlib.sha256(here().encode()).hexdigest()[:8]


def _thousandths(start: float) -> int:
    return round(start * 1000)


@dataclass(frozen=True)
class RunProcess:
    """The process of a run, from the run's tag.

    Attributes:
        run_id: the run. Retries of a run inherit its tags.
        host: the scope of its process id, see `here`.
        pid: its process id.
        start: distinguishes it from other processes with that id.
    """

    run_id: str
    host: str
    pid: int
    start: float

    @classmethod
    def this(cls, run_id: str) -> RunProcess:
        """Return this process as the process of a run."""
        return cls(run_id, here(), *identity())

    @classmethod
    def of(cls, run_id: str, tags: Mapping[str, str]) -> RunProcess | None:
        """Return the process in a run's tags; None if they name no process of this run."""
        process = cls(*json.loads(tags[PROCESS_TAG])) if PROCESS_TAG in tags else None
        return process if process and process.run_id == run_id else None

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags for the run."""
        return {PROCESS_TAG: json.dumps(astuple(self))}

    @property
    def is_here(self) -> bool:
        """Whether it belongs to this machine and container."""
        return self.host == here()

    def is_there(self) -> bool:
        """Whether it is running."""
        return is_there((self.pid, self.start))

    def kill(self) -> None:
        """Kill it, if it is running."""
        if self.is_there():
            os.kill(self.pid, signal.SIGKILL)

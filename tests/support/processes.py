"""Processes that tests start, and that are gone when the test is over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

from tests.support.lakes import SHORT_JVM, SMALL

ROOT = Path(__file__).parents[2]
# One run of little data: as few tasks as can be, as little memory, nothing compiled.
SMALL_SPARK = {
    "LAKE_SPARK__MASTER": "local[2]",
    "LAKE_SPARK__DRIVER_MEMORY": "1g",
    "LAKE_SPARK__CONF": json.dumps(SMALL | SHORT_JVM),
}


@contextlib.contextmanager
def started(command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> Generator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which is killed as a whole at the end. What it says is in `log`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def python(module: str, *arguments: str | Path) -> list[str]:
    """The command that runs a module of the tests."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]

"""A peer's driver as a process: requests, replies, and the CPU seconds of its whole process tree."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from figures import cpu_seconds

from lake_assets.lake.spark_session import DEFAULTS
from peers.peer_environments import HERE, Peer, PeerError, environment, jars_of, python_of


@dataclass(frozen=True)
class Reply:
    """Seconds of a request, of time and of CPU, and what the driver says about it."""

    seconds: float
    cpu: float
    said: Any


class DriverProcess:
    """A running driver; a context manager that ends it."""

    def __init__(self, peer: Peer, workload: str, home: Path, log: Path, **settings: Any) -> None:
        python = python_of(peer)
        given = {
            **peer.settings, **settings, "home": str(home), "workload": workload,
            # Every peer's Spark has the settings for two cores that lake_assets' has.
            "jars": jars_of(peer, python), "spark": DEFAULTS,
        }  # fmt: skip
        home.mkdir(parents=True, exist_ok=True)
        self.log_file = log
        self._log: IO[bytes] = log.open("ab")
        script = HERE / "drivers" / f"{peer.driver}_driver.py"
        self._process = subprocess.Popen(
            [str(python), str(script), json.dumps(given)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, env=environment(python), cwd=home, text=True,
        )  # fmt: skip

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def ask(self, what: str, *arguments: str) -> Reply:
        """Carry out a request.

        Raises:
            PeerError: the driver reports an error, or has ended.
        """
        assert self._process.stdin
        assert self._process.stdout
        used = cpu_seconds(self._process.pid)
        try:
            self._process.stdin.write(json.dumps({"do": what, "with": arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing reply is reported below
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{what}: the driver ended; see {self.log_file}")
        cpu = cpu_seconds(self._process.pid) - used
        reply = json.loads(line)
        if "error" in reply:
            raise PeerError(f"{what}: {reply['error']}")
        return Reply(reply["seconds"], cpu, reply["said"])

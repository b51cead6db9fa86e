"""`dagster dev` as a real process on a temporary instance, spoken to over its GraphQL API."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.processes import free_port

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Dagster:
    """A running instance with a web server, a daemon and a code server."""

    port: int
    log: Path

    def ask(self, query: str, **variables: object) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            reply = json.load(answer)
        assert "errors" not in reply, reply["errors"]
        return reply["data"]

    def start_sensor(self, name: str) -> None:
        reply = self.ask(
            "mutation($s: SensorSelector!){startSensor(sensorSelector:$s){__typename ... on PythonError{message}}}",
            s=sensor(name),
        )
        assert reply["startSensor"]["__typename"] == "Sensor", reply

    def runs(self) -> list[dict[str, Any]]:
        """All runs, the oldest first."""
        reply = self.ask(
            "{runsOrError{... on Runs{results{runId status startTime endTime assetSelection{path} tags{key value}}}}}"
        )
        return list(reversed(reply["runsOrError"]["results"]))

    def is_up(self) -> bool:
        try:
            reply = self.ask(
                "{workspaceOrError{... on Workspace{locationEntries{loadStatus locationOrLoadError{__typename}}}}}"
            )
        except (urllib.error.URLError, OSError):
            return False
        entries = reply["workspaceOrError"]["locationEntries"]
        # The web server may ask a code server before that listens; it asks again.
        loaded = [e for e in entries if (e["locationOrLoadError"] or {}).get("__typename") == "RepositoryLocation"]
        return bool(entries) and len(loaded) == len(entries)


def sensor(name: str) -> dict[str, str]:
    """What GraphQL takes for a sensor of the shipped code location."""
    return {"repositoryLocationName": "lake_assets", "repositoryName": "__repository__", "sensorName": name}


def wait_for(what: str, done: Callable[[], Any], seconds: float, log: Path) -> Any:
    """Whatever `done` gives as soon as that is true; an AssertionError with the log's end after `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := done():
            return found
        time.sleep(0.5)
    raise AssertionError(f"{what} did not happen in {seconds} s:\n" + "\n".join(log.read_text().splitlines()[-60:]))


@contextlib.contextmanager
def dagster_dev(folder: Path, **settings: str) -> Generator[Dagster]:
    """`dagster dev` with an instance in `folder`; everything that it started is ended afterwards.

    Args:
        folder: for the instance, its log and nothing else.
        settings: environment variables.
    """
    home = folder / "dagster_home"
    home.mkdir(0o700, parents=True)
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", home)
    log = folder / "dagster.log"
    port = free_port()
    environment = {**os.environ, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "yes", **settings}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                # What a script started in the background ignores the signal that ends Dagster, and so do its children.
                "env", "--default-signal=INT", Path(sys.executable).parent / "dagster", "dev",
                "-h", "127.0.0.1", "-p", str(port), "-w", REPOSITORY / "workspace.yaml",
            ],
            cwd=REPOSITORY, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        dagster = Dagster(port, log)
        wait_for("Dagster's start", dagster.is_up, 180, log)
        yield dagster
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # A run is a process of the code server's: what is there now may outlive its parent.
    started: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    for left in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.kill()
    if process.poll() is None:
        process.kill()
    process.wait(30)
    psutil.wait_procs(started, timeout=30)


def processes_of(home: Path) -> Iterator[psutil.Process]:
    """Every process that belongs to an instance."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get("DAGSTER_HOME") == str(home) and process.pid != os.getpid():
                yield process


def sparks(home: Path) -> list[psutil.Process]:
    """The JVMs of an instance's runs."""
    return [p for p in processes_of(home) if says(p, "SparkSubmit")]


def says(process: psutil.Process, what: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return any(what in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    return False

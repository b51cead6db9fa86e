"""Dagster's daemon, web server and code server, each a process of its own that can be killed and started again.

What a supervisor (systemd, Docker) starts again is started again by the test; runs and their JVMs are found by the
instance's folder in their environment, so that nothing but what belongs to the test is ever killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import yaml

from tests.support.dagster_process import REPOSITORY, Dagster, processes_of, says, sparks, wait_for
from tests.support.processes import free_port

BIN = Path(sys.executable).parent
# Dagster looks every so many seconds, and waits for so many before it gives up a run that does not start.
POLL_SECONDS, START_SECONDS, FREE_SLOTS_SECONDS = 5, 120, 5
# A JVM that nobody uses is there for so long.
IDLE_SECONDS = 15.0


@dataclass
class Service:
    """One process of the instance's."""

    name: str
    command: Sequence[str]
    home: Path
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What it says."""
        return self.home.parent / f"{self.name}.log"

    def start(self) -> None:
        """Start it, also again."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, cwd=REPOSITORY, env=self.env, stdout=output, stderr=output, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL, and nothing else: what it has started goes on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@dataclass
class Services:
    """An instance of three processes."""

    home: Path
    dagster: Dagster
    daemon: Service
    code: Service
    web: Service
    all: list[Service] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.all = [self.code, self.web, self.daemon]

    def running(self) -> Iterator[psutil.Process]:
        """Every process that belongs to the instance."""
        return processes_of(self.home)

    def sparks(self) -> list[psutil.Process]:
        """The JVMs of runs."""
        return sparks(self.home)

    def workers(self) -> list[psutil.Process]:
        """The processes of runs, also those that nobody waits for any more."""
        return [p for p in self.running() if says(p, "multiprocessing.forkserver") and _is_fork(p)]

    def kill_code_and_runs(self) -> None:
        """What the end of a container or of a machine does."""
        runs = [*self.workers(), *self.sparks()]
        self.code.kill()
        for process in [*runs, *self.workers(), *self.sparks()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _is_fork(process: psutil.Process) -> bool:
    """Whether it is a fork of a process that says the same."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return (parent := process.parent()) is not None and parent.cmdline() == process.cmdline()
    return False


@contextlib.contextmanager
def services(folder: Path, definitions: Path, **settings: str) -> Generator[Services]:
    """The three processes on an instance in `folder`; everything that they started is ended afterwards.

    Args:
        folder: for the instance and the processes' logs.
        definitions: a Python file with the code location's definitions.
        settings: environment variables.
    """
    home = folder / "dagster_home"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(yaml.safe_dump(_quick(REPOSITORY / "dagster_home" / "dagster.yaml")))
    env = {**os.environ, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "yes", **settings}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    web = str(free_port())
    # Its path has to be short.
    code = Path(tempfile.mkdtemp()) / "code"
    workspace = folder / "workspace.yaml"
    location = {"host": "localhost", "socket": str(code), "location_name": "lake_assets"}
    workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": location}]}))
    found = Services(
        home,
        Dagster(int(web), folder / "daemon.log"),
        daemon=Service("daemon", [f"{BIN}/dagster-daemon", "run", "-w", str(workspace)], home, env),
        code=Service(
            "code",
            [f"{BIN}/dagster", "api", "grpc", "--socket", str(code), "-f", str(definitions),
             "-d", str(folder), "--location-name", "lake_assets"],
            home, env,
        ),
        web=Service("web", [f"{BIN}/dagster-webserver", "-h", "127.0.0.1", "-p", web, "-w", str(workspace)], home, env),
    )  # fmt: skip
    # Two processes that make the same new SQLite files leave them broken (alembic_version with two heads).
    dg.DagsterInstance.from_config(str(home)).dispose()
    try:
        for service in found.all:
            service.start()
        wait_for("Dagster's start", found.dagster.is_up, 180, found.web.log)
        yield found
    finally:
        _end(found)


def _quick(file: Path) -> dict[str, Any]:
    """The shipped settings, with shorter times: what they say is the same, only sooner."""
    settings = yaml.safe_load(file.read_text())
    settings["run_monitoring"] |= {
        "poll_interval_seconds": POLL_SECONDS,
        "start_timeout_seconds": START_SECONDS,
        "free_slots_after_run_end_seconds": FREE_SLOTS_SECONDS,
    }
    settings["run_launcher"]["config"]["spark_idle_seconds"] = IDLE_SECONDS
    return settings


def _end(found: Services) -> None:
    for service in found.all:
        if service.process is not None:
            service.process.send_signal(signal.SIGKILL)
            service.process.wait(30)
    left = list(found.running())
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=30)

"""The service as a process of its own, which a sensor starts and keeps running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from lake_assets.lake import LakeBase
from lake_assets.pipeline import Pipeline
from lake_assets.runtime.private_files import make_private, open_log, write_private
from lake_assets.runtime.processes import here, identity
from lake_assets.service import service_state
from lake_assets.service.live_service import declared, live_specs, live_streams
from lake_assets.service.service_state import StreamState

_END_SECONDS = 60.0
# A service that has just been started has not written its state yet; imports take seconds.
_START_SECONDS = 60.0


def states(lake: LakeBase, pipeline: Pipeline) -> list[StreamState | None]:
    """Return the state of each live source of a pipeline; None: no service has ever read it."""
    return [service_state.read(lake, str(s.table)) for s in live_specs(lake, pipeline)]


def ensure_running(lake: LakeBase, pipeline: Pipeline) -> str:
    """Start the service of a pipeline if it is not running; start it again if it runs with another declaration.

    It ends with this process. A service that somebody has started by hand is left alone.

    Returns:
        What was done; empty: it is running.
    """
    there = [s for s in states(lake, pipeline) if s is not None and s.is_alive]
    if by_hand := next((s for s in there if s.owner is None or s.host != here()), None):
        other = by_hand.declared != declared(pipeline)
        return "the service that was started by hand has another declaration: start it again" if other else ""
    why = "the service was not running"
    if there:
        hanging = next((s for s in there if s.is_hanging), None)
        if hanging is None and all(s.declared == declared(pipeline) for s in there):
            return ""
        why = "the service did not answer any more" if hanging else "the declaration has changed"
        _end(there)
    folder = lake.config.home / "live"
    make_private(folder)
    started = folder / f"{pipeline.name}.started"
    with contextlib.suppress(FileNotFoundError):
        if not there and time.time() - started.stat().st_mtime < _START_SECONDS:
            if _runs(started):
                return ""
            if not any(s and s.at > started.stat().st_mtime for s in states(lake, pipeline)):
                return f"the service ended at once, and is started again later: {_last_line(folder, pipeline)}"
    process = _start(lake, pipeline, folder)
    write_private(started, json.dumps(identity(process.pid)))
    return f"{why}: process {process.pid} was started"


def end_all(lake: LakeBase, pipeline: Pipeline) -> None:
    """End the services of a pipeline on this machine."""
    _end([s for s in states(lake, pipeline) if s is not None and s.is_alive and s.host == here()])


def _runs(started: Path) -> bool:
    pid, start = json.loads(started.read_text("utf-8"))
    with contextlib.suppress(ProcessLookupError):
        return identity(pid)[1] == start
    return False


def _last_line(folder: Path, pipeline: Pipeline) -> str:
    lines = (folder / f"{pipeline.name}.log").read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it has said nothing"


def _start(lake: LakeBase, pipeline: Pipeline, folder: Path) -> subprocess.Popen[bytes]:
    file, log = folder / f"{pipeline.name}.yaml", folder / f"{pipeline.name}.log"
    attributes = {"name": pipeline.name, "streams": live_streams(pipeline)}
    write_private(file, yaml.safe_dump({"type": "lake_assets.LakePipeline", "attributes": attributes}))
    owner = ",".join(map(str, identity()))
    with open_log(log) as output:
        return subprocess.Popen(
            [sys.executable, "-m", "lake_assets.cli", "serve", str(file), "--owner", owner],
            env={**os.environ, "LAKE_HOME": str(lake.config.home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _end(services: Sequence[StreamState]) -> None:
    """End services of this machine; one that does not end in time is killed, which loses nothing."""
    processes = {s.process for s in services}
    for number, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, 10.0)):
        deadline = time.monotonic() + seconds
        for pid, start in processes:
            with contextlib.suppress(ProcessLookupError):
                if identity(pid)[1] == start:
                    os.kill(pid, number)
        while time.monotonic() < deadline:
            if not any(_is_same(*p) for p in processes):
                return
            time.sleep(0.1)


def _is_same(pid: int, start: float) -> bool:
    try:
        return identity(pid)[1] == start
    except ProcessLookupError:
        return False

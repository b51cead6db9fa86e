"""`lake-assets serve` and `lake-assets snapshot`: read live sources until interrupted; read rows again."""

from __future__ import annotations

import fnmatch
import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Annotated

import typer

from lake_assets.commands.printing import console, stderr
from lake_assets.commands.table_lookup import PipelineArgument, find_pipeline, named_file
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake
from lake_assets.pipeline import Pipeline
from lake_assets.runtime.processes import is_there
from lake_assets.service import service_state
from lake_assets.service.live_service import live_specs
from lake_assets.service.live_service import serve as serve_sources

_LOOK_SECONDS = 1.0


def serve(
    pipeline: PipelineArgument = None,
    owner: Annotated[str | None, typer.Option(help="a process with which the service ends", hidden=True)] = None,
) -> None:
    """Read the live sources of a pipeline, and land their records, until interrupted.

    Sources that fail are tried again. `lake-assets status` shows how each of them is; Dagster's sensor, or `lake-assets
    run`, absorbs what has landed.
    """
    loaded, lake = Pipeline.load(named_file(pipeline)), Lake.load()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    process = _process(owner) if owner else None
    if process is not None:
        threading.Thread(target=_end_with, args=(process, stop), name="owner", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    serve_sources(
        lake,
        loaded,
        stop,
        lambda spec: console.print(f"{spec.table}: reads {spec.live.where if spec.live else ''}", markup=False),
        process,
    )
    stderr.print("ended: what was committed stays, and the next service goes on from there")
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of Debezium's may be left, for which Python would wait.
    os._exit(0)


def snapshot(
    pipeline: Annotated[str, typer.Argument(help="YAML file, folder with a defs.yaml, or name")],
    tables: Annotated[list[str], typer.Argument(help="source tables, such as public.users", metavar="TABLE")],
) -> None:
    """Let the running service read all rows of source tables again, beside their changes.

    For tables that have drifted, or that were declared with `snapshot: none`.
    """
    loaded, lake = find_pipeline(pipeline), Lake.load_existing()
    specs = live_specs(lake, loaded)
    for spec in specs:
        wanted = [t for t in tables if any(fnmatch.fnmatchcase(t, p) for p in spec.tables)]
        if not wanted:
            continue
        service_state.request_snapshot(lake, str(spec.table), wanted)
        state = service_state.read(lake, str(spec.table))
        when = "now" if state and state.is_alive else "when it is started"
        console.print(f"{spec.table}: the service reads all rows of {', '.join(wanted)} {when}", markup=False)
        tables = [t for t in tables if t not in wanted]
    if tables:
        named = ", ".join(sorted({p for s in specs for p in s.tables})) or "none"
        raise PipelineError(f"no live source of {loaded.name} reads {', '.join(tables)}; declared tables: {named}")


def _process(text: str) -> tuple[int, float]:
    pid, start = text.split(",")
    return int(pid), float(start)


def _end_with(process: tuple[int, float], stop: threading.Event) -> None:
    while not stop.wait(_LOOK_SECONDS):
        if not is_there(process):
            stop.set()

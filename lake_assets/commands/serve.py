"""`lake-assets serve`: read live sources until interrupted."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import Annotated

import typer

from lake_assets.commands.printing import console, stderr
from lake_assets.commands.table_lookup import find_pipeline
from lake_assets.facade import Lake
from lake_assets.service.live_service import serve as serve_sources


def serve(
    pipeline: Annotated[str, typer.Argument(help="YAML file, folder with a defs.yaml, or a shipped pipeline's name")],
) -> None:
    """Read the live sources of a pipeline, and land their records, until interrupted.

    Sources that fail are tried again. `lake-assets status` shows how each of them is; Dagster's sensor, or `lake-assets
    run`, absorbs what has landed.
    """
    loaded, lake = find_pipeline(pipeline), Lake.load()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    serve_sources(
        lake,
        loaded,
        stop,
        lambda spec: console.print(f"{spec.table}: reads {spec.live.where if spec.live else ''}", markup=False),
    )
    stderr.print("ended: what was committed stays, and the next service goes on from there")
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of Debezium's may be left, for which Python would wait.
    os._exit(0)

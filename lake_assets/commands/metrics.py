"""`lake-assets metrics`: what Prometheus reads of a lake."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from lake_assets.commands.printing import check_folder_of, local, stderr
from lake_assets.commands.table_lookup import known_pipelines
from lake_assets.errors import ConfigError, MissingPackageError
from lake_assets.facade import Lake

_PORT = 9732


def metrics(
    port: Annotated[int | None, typer.Option(help=f"answer /metrics at this port; default: {_PORT}")] = None,
    host: Annotated[str, typer.Option(help="address to listen at; 0.0.0.0: all of this machine's")] = "127.0.0.1",
    file: Annotated[
        Path | None, typer.Option(help="write the metrics to a file once, for node_exporter's textfile collector")
    ] = None,
) -> None:
    """Answer Prometheus until interrupted, or write a file once. Reads metadata and the journal, never rows.

    Declarations are those of the project, of pipelines that have run, and of the shipped ones, as they are when the
    command starts.
    """
    if file is not None and port is not None:
        raise ConfigError("the metrics are answered at a --port, or written to a --file: not both")
    try:
        from lake_assets.signals.metrics.exporter import registry_of, serve_metrics, write_metrics
    except ImportError as e:
        raise MissingPackageError(
            f"metrics need a package that is not installed ({e.name}): `pip install 'lake-assets[prometheus]'`"
        ) from e
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    lake = Lake.load_existing()
    pipelines, unread = known_pipelines(lake)
    for text in unread:
        stderr.print(f"without declarations: {text}", markup=False, soft_wrap=True)
    registry = registry_of(lake, pipelines)
    if file is not None:
        target = local(file, "--file")
        check_folder_of(target, "--file")
        write_metrics(registry, target)
        return
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    stderr.print(f"metrics at http://{host}:{port or _PORT}/metrics", markup=False, soft_wrap=True)
    serve_metrics(registry, host, port or _PORT, stop)

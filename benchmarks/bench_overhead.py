"""What the journal and all signals add to a micro-batch: records of steps, lineage, alerts, freshness.

    make bench-overhead

Micro-batches of a stream with two final tables and two models, alternately with everything on and with nothing. Events
and alerts go to a receiver on loopback; records that cannot be read keep an alert standing. Reported are the medians of
both ways, and, since the difference is smaller than what else differs between two batches, the CPU time of the
functions that record and tell, as a share of the batch's.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from unittest import mock

from bench_small_steps import CHANGES, FIRST, MODELS, Stream
from figures import Required, cpu_seconds, show
from openlineage.client.transport.http import HttpTransport

from lake_assets import Lake, LakeConfig
from lake_assets.journal import resource_use, step_journal
from lake_assets.lake import SparkConfig
from lake_assets.models.steps import sql_model_step
from lake_assets.pipeline import observed_steps
from lake_assets.signals.alerts.alert_evaluation import AlertObserver
from lake_assets.signals.lineage.lineage_observer import LineageObserver

_WEBHOOK = "BENCH_OVERHEAD_WEBHOOK"
_METER = resource_use._meter  # pyright: ignore[reportPrivateUsage]
# The functions of each part; none calls another one of the list.
PARTS: dict[str, list[tuple[Any, str]]] = {
    "journal": [
        *((step_journal, name) for name in ("of_outcome", "note", "try_flush")),
        *((_METER, name) for name in ("begin", "end")),
    ],
    "lineage": [(LineageObserver, "began"), (LineageObserver, "ended")],
    "sending of lineage": [(HttpTransport, "emit")],
    "alerts": [(AlertObserver, "run_ended")],
    "freshness": [(sql_model_step, "refresh_state")],
}


@contextlib.contextmanager
def without() -> Generator[None]:
    """Run steps without records and signals."""

    def plain(lake: Any, pipeline: str, table: Any, step: Callable[[], Any]) -> Any:
        return step()

    with (
        mock.patch.object(step_journal, "recorded", plain),
        mock.patch.object(step_journal, "try_flush"),
        mock.patch.object(observed_steps, "_of", return_value=[]),
        mock.patch.object(sql_model_step, "refresh_state", return_value={}),
    ):
        yield


@contextlib.contextmanager
def timed(taken: dict[str, float]) -> Generator[None]:
    """Add the CPU time of each part's functions, in their threads, to a dictionary."""

    def wrapped(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **named)
            finally:
                taken[part] += time.thread_time() - began

        return call

    with contextlib.ExitStack() as scope:
        for part, functions in PARTS.items():
            for owner, name in functions:
                scope.enter_context(mock.patch.object(owner, name, wrapped(part, getattr(owner, name))))
        yield


@contextlib.contextmanager
def receiver() -> Generator[str]:
    """Answer every POST with 200; yield the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # as receivers have it: connections are kept

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def measured(lake: Lake, rounds: int) -> dict[str, float | str]:
    """Return figures of micro-batches with everything on, and with nothing."""
    models = [{"name": f"agg.{n}", "sql": sql} for n, sql in MODELS.items()]
    stream = Stream(lake, "kinds", 2, streams=[{"name": "kinds", "tables": ["public.*"]}], models=models)
    stream.land(FIRST)
    (stream.folder / "garbage.jsonl").write_text("no JSON\n" * 100)
    stream.pipeline.run(lake)
    ways: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    shares: dict[str, list[float]] = defaultdict(list)
    for n in range(2 * rounds):
        stream.land(CHANGES)
        # On, off, off, on: neither way always has the younger JVM.
        is_on, taken = n % 4 in (0, 3), dict.fromkeys(PARTS, 0.0)
        with timed(taken) if is_on else without():
            began, cpu = time.perf_counter(), cpu_seconds()
            outcomes = stream.pipeline.run(lake)
            used = time.perf_counter() - began, cpu_seconds() - cpu
        assert not [o.error for o in outcomes if o.error]
        ways[is_on].append(used)
        for part, seconds in taken.items() if is_on else ():
            shares[part].append(seconds / used[1] * 100)
        shares["sum"] += [sum(taken.values()) / used[1] * 100] if is_on else []
    (seconds, cpu), (plain, plain_cpu) = (
        [statistics.median(values) for values in zip(*ways[is_on], strict=True)] for is_on in (True, False)
    )
    return {
        "seconds of a micro-batch with all, and without": f"{seconds:.2f}, {plain:.2f}",
        "CPU seconds with all, and without": f"{cpu:.2f}, {plain_cpu:.2f}",
        **{f"{part}: share of the CPU time, in %: median": statistics.median(of) for part, of in shares.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="micro-batches of each way")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, receiver() as url:
        os.environ[_WEBHOOK] = f"{url}/hook"
        signals: dict[str, Any] = {
            "openlineage": {"url": url},
            "alerts": {"webhook": {"env": _WEBHOOK}, "lag": "15m"},
            "refresh_state": True,
        }
        config = {"home": Path(home), "spark": SparkConfig(driver_memory="3g"), "signals": signals}
        lake = Lake(LakeConfig.model_validate(config))
        figures = measured(lake, args.rounds)
        lake.spark().stop()
    required: dict[str, Required] = {"sum: share of the CPU time, in %: median": ("at most", 2)}
    return show(figures, required)


if __name__ == "__main__":
    sys.exit(main())

"""What the journal adds to a micro-batch: records of steps, their cost, and their table.

    make bench-overhead

Micro-batches of a stream with a final table and two models, alternately with the journal and without. Reported are the
medians of both, and, since the difference is smaller than what else differs between two batches, the time that the
journal's own functions take in this process, as a share of a batch's CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from unittest import mock

from bench_small_steps import CHANGES, FIRST, MODELS, Stream
from figures import Required, cpu_seconds, show

from lake_assets import Lake, LakeConfig
from lake_assets.journal import resource_use, step_journal
from lake_assets.lake import SparkConfig

_FUNCTIONS = ("of_outcome", "note", "try_flush")


@contextlib.contextmanager
def without() -> Generator[None]:
    """Run steps without records."""

    def plain(lake: Any, pipeline: str, table: Any, step: Callable[[], Any]) -> Any:
        return step()

    with mock.patch.object(step_journal, "recorded", plain), mock.patch.object(step_journal, "try_flush"):
        yield


@contextlib.contextmanager
def timed(taken: list[float]) -> Generator[None]:
    """Add the CPU time of this process while the journal's functions run to a list."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args, **named)
            finally:
                taken.append(time.process_time() - began)

        return call

    with contextlib.ExitStack() as scope:
        for name in _FUNCTIONS:
            scope.enter_context(mock.patch.object(step_journal, name, wrapped(getattr(step_journal, name))))
        meter = resource_use._meter  # pyright: ignore[reportPrivateUsage]
        for name in ("begin", "end"):
            scope.enter_context(mock.patch.object(meter, name, wrapped(getattr(meter, name))))
        yield


def measured(lake: Lake, rounds: int) -> dict[str, float | str]:
    """Return figures of micro-batches with the journal and without."""
    models = [{"name": f"agg.{n}", "sql": sql} for n, sql in MODELS.items()]
    stream = Stream(lake, "kinds", 2, streams=[{"name": "kinds", "tables": ["public.*"]}], models=models)
    stream.land(FIRST)
    stream.pipeline.run(lake)
    ways: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    shares: list[float] = []
    for n in range(2 * rounds):
        stream.land(CHANGES)
        is_on, taken = n % 2 == 0, list[float]()
        with timed(taken) if is_on else without():
            began, cpu = time.perf_counter(), cpu_seconds()
            outcomes = stream.pipeline.run(lake)
            used = time.perf_counter() - began, cpu_seconds() - cpu
        assert not [o.error for o in outcomes if o.error]
        ways[is_on].append(used)
        if is_on:
            shares.append(sum(taken) / used[1] * 100)
    (seconds, cpu), (plain, plain_cpu) = (
        [statistics.median(values) for values in zip(*ways[is_on], strict=True)] for is_on in (True, False)
    )
    return {
        "seconds of a micro-batch, and without the journal": f"{seconds:.2f}, {plain:.2f}",
        "CPU seconds, and without the journal": f"{cpu:.2f}, {plain_cpu:.2f}",
        "the journal's share of the CPU time, in %: median": statistics.median(shares),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="micro-batches of each way")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        lake = Lake(LakeConfig(home=Path(home), spark=SparkConfig(driver_memory="3g")))
        figures = measured(lake, args.rounds)
        lake.spark().stop()
    required: dict[str, Required] = {"the journal's share of the CPU time, in %: median": ("at most", 2)}
    return show(figures, required)


if __name__ == "__main__":
    sys.exit(main())

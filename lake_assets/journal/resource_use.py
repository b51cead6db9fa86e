"""CPU time of a step: of this process, its JVM, and the executors of a cluster.

Steps run as threads of one process with one JVM, so what was used cannot be read per step. Between two moments at which
a step begins or ends, each step that was at work gets an equal share. The shares add up to what was used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import psutil

from lake_assets.lake import LakeBase

log = logging.getLogger(__name__)


@dataclass
class ResourceUse:
    """What a step has used.

    Attributes:
        started_at: seconds since 1970.
        seconds: time taken.
        cpu_seconds: seconds of one core.
        started_spark: whether Spark was started meanwhile, by this step or by one beside it.
    """

    started_at: float
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    started_spark: bool = False


class _Meter:
    """Divides what this process uses among its steps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[ResourceUse] = []
        self._used: dict[object, float] = {}

    def begin(self, use: ResourceUse, lake: LakeBase) -> None:
        """Count a step from now on."""
        with self._lock:
            self._divide(lake)
            self._running.append(use)

    def end(self, use: ResourceUse, lake: LakeBase) -> None:
        """Give a step its last share."""
        with self._lock:
            self._divide(lake)
            self._running = [r for r in self._running if r is not use]

    def _divide(self, lake: LakeBase) -> None:
        used = {"python": _cpu_seconds(None), **_of_spark(lake)}
        for name, value in used.items():
            # A JVM that is first seen, and is older than the steps (a warm one), has used time for others.
            if name not in self._used and isinstance(name, int) and not self._is_for_steps(name):
                self._used[name] = value
        gain = sum(max(0.0, value - self._used.get(name, 0.0)) for name, value in used.items())
        self._used |= used
        for step in self._running:
            step.cpu_seconds += gain / len(self._running)

    def _is_for_steps(self, pid: int) -> bool:
        """Whether a process was started while a step was at work."""
        first = min((step.started_at for step in self._running), default=float("inf"))
        return psutil.Process(pid).create_time() >= first


_meter = _Meter()


@contextlib.contextmanager
def measured(lake: LakeBase, use: ResourceUse) -> Generator[None]:
    """Measure what the block uses."""
    began, had_spark = time.monotonic(), lake.open_session is not None
    _meter.begin(use, lake)
    try:
        yield
    finally:
        use.seconds = time.monotonic() - began
        use.started_spark = not had_spark and lake.open_session is not None
        _meter.end(use, lake)


def _cpu_seconds(pid: int | None) -> float:
    """Return the CPU time of a process (None: this one), and of a JVM's Python workers that have ended."""
    times = _process(pid or os.getpid()).cpu_times()
    # An ended JVM is a child of this process, and was counted itself.
    workers = times.children_user + times.children_system if pid else 0.0
    return times.user + times.system + workers


@lru_cache(10)
def _process(pid: int) -> psutil.Process:
    """Return a process; finding out whether it is the same one takes longer than reading its times."""
    return psutil.Process(pid)


def _of_spark(lake: LakeBase) -> dict[object, float]:
    """Return CPU seconds of the JVM, and of the executors of a cluster; none of a server behind Spark Connect."""
    session: Any = lake.open_session
    try:
        if session is None or (gateway := getattr(session, "_jvm", None)) is None:
            return {}
        if (pid := _pids.get(id(gateway))) is None:
            pid = _pids[id(gateway)] = int(gateway.java.lang.ProcessHandle.current().pid())
        found: dict[object, float] = {pid: _cpu_seconds(pid)}
        if not session.sparkContext.master.startswith("local"):
            found["executors"] = _of_executors(session)
        return found
    except Exception as e:  # py4j's, if the JVM has ended; psutil's, if it belongs to somebody else
        log.info("what Spark has used is not known: %s", e)
        return {}


_pids: dict[int, int] = {}


def _of_executors(session: Any) -> float:
    """Return the seconds of all tasks on executors of a cluster."""
    executors = session.sparkContext._jsc.sc().statusStore().executorList(False)
    each = (executors.apply(n) for n in range(executors.size()))
    return sum(e.totalDuration() / 1000 for e in each if e.id() != "driver")

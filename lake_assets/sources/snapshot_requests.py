"""Requests to read all rows of tables again, which last until a snapshot has begun that a kill does not lose.

Debezium is asked for one snapshot at a time: one that it is asked for beside another sometimes never begins, and
nothing says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from lake_assets.lake import thresholds


@dataclass
class _Request:
    waiting: set[str]
    begun: Callable[[], None] | None
    asked: set[str] = field(default_factory=set[str])


class SnapshotRequests:
    """The requests of a service. They are made in one thread, and taken and answered in others."""

    def __init__(self) -> None:
        self._open: list[_Request] = []
        self._lock = threading.Lock()
        self._heard = time.monotonic()

    def add(self, tables: Sequence[str], begun: Callable[[], None] | None = None) -> None:
        """Add a request; `begun` is called once its snapshot goes on after a kill; None: the next engine knows it."""
        with self._lock:
            self._open.append(_Request(set(tables), begun))

    def send_again(self) -> None:
        """Take note that the engine is another one, which has not heard of any request."""
        with self._lock:
            self._open = [r for r in self._open if r.begun]
            for request in self._open:
                request.asked.clear()

    def waiting(self) -> list[str]:
        """Return the tables to ask for next; none while a snapshot that was asked for has not begun."""
        with self._lock:
            if any(r.asked for r in self._open):
                return []
            return sorted(set[str]().union(*(r.waiting for r in self._open)))

    def asked(self, tables: Collection[str]) -> None:
        """Take note that a snapshot of tables has been asked for."""
        with self._lock:
            self._heard = time.monotonic()
            for request in self._open:
                request.asked |= request.waiting.intersection(tables)

    def hear(self) -> None:
        """Take note that the engine works on a snapshot."""
        self._heard = time.monotonic()

    def unheard(self) -> list[str]:
        """Return the tables of a snapshot that was asked for, and of which nothing has been heard for too long."""
        with self._lock:
            if time.monotonic() - self._heard < thresholds.LIVE_SNAPSHOT_SECONDS:
                return []
            return sorted(set[str]().union(*(r.asked for r in self._open)))

    def begin(self, tables: Collection[str]) -> None:
        """Take note that snapshots of tables have begun, as the committed offset says.

        A request that came after they were asked for waits for another one.
        """
        with self._lock:
            for request in self._open:
                request.waiting -= request.asked.intersection(tables)
                request.asked.difference_update(tables)
            done = [r for r in self._open if not r.waiting]
            self._open = [r for r in self._open if r.waiting]
        for request in done:
            if request.begun:
                request.begun()


def named_tables(text: str, tables: Sequence[str]) -> set[str]:
    """Return which source tables a notification of Debezium names: `shop.public.users, "public"."orders"`."""
    named = [n.strip() for n in text.replace('"', "").split(",")]
    # The database comes first, in the notation of some connectors.
    return {t for t in tables for n in named if n == t or n.endswith(f".{t}")}

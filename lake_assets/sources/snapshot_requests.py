"""Requests to read all rows of tables again, which last until a snapshot has begun that a kill does not lose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass


@dataclass
class _Request:
    tables: Sequence[str]
    waiting: set[str]
    begun: Callable[[], None] | None
    is_sent: bool = False


class SnapshotRequests:
    """The requests of a service. They are made in one thread, and taken and answered in others."""

    def __init__(self) -> None:
        self._open: list[_Request] = []
        self._lock = threading.Lock()

    def add(self, tables: Sequence[str], begun: Callable[[], None] | None = None) -> None:
        """Add a request; `begun` is called once its snapshot goes on after a kill; None: the next engine knows it."""
        with self._lock:
            self._open.append(_Request(tables, set(tables), begun))

    def send_again(self) -> None:
        """Take note that the engine is another one, which has not heard of any request."""
        with self._lock:
            self._open = [r for r in self._open if r.begun]
            for request in self._open:
                request.is_sent = False

    def take(self) -> list[Sequence[str]]:
        """Return the tables of requests that have not been sent yet."""
        with self._lock:
            new = [r for r in self._open if not r.is_sent]
            for request in new:
                request.is_sent = True
            return [r.tables for r in new]

    def begin(self, tables: Collection[str]) -> None:
        """Take note that snapshots of tables have begun, as the committed offset says."""
        with self._lock:
            sent = [r for r in self._open if r.is_sent]
            for request in sent:
                request.waiting.difference_update(tables)
            self._open = [r for r in self._open if r.waiting]
        for request in sent:
            if not request.waiting and request.begun:
                request.begun()


def named_tables(text: str, tables: Sequence[str]) -> set[str]:
    """Return which source tables a notification of Debezium names: `shop.public.users, "public"."orders"`."""
    named = [n.strip() for n in text.replace('"', "").split(",")]
    # The database comes first, in the notation of some connectors.
    return {t for t in tables for n in named if n == t or n.endswith(f".{t}")}

"""A bounded queue of events and the thread that sends them, so that a slow receiver delays no step.

What cannot be sent is dropped: lineage is informative, and the journal has what happened.
"""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lake_assets.lake import thresholds

log = logging.getLogger(__name__)
E = TypeVar("E")


@dataclass(frozen=True)
class _Waiting(Generic[E]):
    """An event.

    Attributes:
        key: what it belongs to.
        due: from when on it may be sent, by the monotonic clock.
    """

    key: str
    event: E
    due: float


class EventQueue(Generic[E]):
    """Events in the order in which they were put."""

    def __init__(self, send: Callable[[E], None], hidden: Callable[[str], str]) -> None:
        """
        Args:
            send: sends one event; what it raises is logged once, until an event is received again.
            hidden: removes secrets from a text.
        """
        self._send, self._hidden = send, hidden
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._events: deque[_Waiting[E]] = deque()
        self._changed = threading.Condition()
        self._is_sending = self._is_failing = False
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def put(self, key: str, event: E, *, wait: float = 0.0) -> None:
        """Add an event.

        Args:
            key: what it belongs to; see `take_back`.
            wait: seconds before it is sent, unless another event of the same key comes.
        """
        if self._pid != os.getpid():  # a fork has neither the thread nor anything to send
            self._reset()
        with self._changed:
            self._hurry(key)
            if len(self._events) >= thresholds.SIGNAL_EVENTS:
                self._dropped += 1
                if self._dropped == 1:
                    log.warning("events of lineage are dropped: %d are waiting for the receiver", len(self._events))
                return
            self._events.append(_Waiting(key, event, time.monotonic() + wait))
            if self._thread is None:
                self._begin()
            self._changed.notify_all()

    def take_back(self, key: str) -> bool:
        """Remove the events of a key that have not been sent; return whether there were any."""
        with self._changed:
            left = [e for e in self._events if e.key != key]
            is_found = len(left) < len(self._events)
            self._events = deque(left)
        return is_found

    def flush(self, seconds: float) -> bool:
        """Wait until everything is sent, for some seconds at most; return whether it is."""
        if self._pid != os.getpid():
            return True
        until = time.monotonic() + seconds
        with self._changed:
            self._events = deque(_Waiting(e.key, e.event, 0.0) for e in self._events)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._events and not self._is_sending, until - time.monotonic())

    def _hurry(self, key: str) -> None:
        if any(e.key == key and e.due for e in self._events):
            self._events = deque(_Waiting(e.key, e.event, 0.0) if e.key == key else e for e in self._events)

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._thread.start()
        # Forked runs of Dagster end by these finalizers too, and not by `atexit`.
        multiprocessing.util.Finalize(None, self.flush, (thresholds.SIGNAL_EXIT_SECONDS,), exitpriority=100)

    def _work(self) -> None:
        while True:
            with self._changed:
                while (next_one := self._next()) is None:
                    soonest = min((e.due for e in self._events), default=None)
                    self._changed.wait(None if soonest is None else max(0.0, soonest - time.monotonic()))
                self._is_sending = True
            try:
                self._send(next_one.event)
                self._is_failing = False
            except Exception as e:  # of the client, of the network, of the receiver
                if not self._is_failing:
                    text = self._hidden(f"{type(e).__name__}: {e}")
                    log.warning("events of lineage are not received: %s. The steps go on without them", text)
                self._is_failing = True
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()

    def _next(self) -> _Waiting[E] | None:
        """Take the first event that is due."""
        now = time.monotonic()
        for n, event in enumerate(self._events):
            if event.due <= now:
                del self._events[n]
                return event
        return None

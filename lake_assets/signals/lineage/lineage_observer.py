"""Sends the events of steps to a receiver of OpenLineage."""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING

from lake_assets.errors import ConfigError
from lake_assets.lake import LakeBase, LakeConfig, thresholds
from lake_assets.lake.signal_settings import OpenLineageSettings
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.observed_steps import ObservedStep, StepEnd
from lake_assets.signals.lineage.event_queue import EventQueue
from lake_assets.signals.lineage.lineage_client import client_of

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

    from lake_assets.signals.lineage.step_events import StepEvents

log = logging.getLogger(__name__)
# Of each configuration, one: they share a thread and a connection.
_observers: dict[str, LineageObserver] = {}


def observer_of(config: LakeConfig, settings: OpenLineageSettings) -> LineageObserver:
    """Return the observer of a lake's settings, the same for all lakes of this process with these."""
    key = f"{config.name} {config.home} {settings.model_dump_json()}"
    return _observers.get(key) or _observers.setdefault(key, LineageObserver(config, settings))


class LineageObserver:
    """Turns steps into events, in the thread of the step; another thread sends them."""

    def __init__(self, config: LakeConfig, settings: OpenLineageSettings) -> None:
        self._config, self._settings = config, settings
        self._namespace = settings.namespace or config.name
        self._events: dict[str, StepEvents] = {}

    @cached_property
    def _queue(self) -> EventQueue[RunEvent] | None:
        try:
            client = client_of(self._settings)
        except ConfigError as e:
            log.warning("no events of lineage are sent: %s", self._config.hidden(str(e)))
            return None
        return EventQueue(client.emit, self._config.hidden)

    def began(self, step: ObservedStep) -> None:
        """Send START, unless the step ends at once with nothing to do."""
        if self._queue is None:
            return
        from lake_assets.signals.lineage.step_events import StepEvents

        events = self._events[step.id] = StepEvents(step, self._namespace)
        self._queue.put(step.id, events.began(), wait=thresholds.SIGNAL_START_SECONDS)

    def ended(self, step: ObservedStep, end: StepEnd) -> None:
        """Send how the step has ended, and its audits."""
        if self._queue is None or (events := self._events.pop(step.id, None)) is None:
            return
        is_idle = end.error is None and end.record is None
        if is_idle and self._queue.take_back(step.id):
            return
        now = time.time()
        self._queue.put(step.id, events.ended(end, now))
        for event in events.audited(end, now):
            self._queue.put(step.id, event)

    def run_ended(self, lake: LakeBase, pipeline: Pipeline) -> None:
        """Do nothing: steps are what has lineage."""
        del lake, pipeline

    def flush(self, seconds: float) -> bool:
        """Wait until everything is sent, for some seconds at most; return whether it is."""
        return self._queue is None or self._queue.flush(seconds)

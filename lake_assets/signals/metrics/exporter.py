"""The exporter: metrics of a lake as Prometheus reads them, over HTTP or as a file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lake_assets.errors import ConfigError
from lake_assets.health.lake_status import lake_status
from lake_assets.lake import LakeBase, thresholds
from lake_assets.pipeline import Pipeline
from lake_assets.service import service_state
from lake_assets.signals.metrics.metric_families import PREFIX, Reading, families
from lake_assets.signals.metrics.step_totals import step_totals
from lake_assets.tables.standing_failures import standing

log = logging.getLogger(__name__)


class LakeCollector(Collector):
    """Reads a lake when it is asked for metrics, and answers from memory if it was asked a moment ago."""

    def __init__(self, lake: LakeBase, pipelines: Sequence[Pipeline]) -> None:
        """
        Args:
            pipelines: the pipelines whose declarations are known: of others, upkeep and targets are not.
        """
        self._lake, self._pipelines = lake, pipelines
        self._lock = threading.Lock()
        self._at, self._known = float("-inf"), list[Metric]()

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering reads nothing (a hook of Prometheus' client)."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        with self._lock:
            if time.monotonic() - self._at >= thresholds.METRICS_SECONDS:
                self._known = self._read()
                self._at = time.monotonic()
            return self._known

    def _read(self) -> list[Metric]:
        began, found = time.monotonic(), list[Metric]()
        try:
            found = families(reading_of(self._lake, self._pipelines))
        except Exception as e:  # of the catalog, of the store: the scrape says that the lake is not there
            log.warning("metrics cannot be read: %s", self._lake.config.hidden(f"{type(e).__name__}: {e}"))
        up = GaugeMetricFamily(f"{PREFIX}_up", "Whether the lake could be read.", value=float(bool(found)))
        seconds = time.monotonic() - began
        took = GaugeMetricFamily(f"{PREFIX}_scrape_duration_seconds", "Time that reading the lake took.", value=seconds)
        return [up, took, *found]


def reading_of(lake: LakeBase, pipelines: Sequence[Pipeline]) -> Reading:
    """Read what the metrics are made of: metadata, notes and the journal."""
    status = lake_status(lake, pipelines)
    live = {t.table for t in status.tables if t.source}
    return Reading(
        status,
        frozenset(t for t, f in standing(lake).items() if f.error.startswith("AuditFailedError")),
        step_totals(lake),
        {raw: state for raw, state in service_state.of_all(lake).items() if raw in live},
    )


def registry_of(lake: LakeBase, pipelines: Sequence[Pipeline]) -> CollectorRegistry:
    """Return a registry with the metrics of a lake alone."""
    registry = CollectorRegistry()
    registry.register(LakeCollector(lake, pipelines))
    return registry


def serve_metrics(registry: CollectorRegistry, host: str, port: int, stop: threading.Event) -> None:
    """Answer /metrics until `stop` is set.

    Raises:
        ConfigError: the port cannot be taken.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as e:
        raise ConfigError(f"--host {host} --port {port}: {e.strerror or e}. Choose another port") from e
    try:
        stop.wait()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_metrics(registry: CollectorRegistry, file: Path) -> None:
    """Write the metrics to a file for node_exporter's textfile collector: readers see the former file, or this one."""
    write_to_textfile(str(file), registry)

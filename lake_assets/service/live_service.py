"""The service of a pipeline: all of its live sources, each in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

from lake_assets.errors import PipelineError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.lake import LakeBase, thresholds
from lake_assets.pipeline import Pipeline
from lake_assets.service.stream_service import StreamService
from lake_assets.sources.debezium_source import DebeziumSource, EngineSettings
from lake_assets.sources.kafka_source import KafkaSource
from lake_assets.sources.kafka_spec import KafkaSpec
from lake_assets.sources.live_source import LiveSource
from lake_assets.sources.live_specs import PostgresSpec
from lake_assets.sources.postgres_source import PostgresDatabase

log = logging.getLogger(__name__)


def live_specs(lake: LakeBase, pipeline: Pipeline) -> list[RawSpec]:
    """Return the raw tables of a pipeline whose sources are read live."""
    return [s for s in pipeline.specs(lake, alone=False) if isinstance(s, RawSpec) and s.live is not None]


def source_of(spec: RawSpec) -> LiveSource:
    """Return the source of a raw table."""
    match spec.live:
        case PostgresSpec() as live:
            name = f"{spec.pipeline}.{spec.table.name}"
            rows = live.rows or thresholds.LIVE_ROWS_A_COMMIT
            settings = EngineSettings(name, rows, live.wait, live.heartbeat, dict(live.properties))
            return DebeziumSource(PostgresDatabase(live), settings)
        case KafkaSpec() as live:
            return KafkaSource(live, str(spec.table))
        case None:
            raise PipelineError(f"{spec.table} has no live source")


def serve(
    lake: LakeBase, pipeline: Pipeline, stop: threading.Event, on_start: Callable[[RawSpec], None] | None = None
) -> None:
    """Read all live sources of a pipeline until `stop` is set. A source that fails is tried again and again.

    Raises:
        PipelineError: the pipeline has none.
        SourceError: another service reads one of them in this lake's home.
    """
    specs = live_specs(lake, pipeline)
    if not specs:
        raise PipelineError(
            f"pipeline {pipeline.name} has no live source: give a stream one, such as `source: {{postgres: ...}}`"
        )
    services = [StreamService(lake, spec, source_of(spec), stop) for spec in specs]
    with ThreadPoolExecutor(len(services), thread_name_prefix="live") as pool:
        for spec in specs:
            if on_start:
                on_start(spec)
        results = [pool.submit(s.run) for s in services]
        try:
            for result in as_completed(results):
                result.result()
        finally:
            stop.set()

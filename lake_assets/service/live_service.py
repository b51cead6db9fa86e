"""The service of a pipeline: all of its live sources, each in a thread."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

from lake_assets.errors import PipelineError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.lake import LakeBase, thresholds
from lake_assets.pipeline import Pipeline
from lake_assets.service.service_state import of_this_process
from lake_assets.service.stream_service import StreamService
from lake_assets.sources.debezium_database import EngineSettings
from lake_assets.sources.debezium_source import DebeziumSource
from lake_assets.sources.kafka_source import KafkaSource
from lake_assets.sources.kafka_spec import KafkaSpec
from lake_assets.sources.live_source import LiveSource
from lake_assets.sources.live_specs import DatabaseSpec, MysqlSpec, PostgresSpec
from lake_assets.sources.mysql_source import MysqlDatabase
from lake_assets.sources.postgres_source import PostgresDatabase

log = logging.getLogger(__name__)
# The name under which a raw table stores the offset of its live source.
NAME = "live"


def live_among(specs: Iterable[object]) -> list[RawSpec]:
    """Return the raw tables whose sources are read live."""
    return [s for s in specs if isinstance(s, RawSpec) and s.live is not None]


def live_specs(lake: LakeBase, pipeline: Pipeline) -> list[RawSpec]:
    """Return the raw tables of a pipeline whose sources are read live."""
    return live_among(pipeline.specs(lake, alone=False))


def source_of(spec: RawSpec, *, prepares: bool = True) -> LiveSource:
    """Return the source of a raw table.

    Args:
        prepares: whether its `check` may change the server: create a publication, or extend it.
    """
    match spec.live:
        case PostgresSpec() as live:
            return DebeziumSource(PostgresDatabase(live, prepares=prepares), _settings(spec, live))
        case MysqlSpec() as live:
            return DebeziumSource(MysqlDatabase(live), _settings(spec, live))
        case KafkaSpec() as live:
            return KafkaSource(live, str(spec.table))
        case None:
            raise PipelineError(f"{spec.table} has no live source")


def declared(pipeline: Pipeline) -> str:
    """Return a fingerprint of what a pipeline's service does."""
    return hashlib.sha256(json.dumps(live_streams(pipeline), sort_keys=True).encode()).hexdigest()[:12]


def live_streams(pipeline: Pipeline) -> list[dict[str, object]]:
    """Return the declarations of a pipeline's live sources."""
    live = [s for s in pipeline.config.streams if s.source and s.source.live]
    return [s.model_dump(mode="json", exclude_unset=True) for s in live]


def _settings(spec: RawSpec, live: DatabaseSpec) -> EngineSettings:
    name = f"{spec.pipeline}.{spec.table.name}"
    rows = live.rows or thresholds.LIVE_ROWS_A_COMMIT
    return EngineSettings(name, rows, live.wait, live.heartbeat, dict(live.properties))


def serve(
    lake: LakeBase,
    pipeline: Pipeline,
    stop: threading.Event,
    on_start: Callable[[RawSpec], None] | None = None,
    owner: tuple[int, float] | None = None,
) -> None:
    """Read all live sources of a pipeline until `stop` is set. A source that fails is tried again and again.

    Args:
        owner: the process with which the service ends.

    Raises:
        PipelineError: the pipeline has none.
        SourceError: another service reads one of them in this lake's home.
    """
    specs = live_specs(lake, pipeline)
    if not specs:
        raise PipelineError(
            f"pipeline {pipeline.name} has no live source: give a stream one, such as `source: {{postgres: ...}}`"
        )
    states = [of_this_process(str(spec.table), declared(pipeline), owner) for spec in specs]
    services = [
        StreamService(lake, spec, source_of(spec), stop, state, NAME) for spec, state in zip(specs, states, strict=True)
    ]
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

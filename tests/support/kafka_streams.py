"""Streams of Kafka's topics in a lake, and their service as a thread of the test."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from lake_assets import Lake, LakeConfig
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw_tables import offsets
from lake_assets.lake import TableId
from lake_assets.pipeline import Pipeline
from lake_assets.service.live_service import NAME, live_specs, source_of
from lake_assets.service.service_state import of_this_process
from lake_assets.service.stream_service import StreamService
from tests.support.kafka import Broker
from tests.support.pipeline_files import write_pipeline

RAW = TableId.parse("raw.events")


class Stream:
    """A stream of topics, landed into `raw.events` of a lake in a folder."""

    def __init__(self, folder: Path, broker: Broker, topics: Any, more: Mapping[str, Any] | None = None, **kafka: Any):
        self.lake = Lake(LakeConfig(home=folder / "lake"))
        self.file = folder / "pipeline.yaml"
        self.declare(folder, broker, topics, more, **kafka)

    def declare(
        self, folder: Path, broker: Broker, topics: Any, more: Mapping[str, Any] | None = None, **kafka: Any
    ) -> None:
        """Declare it, again."""
        source = {"servers": broker.servers, "topics": topics, "max_wait": 0.1, **kafka}
        stream = {"name": "events", "source": {"kafka": source}, "tables": [], **(more or {})}
        write_pipeline(self.file, {"name": "shop", "streams": [stream]})

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline.load(self.file)

    @property
    def spec(self) -> RawSpec:
        (spec,) = live_specs(self.lake, self.pipeline)
        return spec

    @contextlib.contextmanager
    def served(self) -> Generator[StreamService]:
        """Run its service within the context."""
        stop = threading.Event()
        service = service_of(self.lake, self.spec, stop)
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            yield service
        finally:
            stop.set()
            thread.join(60)
            assert not thread.is_alive()

    def check(self) -> None:
        """Look at the brokers as a start of the service does."""
        source_of(self.spec).check(self.offset)

    @property
    def offset(self) -> Any:
        """The committed offset."""
        return (offsets(self.lake, RAW).get(NAME) or {}).get("at")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the raw table, in their order."""
        if not self.lake.exists(RAW):
            return []
        return sorted(self.lake.table(RAW).scan().to_arrow().to_pylist(), key=lambda r: r["position"])

    def records(self) -> list[dict[str, Any]]:
        """The records that could be decoded."""
        return [json.loads(r["record"]) for r in self.rows() if r["record"].startswith("{")]

    def places(self) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of the records."""
        return [(r["topic"], r["partition"], r["offset"]) for r in self.records()]

    def landed(self, records: int) -> list[dict[str, Any]]:
        """Wait until so many records are in the raw table; return its rows."""
        until(lambda: len(self.rows()) >= records, f"{records} records")
        return self.rows()


def service_of(lake: Lake, spec: RawSpec, stop: threading.Event) -> StreamService:
    """Return the service of a raw table, in this process."""
    state = of_this_process(str(spec.table), "as the test declares it", None)
    return StreamService(lake, spec, source_of(spec), stop, state, NAME)


def until(condition: Callable[[], Any], what: str = "it", seconds: float = 180) -> Any:
    """Wait for a condition; return what it gives."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.05)
    return found

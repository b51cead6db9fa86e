"""A pipeline of one made-up stream in a lake of its own: deliver events, look at the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from lake_assets import Lake, Pipeline
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.final_step import FinalStep
from lake_assets.pipeline import PipelineConfig, SnapshotPins
from lake_assets.tables.outcome import Outcome
from tests.support.debezium import Event, to_lines, write_lines
from tests.support.pipeline_runs import run


def pipeline(*tables: Any, name: str = "made_up", stream: str = "events", models: Sequence[Any] = ()) -> Pipeline:
    """A pipeline over one Debezium stream; `tables` and `models` as in its YAML."""
    streams = [{"name": stream, "tables": list(tables) or ["public.*"]}]
    return Pipeline(PipelineConfig.model_validate({"name": name, "streams": streams, "models": list(models)}))


def absorb_changes(lake: Lake, spec: FinalSpec) -> Outcome:
    """Absorb what is pending for a final table."""
    return FinalStep(spec).absorb(lake, SnapshotPins())


class Feed:
    """A stream's landing folder, and the pipeline that reads it."""

    def __init__(self, lake: Lake, *tables: Any, **options: Any) -> None:
        self.lake, self.pipeline = lake, pipeline(*tables, **options)
        self.landing: Path = lake.config.home / "landing" / options.get("stream", "events")
        self.landing.mkdir(parents=True, exist_ok=True)
        self.files = 0

    def land(self, events: Iterable[Event], name: str | None = None) -> Path:
        """Put events into the landing folder, as the next file."""
        self.files += 1
        return write_lines(self.landing / (name or f"{self.files:04}.jsonl"), to_lines(events))

    def land_text(self, text: str) -> Path:
        """Put lines that may be no events into the landing folder, as the next file."""
        self.files += 1
        return write_lines(self.landing / f"{self.files:04}.jsonl", [text.encode()])

    def run(self) -> dict[str, Outcome]:
        """Run the pipeline; the first table that failed raises its error."""
        return run(self.lake, self.pipeline)

    def outcomes(self) -> dict[str, Outcome]:
        """Run the pipeline; failures are outcomes."""
        return {o.table: o for o in self.pipeline.run(self.lake)}

    def deliver(self, events: Iterable[Event]) -> dict[str, Outcome]:
        """Land events and run."""
        self.land(events)
        return self.run()

    def rows(self, table: str) -> DataFrame:
        return self.lake.spark().table(self.lake.sql_name(table))

    def heads(self) -> dict[str, int | None]:
        """The current snapshot of every table."""
        return heads(self.lake)


def heads(lake: Lake) -> dict[str, int | None]:
    """The current snapshot of every table of a lake."""
    found: dict[str, int | None] = {}
    for layer in ("raw", "staging", "final", "agg"):
        for table in lake.tables(layer):
            found[str(table)] = lake.table(table).metadata.current_snapshot_id
    return found

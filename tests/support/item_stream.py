"""A pipeline of one stream about public.items, whose files a test writes line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lake_assets import Lake, Pipeline
from lake_assets.pipeline import PipelineConfig
from lake_assets.tables.outcome import Outcome
from tests.support.pipeline_runs import run, succeeded

ITEMS = "public.items"


class Stream:
    """A stream of one format, its files, and what became of their records."""

    def __init__(self, lake: Lake, **stream: Any) -> None:
        self.lake, self.files = lake, 0
        self.folder = lake.config.home / "landing" / "events"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.declare(**stream)

    def declare(self, **stream: Any) -> None:
        declared = {"name": "p", "streams": [{"name": "events", "tables": [ITEMS], **stream}]}
        self.pipeline = Pipeline(PipelineConfig.model_validate(declared))

    def land(self, *lines: str | bytes) -> Path:
        self.files += 1
        file = self.folder / f"{self.files:03}.jsonl"
        file.write_bytes(b"".join((x.encode() if isinstance(x, str) else x) + b"\n" for x in lines))
        return file

    def run(self, *lines: str | bytes) -> dict[str, Outcome]:
        if lines:
            self.land(*lines)
        return run(self.lake, self.pipeline)

    def replay(self) -> dict[str, Outcome]:
        return succeeded(self.pipeline.replay(self.lake))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [r.asDict() for r in self.lake.spark().table(self.lake.sql_name(table)).collect()]

    def rejected(self) -> list[tuple[int, str | None, str]]:
        if not self.lake.exists("raw.events_rejected"):
            return []
        found = self.rows("raw.events_rejected")
        return sorted((r["position"], r["source_table"], r["reason"]) for r in found)

"""Tables of others and declared models over them: after each run every model equals its query."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lake_assets import Lake, Pipeline
from lake_assets.pipeline import PipelineConfig
from lake_assets.tables.outcome import Outcome
from tests.support.oracle import rows_of
from tests.support.pipeline_runs import run


class World:
    """Foreign tables, and declared models over them."""

    def __init__(self, lake: Lake, *tables: str) -> None:
        self.lake = lake
        lake.ensure_namespace(("final",))
        for table in tables:
            self.sql(f"CREATE TABLE final.{table} USING iceberg TBLPROPERTIES ('format-version' = '3')")

    def sql(self, text: str) -> None:
        self.lake.spark().sql(text)

    def pipeline(self, *models: dict[str, Any]) -> Pipeline:
        return Pipeline(PipelineConfig.model_validate({"name": "p", "models": list(models)}))

    def run(self, *models: dict[str, Any]) -> dict[str, Outcome]:
        outcomes = run(self.lake, self.pipeline(*models))
        for model in models:
            assert self.rows(model["name"]) == rows_of(self.lake.spark().sql(model["sql"])), model["name"]
        return outcomes

    def rows(self, name: str) -> Counter[Any]:
        return rows_of(self.lake.spark().table(name))

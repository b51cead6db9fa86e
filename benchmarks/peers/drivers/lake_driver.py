"""lake_assets: the final step of a pipeline's stream of change sets, by the pipeline's runner."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

from driver_protocol import DAILY_QUERY, Driver, serve
from pyspark.sql import DataFrame, SparkSession

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.lake import SparkConfig
from lake_assets.pipeline import PipelineConfig

RUNNING = "SELECT account, day, sum(seconds) OVER (PARTITION BY account ORDER BY day) AS seconds FROM db.daily"
STREAM = {
    "name": "changes",
    "format": "change-set",
    "flag": {"column": "op", "insert": "I", "update": "U", "delete": "D"},
    "time": "seq",
    "tables": [{"table": "db.accounts", "key": "id"}],
}


class LakeDriver(Driver):
    """A lake with the embedded catalog."""

    packages: ClassVar[tuple[str, ...]] = ("pyspark", "pyiceberg", "lake-assets")

    def open(self) -> SparkSession:
        """Open the lake and its session."""
        spark = SparkConfig(master="local[2]", driver_memory=self.settings["memory"])
        self.lake = Lake(LakeConfig(home=self.home / "lake", spark=spark))
        self.pipeline = self.declared()
        return self.lake.spark()

    def declared(self) -> Pipeline:
        """Return the pipeline."""
        raise NotImplementedError

    def run(self, tables: list[str]) -> str:
        """Run the steps of these tables; return how they absorbed what was pending."""
        outcomes = self.pipeline.run(self.lake, tables)
        for outcome in outcomes:
            if outcome.exception:
                raise outcome.exception
            if outcome.status != "absorbed":
                raise RuntimeError(f"{outcome.table}: {outcome.status}, expected to absorb the batch")
        return "; ".join(f"{o.table}: {o.strategy}, {o.details}" for o in outcomes)


class Upserts(LakeDriver):
    """Changes are landed and staged beforehand."""

    def declared(self) -> Pipeline:
        """Return the pipeline of one stream."""
        return Pipeline(PipelineConfig.model_validate({"name": "bench", "streams": [STREAM]}))

    def load(self, folder: str) -> None:
        """Create all tables from one change; append the other rows to the final table, as a first load would."""
        self.land(str(Path(folder).parent / "first.parquet"))
        self.pipeline.run(self.lake)
        rows = self.scattered(folder).where("id <> 0")
        rows.select(self.spark.table("final.accounts").columns).writeTo("final.accounts").append()

    def land(self, batch: str) -> None:
        """Copy a file of changes into the stream's landing folder."""
        landing = self.lake.config.home / "landing" / "changes"
        landing.mkdir(parents=True, exist_ok=True)
        shutil.copy(batch, landing / Path(batch).name)

    def prepare(self, batch: str) -> None:
        """Land and stage the batch."""
        self.land(batch)
        self.run(["raw.changes", "staging.accounts"])

    def step(self) -> str:
        """Apply the batch."""
        return self.run(["final.accounts"])

    def tables(self) -> dict[str, DataFrame]:
        """Return the tables."""
        return {"final": self.spark.table("final.accounts")}


class Totals(LakeDriver):
    """Two SQL models, the second of which reads the first."""

    def declared(self) -> Pipeline:
        """Return the pipeline of both models."""
        models = [
            {"name": "agg.daily", "sql": DAILY_QUERY.format(where="").replace("db.events", "src.events")},
            {"name": "agg.running", "sql": RUNNING.replace("db.daily", "agg.daily")},
        ]
        return Pipeline(PipelineConfig.model_validate({"name": "bench", "models": models}))

    def load(self, folder: str) -> None:
        """Create the table of events, and both models."""
        self.lake.ensure_namespace(("src",))
        writer = self.spark.read.parquet(folder).sortWithinPartitions("started_at").writeTo("src.events")
        writer.using("iceberg").tableProperty("format-version", "3").create()
        self.run(["agg.daily", "agg.running"])

    def prepare(self, batch: str) -> None:
        """Append the events."""
        self.spark.read.parquet(batch).writeTo("src.events").append()

    def step(self) -> str:
        """Run the steps of both models."""
        return self.run(["agg.daily", "agg.running"])

    def tables(self) -> dict[str, DataFrame]:
        """Return the tables."""
        return {table: self.spark.table(f"agg.{table}") for table in ("daily", "running")}


if __name__ == "__main__":
    serve({"upserts": Upserts, "totals": Totals})

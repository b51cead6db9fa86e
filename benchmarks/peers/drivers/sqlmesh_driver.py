"""SQLMesh with its Spark engine: a context in this process, so that its Spark session stays warm from run to run.

Both models are INCREMENTAL_BY_TIME_RANGE with a lookback (docs: model_kinds, integrations/engines/spark). Its state is
in a DuckDB file. The execution time is given, since the events' days are not the machine's today.
"""

from __future__ import annotations

from datetime import date, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import iceberg_driver
from driver_protocol import serve
from pyspark.sql.functions.partitioning import days

MODELS = Path(__file__).parent.parent / "sqlmesh_project" / "models"


class Totals(iceberg_driver.Totals):
    """Both models by `sqlmesh run`, over Iceberg tables partitioned by day."""

    packages: ClassVar[tuple[str, ...]] = ("pyspark", "sqlmesh")
    # Its environments are views, which a catalog of folders does not have.
    conf: ClassVar[dict[str, str]] = {
        **iceberg_driver.Totals.conf,
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": "jdbc:sqlite:{home}/catalog.db",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
    }

    def context(self) -> Any:
        """Return the project's context."""
        project = self.home / "project"
        (project / "models").mkdir(parents=True, exist_ok=True)
        for model in MODELS.glob("*.sql"):
            text = model.read_text().replace("LOOKBACK", str(self.settings["lookback"]))
            (project / "models" / model.name).write_text(text)
        config = import_module("sqlmesh.core.config")
        gateway = config.GatewayConfig(
            connection=config.SparkConnectionConfig(catalog="lake"),
            state_connection=config.DuckDBConnectionConfig(database=str(self.home / "state.db")),
        )
        defaults = config.ModelDefaultsConfig(dialect="spark")
        declared = config.Config(gateways={"spark": gateway}, default_gateway="spark", model_defaults=defaults)
        return import_module("sqlmesh").Context(paths=[str(project)], config=declared)

    def newest_day(self) -> date:
        """Return the newest day of the events."""
        return self.spark.sql("SELECT max(to_date(started_at)) FROM src.events").collect()[0][0]

    def load(self, folder: str) -> None:
        """Create the events; plan and backfill both models."""
        for namespace in ("src", "db"):
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS lake.{namespace}")
        self.create(
            self.spark.read.parquet(folder),
            "src.events",
            partition=days("started_at"),
            sort="started_at",
        )
        newest = self.newest_day()
        # Everything up to the day before.
        self.context().plan(
            auto_apply=True, no_prompts=True, skip_tests=True, execution_time=str(newest + timedelta(days=1))
        )

    def prepare(self, batch: str) -> None:
        """Append the events."""
        self.spark.read.parquet(batch).sortWithinPartitions("started_at").writeTo("src.events").append()
        self.newest = self.newest_day()

    def step(self) -> None:
        """Run what is due at the end of the newest day."""
        end = self.newest + timedelta(days=1)
        done = self.context().run(end=str(self.newest), execution_time=str(end), ignore_cron=True, skip_janitor=True)
        if not done.is_success:
            raise RuntimeError(f"sqlmesh run ended as {done}")


if __name__ == "__main__":
    serve({"totals": Totals})

"""A pipeline on an ephemeral instance of Dagster: ticks of its sensor, and the runs that they request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dagster as dg

from lake_assets import Lake, Pipeline
from lake_assets.orchestration import build_definitions
from lake_assets.orchestration.sensing.sensor import Watch, tick


@dataclass
class OtherSession:
    """A user's resource that provides a Spark session, like dagster-pyspark's."""

    lake: Lake

    @property
    def spark_session(self) -> Any:
        return self.lake.spark()


@dataclass
class Harness:
    """A pipeline on a lake and an instance: ticks the sensor and runs its requests."""

    pipeline: Pipeline
    lake: Lake
    instance: dg.DagsterInstance

    def __post_init__(self) -> None:
        self.reload()

    def reload(self) -> None:
        """Reload the code location."""
        self.defs = build_definitions(self.pipeline, self.lake, pyspark=OtherSession(self.lake))
        self.watch = Watch(self.pipeline, tuple(self.pipeline.specs(self.lake, alone=False)), self.lake.config)

    @property
    def job(self) -> dg.JobDefinition:
        repository = self.defs.get_repository_def()
        # A pipeline with several partitions definitions has no job of its own.
        own = repository.has_job(self.pipeline.name)
        return repository.get_job(self.pipeline.name) if own else repository.get_implicit_global_asset_job_def()

    def tick(self, now: float | None = None) -> dg.RunRequest | dg.SkipReason:
        repository = self.defs.get_repository_def()
        with dg.build_sensor_context(instance=self.instance, repository_def=repository) as context:
            return tick(context, self.watch, now)

    def request(self, now: float | None = None) -> dg.RunRequest:
        outcome = self.tick(now)
        assert isinstance(outcome, dg.RunRequest), outcome
        return outcome

    def skipped(self, now: float | None = None) -> str:
        outcome = self.tick(now)
        assert isinstance(outcome, dg.SkipReason), outcome
        return outcome.skip_message or ""

    def run(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        checks = request.asset_check_keys
        job = self.job.get_subset(
            asset_selection=frozenset(request.asset_selection or []),
            asset_check_selection=None if checks is None else frozenset(checks),
        )
        return job.execute_in_process(
            instance=self.instance,
            run_config=request.run_config,
            tags=request.tags,
            raise_on_error=False,
        )


def selected(request: dg.RunRequest) -> set[str]:
    return {".".join(key.path) for key in request.asset_selection or []}


def metadata_of(result: dg.ExecuteInProcessResult, *key: str) -> dict[str, object]:
    events = [e for e in result.get_asset_materialization_events() if e.asset_key == dg.AssetKey(key)]
    assert len(events) == 1
    return {name: value.value for name, value in events[0].materialization.metadata.items()}

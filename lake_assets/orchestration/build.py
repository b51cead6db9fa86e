"""A pipeline's definitions: assets and their checks, jobs, the capture sensor, the Spark resource."""

from __future__ import annotations

import logging
import math

import dagster as dg

from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig
from lake_assets.orchestration._compat import record, recorded
from lake_assets.orchestration.asset_checks import comparison_definitions
from lake_assets.orchestration.asset_names import PIPELINE_TAG, valid_name
from lake_assets.orchestration.assets import pipeline_assets
from lake_assets.orchestration.backfill_job import backfill_job
from lake_assets.orchestration.foreign_tables import external_assets
from lake_assets.orchestration.live_sources import live_definitions
from lake_assets.orchestration.loaded_pipelines import remember
from lake_assets.orchestration.micro_batch_job import micro_batch_job
from lake_assets.orchestration.report_job import report_definitions
from lake_assets.orchestration.runs.lake_io_manager import LakeIOManager
from lake_assets.orchestration.runs.resources import PYSPARK, LakePySparkResource
from lake_assets.orchestration.runs.thread_executor import threads_executor
from lake_assets.orchestration.sensing.outside_steps import outside_steps_sensor
from lake_assets.orchestration.sensing.sensor import capture_sensor
from lake_assets.orchestration.upkeep_checks import upkeep_definitions
from lake_assets.pipeline import ModelSpec, Pipeline
from lake_assets.pipeline.config.pipeline_config import seconds_of
from lake_assets.pipeline.config.stream_contents import StreamContents
from lake_assets.pipeline.table_graph import Spec

log = logging.getLogger(__name__)

# One object for all pipelines of a code location: Dagster merges definitions only if resources of one name are the same
# object.
_PYSPARK = LakePySparkResource()
_LAKE_IO = LakeIOManager()
# The resource by which assets of users read lake tables.
LAKE_IO = "lake_io_manager"


def build_definitions(
    pipeline: Pipeline,
    lake: Lake | None = None,
    *,
    pyspark: object | None = None,
    executor: dg.ExecutorDefinition | None = None,
    interval_seconds: int | None = None,
    sensor_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.Definitions:
    """Build the Dagster definitions of a pipeline, for use without YAML.

    Reads the lake's metadata if the pipeline has patterns; otherwise reads nothing. A process that executes a run has
    the tables that its code server had found, whatever the lake holds since. A model whose SQL cannot be used
    becomes an asset whose step fails; a warning says why.

    Args:
        pipeline: the declared pipeline.
        lake: the lake of its tables; default: the lake of the environment (see `LakeConfig.load`).
        pyspark: the resource that provides the Spark session: anything with a `spark_session`, such as
            dagster-pyspark's own resources; default: `LakePySparkResource`.
        executor: executor of the runs; default: threads of one process, which share one Spark, or, with a resource
            that has one session for all steps, Dagster's in-process executor.
        interval_seconds: shortest time between two checks of the capture sensor; default: the pipeline's `interval`.
        sensor_status: whether the capture sensor is on from the start.

    Raises:
        PipelineError: the pipeline contradicts itself.
        CatalogUnavailableError: the tables of a pattern cannot be looked up.
    """
    if executor is None:
        shares_session = pyspark is not None and not isinstance(pyspark, LakePySparkResource)
        executor = dg.in_process_executor if shares_session else threads_executor
    lookup = Lake((lake.config if lake else None) or LakeConfig.load())
    specs = _specs(pipeline, lookup)
    for spec in specs:
        if isinstance(spec, ModelSpec) and spec.refused:
            log.warning("pipeline %s: the step of %s will fail: %s", pipeline.name, spec.table, spec.refused)
    config = lookup.config
    remember(pipeline, config)
    assets = pipeline_assets(pipeline, specs, config)
    comparisons = comparison_definitions(pipeline, specs, config, executor)
    upkeep = upkeep_definitions(pipeline, specs, config, executor)
    live = live_definitions(pipeline, specs, config, sensor_status)
    reports = report_definitions(pipeline, config)
    checks = [*(comparisons.asset_checks or []), *(upkeep.asset_checks or []), *(live.asset_checks or [])]
    # They run on their schedules, not with each batch.
    scheduled = [key for c in checks for key in c.check_keys]
    tables = dg.AssetSelection.assets(*(key for a in assets for key in a.keys))
    job = dg.define_asset_job(
        valid_name(pipeline.name),
        selection=tables - dg.AssetSelection.checks(*scheduled),
        description=f"Absorb what is pending in pipeline {pipeline.name}.",
        tags={PIPELINE_TAG: pipeline.name},
        executor_def=executor,
    )
    # A user-defined job may have at most one partitions definition. Otherwise the sensor's runs use Dagster's own job
    # over all assets, which may have any number.
    has_job = len({s.partitions_def for a in assets for s in a.specs if s.partitions_def}) <= 1
    interval = math.ceil(seconds_of(pipeline.config.interval)) if interval_seconds is None else interval_seconds
    sensor = capture_sensor(
        pipeline,
        specs,
        config,
        job if has_job else None,
        assets=None if has_job else tables,
        interval_seconds=interval,
        status=sensor_status,
    )
    return dg.Definitions(
        assets=[*assets, *external_assets(pipeline, lookup), *(reports.assets or [])],
        asset_checks=checks,
        jobs=[
            *([job] if has_job else []),
            backfill_job(pipeline, config, executor),
            micro_batch_job(pipeline, specs, config, executor),
            *(comparisons.jobs or []),
            *(upkeep.jobs or []),
            *(reports.jobs or []),
        ],
        schedules=[*(comparisons.schedules or []), *(reports.schedules or [])],
        sensors=[sensor, outside_steps_sensor(pipeline, specs, config), *(upkeep.sensors or []), *(live.sensors or [])],
        resources={PYSPARK: pyspark or _PYSPARK, LAKE_IO: _LAKE_IO},
        executor=executor,
    )


def _specs(pipeline: Pipeline, lake: Lake) -> list[Spec]:
    """Return the pipeline's tables: in a run's process, those that the code server had found."""
    key = f"lake_assets/{lake.config.home}/{pipeline.name}"
    contents = StreamContents(lake, recorded(key))
    try:
        specs = pipeline.specs(lake, alone=False, contents=contents)
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()
    record(key, contents.text)
    return specs

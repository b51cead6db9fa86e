"""The report of a pipeline's lake in Dagster: an asset, whose materialization writes the page, and its schedule."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig
from lake_assets.orchestration.asset_names import valid_name
from lake_assets.orchestration.loaded_pipelines import loaded
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.config.report_settings import ReportSettings
from lake_assets.pipeline.config.setting_types import seconds_of
from lake_assets.report.contents import report
from lake_assets.report.html_page import write_page


def report_definitions(pipeline: Pipeline, config: LakeConfig) -> dg.Definitions:
    """Build the asset, the job and the schedule of a declared report; none if the pipeline declares none."""
    settings = pipeline.config.report
    if settings is None:
        return dg.Definitions()
    name = f"{valid_name(pipeline.name)}_report"

    @dg.asset(
        key=dg.AssetKey([pipeline.name, "report"]),
        description=f"The page {settings.file}: what is late, failing or expensive in the lake, and why.",
        kinds={"html"},
        tags=pipeline.config.tags,
        group_name=pipeline.config.group or valid_name(pipeline.name),
        owners=pipeline.config.owners,
    )
    def page() -> dg.MaterializeResult[Any]:
        file, findings = write_report(config, settings)
        return dg.MaterializeResult(metadata={"file": dg.MetadataValue.path(str(file)), "findings": findings})

    job = dg.define_asset_job(
        name, [page], description="Write the report on the lake.", executor_def=dg.in_process_executor
    )
    schedule = dg.ScheduleDefinition(
        f"{name}_schedule",
        job=job,
        cron_schedule=settings.cron,
        execution_timezone=settings.timezone,
        description="Writes the report on the lake.",
    )
    return dg.Definitions(assets=[page], jobs=[job], schedules=[schedule])


def write_report(config: LakeConfig, settings: ReportSettings) -> tuple[Path, int]:
    """Write the page about a lake with its loaded pipelines; return the file, and the number of findings."""
    lake = Lake(config)
    try:
        start = datetime.now(UTC) - timedelta(seconds=seconds_of(settings.since))
        made = report(lake, loaded(config), start)
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()
    file = config.home / settings.file
    file.parent.mkdir(parents=True, exist_ok=True)
    write_page(file, made)
    return file, len(made.findings)

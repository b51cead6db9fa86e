"""The report of a pipeline's lake in Dagster: a job that writes the page, and its schedule."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

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
    """Build the job and the schedule of a declared report; none if the pipeline declares none."""
    settings = pipeline.config.report
    if settings is None:
        return dg.Definitions()
    name = f"{valid_name(pipeline.name)}_report"

    @dg.op(name=f"{name}_page", description=f"Writes {settings.file}.")
    def page(context: dg.OpExecutionContext) -> None:
        file, findings = write_report(config, settings)
        context.add_output_metadata({"file": dg.MetadataValue.path(str(file)), "findings": findings})

    @dg.job(name=name, description="Write the report on the lake.", executor_def=dg.in_process_executor)
    def job() -> None:
        page()

    schedule = dg.ScheduleDefinition(
        f"{name}_schedule",
        job=job,
        cron_schedule=settings.cron,
        execution_timezone=settings.timezone,
        description="Writes the report on the lake.",
    )
    return dg.Definitions(jobs=[job], schedules=[schedule])


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

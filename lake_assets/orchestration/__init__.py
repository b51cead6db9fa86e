"""Pipelines in Dagster: the component, the assets, the capture sensor and the Spark resource.

The only folder that imports Dagster. What a table has to absorb, and absorbing it, is in `lake_assets.pipeline`; here
it is shown, triggered, retried and reported. What does not belong here: anything that a run without Dagster needs.
"""

from lake_assets.orchestration.build import build_definitions
from lake_assets.orchestration.component import CapturedJob, LakePipeline
from lake_assets.orchestration.foreign_tables import with_foreign_tables
from lake_assets.orchestration.loaded_pipelines import check_claims
from lake_assets.orchestration.runs.lake_io_manager import LakeIOManager
from lake_assets.orchestration.runs.resources import LakePySparkResource
from lake_assets.orchestration.runs.thread_executor import threads_executor

__all__ = [
    "CapturedJob",
    "LakeIOManager",
    "LakePipeline",
    "LakePySparkResource",
    "build_definitions",
    "check_claims",
    "threads_executor",
    "with_foreign_tables",
]

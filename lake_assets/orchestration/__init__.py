"""Pipelines in Dagster: the component, the assets, the capture sensor and the Spark resource.

The only folder that imports Dagster. What a table has to absorb, and absorbing it, is in `lake_assets.pipeline`; here
it is shown, triggered, retried and reported. What does not belong here: anything that a run without Dagster needs.
"""

import warnings

import dagster as dg

from lake_assets.orchestration.build import build_definitions
from lake_assets.orchestration.component import CapturedJob, LakePipeline
from lake_assets.orchestration.foreign_tables import with_foreign_tables
from lake_assets.orchestration.loaded_pipelines import check_claims
from lake_assets.orchestration.runs.lake_io_manager import LakeIOManager
from lake_assets.orchestration.runs.resources import LakePySparkResource
from lake_assets.orchestration.runs.thread_executor import threads_executor

# Dagster's own code uses what it calls beta or preview, and says so for each asset and each reload. Users' code is
# warned of as ever. This has an effect for the modules that import this package themselves: what Dagster imports while
# it loads components, it imports with filters of its own, which end with the load.
for _category in (dg.BetaWarning, dg.PreviewWarning):
    warnings.filterwarnings("ignore", category=_category, module=r"dagster\.")

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

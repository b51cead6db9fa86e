"""Pipelines: tables declared in YAML, in the order of their dependencies, and a runner without Dagster."""

from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.sql_template import FUNCTIONS as TEMPLATE_FUNCTIONS
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline.config.pipeline_config import PipelineConfig
from lake_assets.pipeline.pipeline import Pipeline
from lake_assets.pipeline.pipeline_group import PipelineGroup, grouped, names_of
from lake_assets.pipeline.project_folder import own_pipelines
from lake_assets.tables.outcome import Outcome

__all__ = [
    "TEMPLATE_FUNCTIONS",
    "ModelSpec",
    "Outcome",
    "Pipeline",
    "PipelineConfig",
    "PipelineGroup",
    "SnapshotPins",
    "grouped",
    "names_of",
    "own_pipelines",
]

"""Pipelines: what is declared in YAML, as tables in the order of their dependencies, and a runner without Dagster."""

from lake_assets.pipeline.discovery import own_pipelines
from lake_assets.pipeline.layer_tables import LayerTables
from lake_assets.pipeline.pipeline import Pipeline
from lake_assets.pipeline.pipeline_config import PipelineConfig

__all__ = ["LayerTables", "Pipeline", "PipelineConfig", "own_pipelines"]

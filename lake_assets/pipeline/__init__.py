"""Pipelines: what is declared in YAML, as tables in the order of their dependencies, and a runner without Dagster."""

from lake_assets.pipeline.config import LayerTables, PipelineConfig
from lake_assets.pipeline.own import own_pipelines
from lake_assets.pipeline.pipeline import Pipeline

__all__ = ["LayerTables", "Pipeline", "PipelineConfig", "own_pipelines"]

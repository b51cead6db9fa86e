"""Pipelines: tables declared in YAML, in the order of their dependencies, and a runner without Dagster.

It also exports names of lower packages for the Dagster integration, which imports only this package.
"""

from lake_assets.final.final_spec import FinalSpec
from lake_assets.jobs.job_spec import with_context
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.sql_template import FUNCTIONS as TEMPLATE_FUNCTIONS
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline.config.job_settings import CapturedJobConfig
from lake_assets.pipeline.config.pipeline_config import PipelineConfig, pipeline_of_job
from lake_assets.pipeline.config.stream_tables import StreamTable
from lake_assets.pipeline.pipeline import Pipeline
from lake_assets.pipeline.pipeline_group import PipelineGroup, grouped, names_of
from lake_assets.pipeline.project_folder import own_pipelines
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_kinds import (
    AcceptedValues,
    Assertion,
    Audit,
    EqualsQuery,
    NotNull,
    Relationship,
    RowCountChange,
    Severity,
    Unique,
)
from lake_assets.tables.outcome import INEXACT, Absorbed, Outcome
from lake_assets.tables.partitioning.partition_changes import PartitionChange, counted, partition_changes
from lake_assets.tables.partitioning.partition_keys import OTHER, key_of_text
from lake_assets.tables.partitioning.table_partitions import Partitions

__all__ = [
    "INEXACT",
    "OTHER",
    "TEMPLATE_FUNCTIONS",
    "Absorbed",
    "AcceptedValues",
    "Assertion",
    "Audit",
    "CapturedJobConfig",
    "EqualsQuery",
    "FinalSpec",
    "Finding",
    "ModelSpec",
    "NotNull",
    "Outcome",
    "PartitionChange",
    "Partitions",
    "Pipeline",
    "PipelineConfig",
    "PipelineGroup",
    "Relationship",
    "RowCountChange",
    "Severity",
    "SnapshotPins",
    "StreamTable",
    "Unique",
    "counted",
    "grouped",
    "key_of_text",
    "names_of",
    "own_pipelines",
    "partition_changes",
    "pipeline_of_job",
    "with_context",
]

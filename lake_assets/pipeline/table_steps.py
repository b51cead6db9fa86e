"""The step of each table, by its declaration: nothing else in the pipeline depends on the layer."""

from __future__ import annotations

from typing import Any

from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.final_step import FinalStep
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.raw.landing import RawStep
from lake_assets.ingest.staging.staging_step import StagingStep
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.jobs.job_step import JobStep
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.python.python_model_step import PythonModelStep
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.models.steps.sql_model_step import SqlModelStep
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.table_step import TableStep


def step_of(spec: Spec) -> TableStep[Any, SnapshotPins]:
    """Return the step of a table."""
    match spec:
        case RawSpec():
            return RawStep(spec)
        case StagingSpec():
            return StagingStep(spec)
        case FinalSpec():
            return FinalStep(spec)
        case ModelSpec():
            return SqlModelStep(spec)
        case PythonModelSpec():
            return PythonModelStep(spec)
        case JobSpec():
            return JobStep(spec)

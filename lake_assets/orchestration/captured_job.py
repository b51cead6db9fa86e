"""The component of one job: `type: lake_assets.CapturedJob`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import dagster as dg
from pydantic import BaseModel

from lake_assets.orchestration.build import build_definitions
from lake_assets.orchestration.component import filled, path_of
from lake_assets.orchestration.scaffold import JobScaffolder
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.config.job_settings import CapturedJobConfig
from lake_assets.pipeline.config.pipeline_config import pipeline_of_job

if TYPE_CHECKING:
    from dagster import ComponentLoadContext, ResolutionContext


@dg.scaffold_with(JobScaffolder)
class CapturedJob(dg.Component, dg.Model, dg.Resolvable, CapturedJobConfig):
    """A job of your own over what changed in its inputs: a command, a Python function, a notebook or a dbt selection.

    Its table is an asset. The capture sensor requests a run when an input has changed, and the job gets the two
    snapshots to compare, the ranges and keys that changed, and tables over the changed files.
    """

    @classmethod
    def model(cls) -> type[BaseModel]:
        """The model of `attributes`, for validation and the JSON schema."""
        return CapturedJobConfig

    @classmethod
    def resolve_from_model(cls, context: ResolutionContext, model: BaseModel) -> Self:
        """Build the component from validated YAML, with templates such as `{{ env.NAME }}` filled in."""
        return cls.model_validate(filled(context, model.model_dump(mode="json", exclude_unset=True)))

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Describe the component for Dagster's listings."""
        return dg.ComponentTypeSpec(
            description=cls.__doc__, tags=["iceberg", "job"], produces=["asset", "job", "sensor", "resource"]
        )

    def build_defs(self, context: ComponentLoadContext) -> dg.Definitions:
        """Build the job's asset, Dagster job, capture sensor and resource."""
        config = CapturedJobConfig.model_validate(self.model_dump(exclude_unset=True))
        return build_definitions(Pipeline(pipeline_of_job(config), path_of(context)))

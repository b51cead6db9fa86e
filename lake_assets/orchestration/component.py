"""The component that a pipeline's YAML names: `type: lake_assets.LakePipeline`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from pydantic import BaseModel

from lake_assets.errors import PipelineError
from lake_assets.lake.yaml_text import YamlError, check_written
from lake_assets.orchestration.build import build_definitions
from lake_assets.orchestration.scaffold import PipelineScaffolder
from lake_assets.pipeline import TEMPLATE_FUNCTIONS, Pipeline, PipelineConfig

if TYPE_CHECKING:
    from dagster import ComponentLoadContext, ResolutionContext


@dg.scaffold_with(PipelineScaffolder)
class LakePipeline(dg.Component, dg.Model, dg.Resolvable, PipelineConfig):
    """Iceberg tables kept up to date from what changed.

    Streams of change events become raw, staging and final tables; SQL models become tables that follow their sources.
    Each table is an asset, and one capture sensor requests runs over the tables with something to absorb.

    The environment names the lake: `LAKE_CONFIG` or `LAKE_HOME`, by default the folder `.lake`.
    """

    @classmethod
    def model(cls) -> type[BaseModel]:
        """The model of `attributes`, for validation and the JSON schema."""
        return PipelineConfig

    @classmethod
    def resolve_from_model(cls, context: ResolutionContext, model: BaseModel) -> Self:
        """Build the component from validated YAML, with templates such as `{{ env.NAME }}` filled in."""
        # Templates over changes are filled in by each step.
        context = context.with_scope(**{name: _kept(name) for name in TEMPLATE_FUNCTIONS})
        return cls.model_validate(filled(context, model.model_dump(mode="json", exclude_unset=True)))

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Describe the component for Dagster's listings."""
        return dg.ComponentTypeSpec(
            description=cls.__doc__,
            tags=["iceberg", "spark", "cdc"],
            produces=["asset", "job", "sensor", "resource"],
        )

    def build_defs(self, context: ComponentLoadContext) -> dg.Definitions:
        """Build the pipeline's assets, job, capture sensor and resource."""
        config = PipelineConfig.model_validate(self.model_dump(exclude_unset=True))
        return self.build_pipeline(Pipeline(config, path_of(context)))

    def build_pipeline(self, pipeline: Pipeline) -> dg.Definitions:
        """Build the definitions; subclasses override it to pass another resource, executor or interval."""
        return build_definitions(pipeline)


def path_of(context: ComponentLoadContext) -> Path:
    """Return the YAML file of a component: files that it names are relative to it, not to Dagster's working directory.

    Raises:
        PipelineError: it has a mistake that YAML itself allows.
    """
    path = context.path if context.path.is_file() else context.path / "defs.yaml"
    if path.is_file():
        try:
            check_written(path.read_text(encoding="utf-8"))
        except YamlError as e:
            raise PipelineError(e.in_file(path)) from e
    return path


def _kept(name: str) -> Callable[..., str]:
    """Return a function of templates that gives its own call."""

    def call(*arguments: str) -> str:
        return f"{{{{ {name}({', '.join(map(repr, arguments))}) }}}}"

    return call


def filled(context: ResolutionContext, value: Any) -> Any:
    """Fill in the templates of settings. Text without one stays text: Dagster would turn digits into numbers."""
    if isinstance(value, dict):
        return {k: filled(context, v) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(context, v) for v in value]
    return context.resolve_value(value) if isinstance(value, str) and ("{{" in value or "{%" in value) else value

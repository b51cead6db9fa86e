"""The components that a YAML names, `lake_assets.LakePipeline` and `lake_assets.CapturedJob`, with their scaffolds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import dagster as dg
from pydantic import BaseModel

from lake_assets.errors import PipelineError
from lake_assets.lake.yaml_text import YamlError, check_written
from lake_assets.orchestration.build import build_definitions
from lake_assets.pipeline import TEMPLATE_FUNCTIONS, Pipeline, PipelineConfig
from lake_assets.pipeline.config.job_settings import CapturedJobConfig
from lake_assets.pipeline.config.pipeline_config import pipeline_of_job

if TYPE_CHECKING:
    from dagster import ComponentLoadContext, ResolutionContext

_STARTER = """\
# Tables kept up to date from what changed. `dg check yaml` checks this file, `dg list defs` shows its definitions.
type: {type}

attributes:
  name: {name}                 # the tables belong to this pipeline; two pipelines cannot share a table
  # owners: [team:data]          # like tags, group and kinds, also for single streams, tables and models

  streams:
    - name: {name}_events      # raw.{name}_events: records as they arrived
      format: debezium
      # landing: landing/{name}_events   # folder of incoming files: absolute, or relative to the lake's home
      tables:
        # schema.table, as in the source: staging.<table> gets every change, final.<table> the current rows
        - public.*
        # - table: public.users
        #   key: id                        # default: the stream's key
        #   rename: {{email: email_address}} # no stream reports a rename
      # exclude: public.internal_*

  # SELECTs over tables of the lake, each kept up to date from the changes in its tables.
  models: []
  # models:
  #   - name: agg.users_per_city
  #     sql: |
  #       SELECT city, count(*) AS users FROM final.users GROUP BY city
"""


_JOB = """\
# A job of your own over what changed. `dg check yaml` checks this file, `dg list defs` shows its definitions.
type: {type}

attributes:
  table: agg.{name}            # the table that the job writes; its snapshots say what it has absorbed
  inputs: [final.users]        # their changes trigger the job
  # lookups: [final.cities]      # read as they are
  # ranges: [day]                # the changed range of a column: {{low.day}}, {{high.day}}
  # on_unknown: rerun            # for jobs that may run twice over the same changes
  # full: SELECT ...             # all rows that the table should have, for `lake-assets verify`

  # Exactly one of these; the job gets LAKE_STEP_* variables:
  command: [python, job.py]
  # python: job:run              # a function that is called with the step
  # notebook: job.ipynb          # by papermill
  # dbt: {{project: shop, select: daily+}}
"""


class PipelineScaffolder(dg.Scaffolder):
    """Writes defs.yaml with comments."""

    starter: ClassVar[str] = _STARTER

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Write the YAML file, or Python if that was requested."""
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request, {})
            return
        folder = request.target_path.parent if request.append else request.target_path
        name = "".join(c if c.isalnum() or c == "_" else "_" for c in folder.name)
        text = self.starter.format(type=request.type_name, name=name)
        if request.append:
            with request.target_path.open("a", encoding="utf-8") as file:
                file.write(f"---\n{text}")
        else:
            (request.target_path / "defs.yaml").write_text(text, encoding="utf-8")


class JobScaffolder(PipelineScaffolder):
    """Writes the defs.yaml of a job."""

    starter: ClassVar[str] = _JOB


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

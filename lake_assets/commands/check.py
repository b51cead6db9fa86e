"""`lake-assets check`: the mistakes in a pipeline, before anything runs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import typer

from lake_assets.commands.printing import console
from lake_assets.commands.table_lookup import PipelineArgument, misnamed_text, named_files
from lake_assets.errors import LakeError, PipelineError
from lake_assets.facade import Lake
from lake_assets.lake.counts import plural
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.pipeline_checks import CheckResult
from lake_assets.pipeline.pipeline_checks import check as check_pipeline
from lake_assets.pipeline.project_folder import misnamed_files
from lake_assets.pipeline.spark_syntax import syntax_mistakes

# An empty catalog in memory.
_NO_LAKE = "sqlite:///:memory:"


def check(
    pipeline: PipelineArgument = None,
) -> None:
    """Check the settings, models and audits of pipelines against the lake's tables, and list all mistakes and warnings.

    Reads metadata only. Spark is started to ask its parser about the SQL of the models.
    """
    files, lake = named_files(pipeline), Lake.load()
    if not lake.is_there:
        console.print(f"no lake at {lake.config.home} yet", markup=False, soft_wrap=True)
        lake = Lake(lake.config.model_copy(update={"catalog": {"type": "sql", "uri": _NO_LAKE}}))
    are_right = [_is_right(file, lake) for file in files]
    if pipeline is None and (misnamed := misnamed_files()):
        console.print(misnamed_text(misnamed), markup=False, soft_wrap=True)
    if not all(are_right):
        raise typer.Exit(1)


def _is_right(file: Path, lake: Lake) -> bool:
    """Print the mistakes of one pipeline; return whether it has none."""
    loaded, result = checked(file, lake)
    rejected, unasked = rejected_by_spark(loaded, lake)
    mistakes = list(dict.fromkeys([*result.mistakes, *rejected]))
    print_mistakes(mistakes)
    print_mistakes(f"warning: {message}" for message in result.warnings)
    for message in [*result.open, *unasked]:
        console.print(f"not checked yet: {message}", markup=False, soft_wrap=True)
    if mistakes:
        return False
    streams, jobs = len(loaded.config.streams), len(loaded.config.jobs)
    models = sum(isinstance(spec, ModelSpec | PythonModelSpec) for spec in loaded.specs(lake))
    parts = [f"{n} {what}{'s' if n != 1 else ''}" for n, what in ((streams, "stream"), (models, "model"))]
    parts += [plural(jobs, "job")] if jobs else []
    console.print(f"pipeline {loaded.name}: {' and '.join(parts)}, no mistake found", markup=False)
    return True


def checked(file: Path, lake: Lake) -> tuple[Pipeline, CheckResult]:
    """Load the pipeline of a file, and find all of its mistakes that metadata show.

    Raises:
        PipelineError: nothing of the file can be used.
    """
    loaded, wrong = Pipeline.load_what_is_right(file)
    if loaded is None:
        raise PipelineError("\n".join(wrong))
    result = check_pipeline(loaded, lake)
    return loaded, replace(result, mistakes=tuple(dict.fromkeys([*wrong, *result.mistakes])))


def print_mistakes(mistakes: Iterable[str]) -> None:
    """Print each mistake on a line."""
    for message in mistakes:
        console.print(message, markup=False, soft_wrap=True)


def rejected_by_spark(pipeline: Pipeline, lake: Lake) -> tuple[list[str], list[str]]:
    """Return the models that Spark's parser rejects, and why it could not be asked."""
    specs = [s for s in pipeline.declared.read(lake, alone=False).specs if isinstance(s, ModelSpec)]
    if not specs:
        return [], []
    with contextlib.ExitStack() as scope:
        if not lake.is_there:
            # A session makes the home of its lake.
            home = Path(scope.enter_context(tempfile.TemporaryDirectory(prefix="lake_assets_")))
            lake = Lake(lake.config.model_copy(update={"home": home}))
        try:
            spark = lake.spark()
        except LakeError as e:
            return [], [f"whether Spark's parser accepts the SQL of the models: {e}"]
        return syntax_mistakes(spark, specs), []

"""`lake-assets check`: the mistakes in a pipeline, before anything runs."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from lake_assets.commands.printing import console
from lake_assets.commands.table_lookup import find_file
from lake_assets.errors import LakeError, PipelineError
from lake_assets.facade import Lake
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.pipeline_checks import check as check_pipeline
from lake_assets.pipeline.spark_syntax import syntax_mistakes

# An empty catalog in memory.
_NO_LAKE = "sqlite:///:memory:"


def check(
    pipeline: Annotated[str, typer.Argument(help="YAML file, folder with a defs.yaml, or a shipped pipeline's name")],
) -> None:
    """Check the settings, models and audits of PIPELINE against the lake's tables, and list all mistakes.

    Reads metadata only. Spark is started to ask its parser about the SQL of the models.
    """
    loaded, wrong = Pipeline.load_what_is_right(find_file(pipeline))
    if loaded is None:
        raise PipelineError("\n".join(wrong))
    lake = Lake.load()
    if not lake.is_there:
        console.print(f"no lake at {lake.config.home} yet", markup=False, soft_wrap=True)
        lake = Lake(lake.config.model_copy(update={"catalog": {"type": "sql", "uri": _NO_LAKE}}))
    result = check_pipeline(loaded, lake)
    rejected, unasked = _rejected_by_spark(loaded, lake)
    mistakes = list(dict.fromkeys([*wrong, *result.mistakes, *rejected]))
    for message in mistakes:
        console.print(message, markup=False, soft_wrap=True)
    for message in [*result.open, *unasked]:
        console.print(f"not checked yet: {message}", markup=False, soft_wrap=True)
    if mistakes:
        raise typer.Exit(1)
    streams, jobs = len(loaded.config.streams), len(loaded.config.jobs)
    models = sum(isinstance(spec, ModelSpec | PythonModelSpec) for spec in loaded.specs(lake))
    parts = [f"{n} {what}{'s' if n != 1 else ''}" for n, what in ((streams, "stream"), (models, "model"))]
    parts += [f"{jobs} job{'s' if jobs != 1 else ''}"] if jobs else []
    console.print(f"pipeline {loaded.name}: {' and '.join(parts)}, no mistake found", markup=False)


def _rejected_by_spark(pipeline: Pipeline, lake: Lake) -> tuple[list[str], list[str]]:
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

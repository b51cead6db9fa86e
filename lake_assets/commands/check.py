"""`lake-assets check`: the mistakes in a pipeline, before anything runs."""

from __future__ import annotations

from typing import Annotated

import typer

from lake_assets.commands.printing import console
from lake_assets.commands.run_and_status import find_pipeline
from lake_assets.facade import Lake
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.pipeline.pipeline_checks import check as checked

# An empty catalog in memory.
_NO_LAKE = "sqlite:///:memory:"


def check(
    pipeline: Annotated[str, typer.Argument(help="YAML file, folder with a defs.yaml, or a shipped pipeline's name")],
) -> None:
    """Check the models and audits of PIPELINE against the lake's tables, and list all mistakes (without Spark)."""
    loaded, lake = find_pipeline(pipeline), Lake.load()
    if not lake.is_there:
        console.print(f"no lake at {lake.config.home} yet", markup=False, soft_wrap=True)
        lake = Lake(lake.config.model_copy(update={"catalog": {"type": "sql", "uri": _NO_LAKE}}))
    result = checked(loaded, lake)
    for message in result.mistakes:
        console.print(message, markup=False, soft_wrap=True)
    for message in result.open:
        console.print(f"not checked yet: {message}", markup=False, soft_wrap=True)
    if result.mistakes:
        raise typer.Exit(1)
    streams, jobs = len(loaded.config.streams), len(loaded.config.jobs)
    models = sum(isinstance(spec, ModelSpec | PythonModelSpec) for spec in loaded.specs(lake))
    parts = [f"{n} {what}{'s' if n != 1 else ''}" for n, what in ((streams, "stream"), (models, "model"))]
    parts += [f"{jobs} job{'s' if jobs != 1 else ''}"] if jobs else []
    console.print(f"pipeline {loaded.name}: {' and '.join(parts)}, no mistake found", markup=False)

"""`lake-assets check`: what is wrong with a pipeline, before anything runs."""

from __future__ import annotations

from typing import Annotated

import typer

from lake_assets.commands.output import console
from lake_assets.commands.pipelines import find_pipeline
from lake_assets.facade import Lake
from lake_assets.pipeline.checks import mistakes


def check(
    pipeline: Annotated[str, typer.Argument(help="YAML file, folder with a defs.yaml, or a shipped pipeline's name")],
) -> None:
    """Check the models and audits of PIPELINE against the lake's tables: all mistakes at once (no Spark)."""
    loaded = find_pipeline(pipeline)
    found = mistakes(loaded, Lake.load())
    for said in found:
        console.print(said, markup=False, soft_wrap=True)
    if found:
        raise typer.Exit(1)
    console.print(f"pipeline {loaded.name}: {len(loaded.config.models)} models, nothing wrong")

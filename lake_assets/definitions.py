"""The code location: the shipped pipelines, and those of the folder that LAKE_PIPELINES names."""

import os
from importlib import import_module
from pathlib import Path

import dagster as dg

from lake_assets.errors import ConfigError
from lake_assets.orchestration import build_definitions, check_claims
from lake_assets.pipeline import Pipeline


@dg.definitions
def defs() -> dg.Definitions:
    """Every pipeline's assets, jobs and sensors.

    Raises:
        ConfigError: LAKE_PIPELINES names no folder.
        PipelineError: a pipeline of that folder is wrong; says where, all mistakes at once.
        TableClaimedError: two pipelines make one table.
    """
    tree = dg.ComponentTree.from_module(
        defs_module=import_module("lake_assets.examples.defs"), project_root=Path(__file__).parent.parent
    )
    made = [tree.build_defs(), *(build_definitions(p) for p in own_pipelines())]
    check_claims(made)
    return dg.Definitions.merge(*made)


def own_pipelines() -> list[Pipeline]:
    """The pipelines below the folder LAKE_PIPELINES: each a `defs.yaml` as in a Dagster project."""
    asked = os.environ.get("LAKE_PIPELINES")
    if not asked:
        return []
    folder = Path(asked).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"LAKE_PIPELINES names {folder}, which is no folder: point it at one with pipelines in it")
    return [Pipeline.load(file) for file in sorted(folder.rglob("defs.yaml"))]

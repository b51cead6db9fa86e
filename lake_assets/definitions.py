"""The code location: the shipped pipelines, and those of the folder that LAKE_PIPELINES names."""

from importlib import import_module
from pathlib import Path

import dagster as dg

from lake_assets.orchestration import build_definitions, check_claims
from lake_assets.pipeline import own_pipelines


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

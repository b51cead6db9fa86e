"""The code location: the shipped pipelines and the pipelines in the folder LAKE_PIPELINES."""

import os
from importlib import import_module
from pathlib import Path

import dagster as dg

from lake_assets.orchestration import build_definitions, check_claims, with_foreign_tables
from lake_assets.pipeline import own_pipelines

# Set in processes that load these definitions to execute one run.
RUN_PROCESS = "LAKE_ASSETS_RUN_PROCESS"


@dg.definitions
def defs() -> dg.Definitions:
    """Build the assets, jobs and sensors of every pipeline.

    Raises:
        ConfigError: LAKE_PIPELINES is not a folder.
        PipelineError: a pipeline in that folder is invalid; lists all mistakes with their places.
        TableClaimedError: two pipelines declare one table.
    """
    examples = import_module("lake_assets.examples.defs")
    tree = dg.ComponentTree.from_module(defs_module=examples, project_root=Path(__file__).parent.parent)
    # The whole tree also describes every component type for the UI, which takes as long as many tables.
    only = Path(examples.__path__[0]) if RUN_PROCESS in os.environ else None
    parts = [tree.build_defs(only), *(build_definitions(p) for p in own_pipelines())]
    check_claims(parts)
    return with_foreign_tables(dg.Definitions.merge(*parts))

"""Discover a project's pipelines in the folder LAKE_PIPELINES."""

from __future__ import annotations

import os
from pathlib import Path

from lake_assets.errors import ConfigError
from lake_assets.pipeline.pipeline import Pipeline


def own_pipelines() -> list[Pipeline]:
    """Load the pipelines in the folder LAKE_PIPELINES, at any depth: each is a `defs.yaml` as in a Dagster project.

    Raises:
        ConfigError: LAKE_PIPELINES names no folder.
        PipelineError: a pipeline of that folder is wrong; says where, all mistakes at once.
    """
    asked = os.environ.get("LAKE_PIPELINES")
    if not asked:
        return []
    folder = Path(asked).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"LAKE_PIPELINES names {folder}, which is no folder: point it at one with pipelines in it")
    return [Pipeline.load(file) for file in sorted(folder.rglob("defs.yaml"))]

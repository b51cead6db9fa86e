"""Discover a project's pipelines in the folder LAKE_PIPELINES."""

from __future__ import annotations

import os
from pathlib import Path

from lake_assets.errors import ConfigError
from lake_assets.pipeline.pipeline import Pipeline


def own_pipelines() -> list[Pipeline]:
    """Load the pipelines in the folder LAKE_PIPELINES, at any depth: each is a `defs.yaml` as in a Dagster project.

    Raises:
        ConfigError: LAKE_PIPELINES is not a folder.
        PipelineError: a pipeline in that folder is wrong; lists all mistakes with their places.
    """
    setting = os.environ.get("LAKE_PIPELINES")
    if not setting:
        return []
    folder = Path(setting).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"LAKE_PIPELINES names {folder}, which is not a folder: set it to a folder with pipelines")
    return [Pipeline.load(file) for file in sorted(folder.rglob("defs.yaml"))]

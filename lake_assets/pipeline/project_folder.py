"""Discover the files of pipelines: in the folder LAKE_PIPELINES, and in the project of Dagster that a user works in."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lake_assets.errors import ConfigError
from lake_assets.lake.project_root import find_project
from lake_assets.pipeline.pipeline import Pipeline

# The only file of a component that Dagster reads.
_COMPONENT = "defs.yaml"
_TYPE = re.compile(r"^type:\s*['\"]?lake_assets\.(LakePipeline|CapturedJob)\b", re.MULTILINE)


def own_pipelines() -> list[Pipeline]:
    """Load the pipelines of `own_files`.

    Raises:
        ConfigError: LAKE_PIPELINES is not a folder.
        PipelineError: a pipeline in that folder is wrong; lists all mistakes with their places.
    """
    return [Pipeline.load(file) for file in own_files()]


def own_files() -> list[Path]:
    """Return the files of pipelines in the folder LAKE_PIPELINES, at any depth: each `defs.yaml`, as in a project of
    Dagster, and other YAML files whose `type` is a pipeline or a job.

    Raises:
        ConfigError: LAKE_PIPELINES is not a folder.
    """
    setting = os.environ.get("LAKE_PIPELINES")
    if not setting:
        return []
    folder = Path(setting).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"LAKE_PIPELINES names {folder}, which is not a folder: set it to a folder with pipelines")
    return [file for file in _yaml_files(folder) if file.name == _COMPONENT or _is_pipeline(file)]


def project_files() -> list[Path]:
    """Return the files of pipelines among the definitions of the project in or above the current folder.

    Raises:
        ConfigError: see `find_project`.
    """
    return [file for file in _project_pipelines() if file.name == _COMPONENT]


def misnamed_files() -> list[Path]:
    """Return the files of pipelines among the project's definitions that Dagster does not read, because of their names.

    Raises:
        ConfigError: see `find_project`.
    """
    return [file for file in _project_pipelines() if file.name != _COMPONENT]


def _project_pipelines() -> list[Path]:
    project = find_project()
    folder = project.defs if project else None
    return [file for file in _yaml_files(folder) if _is_pipeline(file)] if folder else []


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(file for ending in ("yaml", "yml") for file in folder.rglob(f"*.{ending}"))


def _is_pipeline(file: Path) -> bool:
    try:
        return bool(_TYPE.search(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return False  # a folder, or of another program

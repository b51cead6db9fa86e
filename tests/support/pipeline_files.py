"""Pipelines as YAML files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lake_assets import Pipeline


def write_pipeline(file: Path, attributes: Mapping[str, Any]) -> Path:
    """Write the settings of a pipeline to a file."""
    declared = {"type": "lake_assets.LakePipeline", "attributes": attributes}
    file.write_text(yaml.safe_dump(declared, sort_keys=False))
    return file


def yaml_of(folder: Path, models: list[dict[str, Any]], **more: Any) -> Path:
    """Write a pipeline of models to `defs.yaml`."""
    return write_pipeline(folder / "defs.yaml", {"name": "own", "models": models, **more})


def load(folder: Path, text: str) -> Pipeline:
    """Load a pipeline from a text that is written to `defs.yaml`."""
    file = folder / "defs.yaml"
    file.write_text(text)
    return Pipeline.load(file)

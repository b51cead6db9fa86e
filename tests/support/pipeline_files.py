"""Pipelines as YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def yaml_of(folder: Path, models: list[dict[str, Any]], **more: Any) -> Path:
    file = folder / "defs.yaml"
    attributes = {"name": "own", "models": models, **more}
    file.write_text(yaml.safe_dump({"type": "lake_assets.LakePipeline", "attributes": attributes}, sort_keys=False))
    return file

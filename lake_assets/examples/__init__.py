"""The shipped pipelines (`defs/`), their recorded input (`data/`), and the code that feeds it to a demo."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped_pipelines() -> list[Path]:
    """Return the files of the shipped pipelines, each named by its folder."""
    return sorted((Path(str(files("lake_assets.examples"))) / "defs").glob("*/defs.yaml"))

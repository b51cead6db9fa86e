"""The shipped pipelines (declared in `defs/`), their recorded input (`data/`), and how a demo feeds it to them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped_pipelines() -> list[Path]:
    """The shipped pipelines' files; a pipeline is called as its folder."""
    return sorted((Path(str(files("lake_assets.examples"))) / "defs").glob("*/defs.yaml"))

"""The shipped pipelines (`defs/`), their recorded input (`data/`), and the code that feeds it to a demo."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

_FOLDER = Path(__file__).parent


def shipped_pipelines() -> list[Path]:
    """Return the files of the shipped pipelines, each named by its folder."""
    return sorted((_FOLDER / "defs").glob("*/defs.yaml"))


def shipped_pipeline(name: str) -> Path:
    """Return the file of a shipped pipeline."""
    return _FOLDER / "defs" / name / "defs.yaml"


@contextlib.contextmanager
def complete_file(target: Path) -> Generator[Path]:
    """Let the context write a file under a hidden name, and rename it: a landing folder shows complete files only."""
    temporary = target.with_name(f".{target.name}")
    yield temporary
    temporary.rename(target)

"""The project of Dagster in or above the current folder: where its lake and its pipelines are unless something says so.

Such a project is what `dg` takes for one: a `pyproject.toml` with `[tool.dg.project]`, or a `dg.toml` with `[project]`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from lake_assets.errors import ConfigError

# dg's names of the folder of definitions, in its order.
_DEFS = ("defs", "definitions")


@dataclass(frozen=True)
class Project:
    """A project of Dagster.

    Attributes:
        root: its folder.
        defs_modules: the modules that may hold its definitions; the first one that exists does.
    """

    root: Path
    defs_modules: tuple[str, ...]

    @property
    def defs(self) -> Path | None:
        """The folder of its definitions; None if it has none."""
        places = (base.joinpath(*m.split(".")) for m in self.defs_modules for base in (self.root, self.root / "src"))
        return next((place for place in places if place.is_dir()), None)

    def environment(self) -> dict[str, str]:
        """Return the variables of its `.env`, which Dagster reads as well."""
        return {name: value for name, value in dotenv_values(self.root / ".env").items() if value is not None}


def find_project() -> Project | None:
    """Return the project in the current folder, or in the nearest folder above it; None: there is none.

    Raises:
        ConfigError: its `pyproject.toml` or `dg.toml` is not TOML, or does not name its module.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        for name in ("dg.toml", "pyproject.toml"):
            if (file := folder / name).is_file() and (settings := _settings(file)) is not None:
                return _project(file, settings)
    return None


def _settings(file: Path) -> dict[str, Any] | None:
    """Return the settings of a project in a file; None: it has none."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None  # of another program
    if file.name == "pyproject.toml" and "tool.dg" not in text:
        return None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{file} is no valid TOML: {e}") from e
    settings: Any = content if file.name == "dg.toml" else content.get("tool", {}).get("dg", {})
    settings = settings.get("project") if isinstance(settings, dict) else None
    return settings if isinstance(settings, dict) else None


def _project(file: Path, settings: dict[str, Any]) -> Project:
    module, defs = settings.get("root_module"), settings.get("defs_module")
    if not isinstance(module, str) or not module:
        raise ConfigError(f"{file}: the project of `dg` names no `root_module`, its Python package")
    names = (defs,) if isinstance(defs, str) and defs else tuple(f"{module}.{name}" for name in _DEFS)
    return Project(file.parent, names)

"""Write a new project of Dagster with a pipeline over a sample, and the tuned settings of Dagster's instance."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Mapping
from pathlib import Path

from lake_assets.errors import ConfigError
from lake_assets.examples.sample_orders import batches
from lake_assets.runtime.private_files import make_private

_TEMPLATES = Path(__file__).parent / "project"
# Dagster's settings; the `dagster_home` of this repository links to it.
_SETTINGS = _TEMPLATES / "dagster.yaml"
# By template, the file in the project. PACKAGE stands for the name of its Python package.
_FILES: Mapping[str, str] = {
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "lake.yaml.txt": "lake.yaml",
    "env.txt": ".env",
    "gitignore.txt": ".gitignore",
    "definitions.py.txt": "PACKAGE/definitions.py",
    "defs.yaml.txt": "PACKAGE/defs/sales/defs.yaml",
    "test_sales.py.txt": "tests/test_sales.py",
}


def write_project(folder: Path) -> str:
    """Write a project into a new or empty folder, whose name is the project's; return the name of its package.

    Raises:
        ConfigError: the folder holds something, cannot be made, or has no name for a Python package.
    """
    folder = folder.expanduser().resolve()
    package = _package_of(folder.name)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} exists already: name a new folder. Nothing was written")
        folder.mkdir(parents=True, exist_ok=True)
        make_private(folder / ".lake")
        for name, text in _contents(folder.name, package).items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        write_settings(folder / "dagster_home")
    except OSError as e:
        raise ConfigError(f"the project {folder} cannot be written: {e}") from e
    return package


def write_settings(home: Path) -> Path:
    """Write the tuned `dagster.yaml` into a folder for Dagster's instance; return the file.

    Raises:
        ConfigError: there is another file of that name, or it cannot be written.
    """
    file, text = home.expanduser().absolute() / "dagster.yaml", _SETTINGS.read_text(encoding="utf-8")
    try:
        if file.exists():
            if file.read_text(encoding="utf-8") != text:
                raise ConfigError(f"{file} exists already and differs: compare it with {_SETTINGS}")
            return file
        # What runs print and log is nobody else's.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{file} cannot be written: {e}") from e
    return file


def _contents(project: str, package: str) -> dict[str, str]:
    """Return the text of each file of a project, except Dagster's settings."""
    texts = {target: (_TEMPLATES / name).read_text(encoding="utf-8") for name, target in _FILES.items()}
    texts |= {f"PACKAGE/{name}": "" for name in ("__init__.py", "defs/__init__.py")}
    sample = {name: "".join(lines) for name, lines in batches().items()}
    texts |= {f"sample/{name}": text for name, text in sample.items()}
    texts[".lake/landing/shop/1_start.jsonl"] = sample["1_start.jsonl"]
    return {
        name.replace("PACKAGE", package): text.replace("{project}", project).replace("{package}", package)
        for name, text in texts.items()
    }


def _package_of(name: str) -> str:
    package = re.sub(r"\W", "_", name.lower())
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII) or not package.isidentifier():
        raise ConfigError(f"{name!r} is no name for a project: use letters, digits, - and _, with a letter first")
    if keyword.iskeyword(package) or importlib.util.find_spec(package) is not None:
        raise ConfigError(f"{name!r} is no name for a project: Python has a module {package}; choose another name")
    return package

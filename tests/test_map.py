"""The map of the package in CONTRIBUTING.md: it names every module, in its folder, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lake_assets"


def _listed() -> list[str]:
    """Modules as the map lists them: `folder/file.py`."""
    folder, out = "", []
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### Every file\n")[2]
    for line in text.partition("\n## ")[0].splitlines():
        if heading := re.fullmatch(r"\*\*`(.+)/`\*\*", line):
            folder = heading[1]
        elif item := re.match(r"- `(.+\.py)`: \S", line):
            out.append(f"{folder}/{item[1]}")
    return out


def test_the_map_lists_every_module_once() -> None:
    modules = {
        str(p.relative_to(PACKAGE))
        for p in PACKAGE.rglob("*.py")
        if p.name != "__init__.py" and p.parent != PACKAGE and not {"data", "defs"} & set(p.parts)
    }
    assert sorted(_listed()) == sorted(modules)


def test_each_module_has_a_name_of_its_own() -> None:
    names = [name for m in _listed() if (name := Path(m).name) != "_compat.py"]
    assert sorted(names) == sorted(set(names))

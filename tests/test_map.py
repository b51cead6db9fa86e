"""The map of the package: every module says what it is for, and has a name of its own."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


MODULES = [
    p.name
    for p in (ROOT / "lake_assets").rglob("*.py")
    if p.name not in ("__init__.py", "__main__.py") and not {"data", "defs"} & set(p.parts)
]


def test_the_map_shows_every_module_once_with_what_it_is_for() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "print_map.py"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    shown = [line.split(maxsplit=1) for line in printed if line.split()[0].endswith(".py")]
    assert [name for name, *text in shown if not text] == []
    assert Counter(name for name, *_ in shown) == Counter(MODULES)


def test_each_module_has_a_name_of_its_own() -> None:
    assert [name for name, count in Counter(MODULES).items() if count > 1 and name != "_compat.py"] == []

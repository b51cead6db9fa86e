"""Print every folder and module of the package, with the first line of its docstring: `make map`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lake_assets"


def lines(package: Path) -> Iterator[str]:
    """Yield the lines of the map, folder by folder."""
    folders = sorted({p.parent for p in package.rglob("*.py") if not {"data", "defs"} & set(p.parts)})
    for folder in folders:
        depth = len(folder.relative_to(package).parts)
        yield f"{'  ' * depth}{folder.name}/  {_first_line(folder / '__init__.py')}"
        for module in sorted(folder.glob("*.py")):
            if module.name not in ("__init__.py", "__main__.py"):
                yield f"{'  ' * (depth + 1)}{module.name:<28} {_first_line(module)}"


def _first_line(module: Path) -> str:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) if module.exists() else None
    return (docstring or "").partition("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    print("\n".join(line for line in lines(PACKAGE / wanted)))

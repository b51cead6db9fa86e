"""The order of the tests: what several of them use is in `tests/support`, and each file says what it is about."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
MODULES = sorted(p for p in TESTS.rglob("*.py") if "__pycache__" not in p.parts)


# Imports of `tests` from elsewhere than `tests.support`, of which most modules have none: those need not be parsed.
OTHERS = re.compile(r"\b(import|from)\s+tests\b(?!\.support\b)")


@functools.cache
def _text(module: Path) -> str:
    return module.read_text(encoding="utf-8")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements within a node; most nodes are parts of expressions, which import nothing."""
    yield node
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, part, ()):
            yield from _statements(inner)


def _imports(module: Path) -> Iterator[str]:
    """The modules of `tests` that a module imports, also within functions."""
    for node in _statements(ast.parse(_text(module))) if OTHERS.search(_text(module)) else ():
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names]
        yield from (n for n in names if n.startswith("tests."))


def _is_allowed(name: str, module: Path) -> bool:
    folder, _, rest = name.removeprefix("tests.").partition(".")
    if folder == "support":
        return True
    # A folder may have programs, and modules that these share.
    return module.parent == TESTS / folder and not rest.startswith(("test_", "conftest"))


def test_tests_share_modules_of_support_and_nothing_else() -> None:
    found = {(str(m.relative_to(TESTS)), name) for m in MODULES for name in _imports(m) if not _is_allowed(name, m)}
    assert found == set()


def _has_docstring(module: Path) -> bool:
    return _text(module).startswith('"""') or ast.get_docstring(ast.parse(_text(module))) is not None


def test_each_module_says_what_it_is_about() -> None:
    silent = [m for m in MODULES if m.name != "__init__.py" and not _has_docstring(m)]
    assert [str(m.relative_to(TESTS)) for m in silent] == []

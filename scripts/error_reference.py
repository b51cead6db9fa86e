"""The error classes, a section for each: what it means, whether another attempt can help, and what to do."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from error_advice import ADVICE
from reference_text import code, escaped, first_paragraph, page

from lake_assets import errors

_INTRO = """
Each message says what happened, where, and what to do, with the names of your tables and columns. This page says what a
class means, and what helps in general. In it, `TABLE`, `PIPELINE` and `ID` stand for yours.
"""
_AGAIN = {
    True: "Trying again helps only after a correction.",
    False: "Trying again may help: a step tries three times by itself.",
}
# Their objects say it, not their classes.
_DEPENDING = {"LakeError": "the class", "HiddenValuesError": "the hidden error"}
_ROOTS = {"Exception", "LakeError", "TransientError"}


def errors_page() -> str:
    """Return the page about all error classes."""
    return page("Errors", _INTRO, [_index(), *_sections()])


def classes() -> dict[str, type[errors.LakeError]]:
    """Return the error classes by name, in the order of their module."""
    return {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.LakeError)}


def _index() -> str:
    lines = (f"- {title}: {', '.join(f'[{code(n)}](#{n.lower()})' for n in names)}" for title, names in _groups())
    return "\n".join(lines)


def _sections() -> Iterator[str]:
    for title, names in _groups():
        yield f"## {title}"
        yield from map(_section, names)


def _section(name: str) -> str:
    of = classes()[name]
    parent = of.__mro__[1].__name__
    kind = "" if parent in _ROOTS else f" It is also a [{code(parent)}](#{parent.lower()})."
    meaning = escaped(first_paragraph(of.__doc__))
    depends = f"Whether trying again helps depends on {_DEPENDING[name]}." if name in _DEPENDING else ""
    return f"### {name}\n\n{meaning}{kind}\n\n*{depends or _AGAIN[of.permanent]}* {ADVICE[name]}"


def _groups() -> Iterator[tuple[str, list[str]]]:
    """Yield the headings of the module's comments with the classes below them."""
    source = inspect.getsource(errors)
    headings = [(0, "all errors")] + [
        (source.count("\n", 0, m.start()) + 1, m[1]) for m in re.finditer(r"^# --- (.*?) -+$", source, re.MULTILINE)
    ]
    found: dict[str, list[str]] = {title: [] for _, title in headings}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name in classes():
            title = [t for line, t in headings if line <= node.lineno][-1]
            found[title].append(node.name)
    yield from ((t[0].upper() + t[1:], names) for t, names in found.items() if names)

"""The error classes as tables: what each means, whether another attempt can help, and what to do."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from error_advice import ADVICE
from reference_text import code, escaped, first_paragraph, page, table

from lake_assets import errors

_INTRO = """
Each message says what happened, where, and what to do, with the names of your tables and columns. This page is the
overview: what a class means, and what helps in general. *Temporary* errors are retried, within the step and by the
sensor; others end a step at once.
"""


def errors_page() -> str:
    """Return the page about all error classes."""
    return page("Errors", _INTRO, _sections())


def classes() -> dict[str, type[errors.LakeError]]:
    """Return the error classes by name, in the order of their module."""
    return {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.LakeError)}


def _sections() -> Iterator[str]:
    for title, names in _groups():
        rows = []
        for name in names:
            of = classes()[name]
            parent = of.__mro__[1].__name__
            kind = "" if parent in ("Exception", "LakeError", "TransientError") else f"<br>a {code(parent)}"
            meaning = escaped(first_paragraph(of.__doc__))
            rows.append([code(name) + kind, meaning, "no" if of.permanent else "yes", ADVICE[name]])
        yield f"## {title}\n\n{table(['class', 'means', 'temporary', 'what to do'], rows)}"


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

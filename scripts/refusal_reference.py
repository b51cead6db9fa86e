"""What cannot be done incrementally, or not at all: the reasons that the code gives, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from reference_text import escaped, page

PACKAGE = Path(__file__).parents[1] / "lake_assets"
_INTRO = """
The reasons for which this version does less than one could wish, as the code states them; `…` stands for a name of
yours. Only the last group stops a table. In the others the result is exact all the same, and a step costs more.
[Limits](../explanation/limits.md) says what they mean in practice.
"""
# A heading, what follows from such a reason, and which calls state it: files below the package, names of classes.
_GROUPS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "A SQL model is computed as a whole": (
        "The query has a part that no operator maintains: each step computes everything, and writes the rows that "
        "differ. `lake-assets explain` shows the reason.",
        "models/sql",
        ("Uncompilable",),
    ),
    "A step of a model works in another way": (
        "Groups are computed by key instead of adjusted, or a step computes everything; the reason is in the step's "
        "metadata `strategy`.",
        "models",
        ("Refused", "Doubt"),
    ),
    "A final table is rebuilt": (
        "In one commit, from all its events.",
        "final",
        ("Refused",),
    ),
    "A capture stops": (
        "It is exact, or there is none.",
        "capture",
        ("UnsupportedCaptureError", "NotAnAncestorError"),
    ),
}  # fmt: skip


def refusals_page() -> str:
    """Return the page about all refusals."""
    sections: list[str] = []
    for title, (text, folder, classes) in _GROUPS.items():
        reasons = sorted(set(_reasons(folder, classes)), key=str.lower)
        sections.append(f"## {title}\n\n{text}\n\n" + "\n".join(f"- {escaped(r)}" for r in reasons))
    return page("Refusals", _INTRO, sections)


def _reasons(folder: str, classes: tuple[str, ...]) -> Iterator[str]:
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes and node.args:
                text = _text(node.args[0])
                # A reason that is only handed on is stated elsewhere.
                if len(text.replace("…", "").split()) > 1:
                    yield text


def _text(node: ast.expr) -> str:
    """Return the text of a message, with `…` for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(v) for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"

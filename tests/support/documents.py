"""The Markdown files of the repository: their headings, links and fenced blocks, as a code host reads them."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT

PAGES = tuple(sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]))
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page: its text without common indentation, and as it stands below its fence."""

    page: str
    line: int
    language: str
    text: str
    indented: str

    @property
    def first(self) -> str:
        """Its first line, by which a list of snippets names it."""
        return self.text.split("\n", 1)[0].strip()

    @property
    def indent(self) -> int:
        return len(self.indented) - len(self.indented.lstrip(" "))

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@functools.cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def snippets(page: Path) -> list[Snippet]:
    """Return the fenced blocks of a page. Within a list they are indented, and shown without that."""
    text = text_of(page)
    found: list[Snippet] = []
    for m in _FENCE.finditer(text):
        inner = "".join(line.removeprefix(m[1]) for line in m[3].splitlines(keepends=True))
        line = text.count("\n", 0, m.start()) + 1
        found.append(Snippet(name_of(page), line, m[2], textwrap.dedent(inner), inner))
    return found


def prose(page: Path) -> str:
    """Return a page without its code, with all lines in place."""
    text = _FENCE.sub(lambda m: "\n" * m[0].count("\n"), text_of(page))
    return re.sub(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the target of each link and image."""
    text = prose(page)
    for m in _LINK.finditer(text):
        yield text.count("\n", 0, m.start()) + 1, m[1]


@functools.cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings. Of equal headings, only the first has one that sites agree on."""
    headings = _HEADING.findall(_FENCE.sub("", text_of(page)))
    return frozenset(slug(h) for h in headings) | frozenset(re.findall(r'<a (?:id|name)="([^"]+)"', text_of(page)))


def slug(heading: str) -> str:
    """Return the anchor of a heading: lower case, without punctuation, hyphens for spaces."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")

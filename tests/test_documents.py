"""The documentation holds together: links lead somewhere, and the site shows every page."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markdown
import pytest

from tests.support.documents import PAGES, anchors, links, name_of, slug
from tests.support.processes import ROOT

ELSEWHERE = ("http://", "https://", "mailto:")


def _broken(page: Path) -> Iterator[str]:
    for line, target in links(page):
        if target.startswith(ELSEWHERE):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        where = f"{name_of(page)}:{line}: {target}"
        if not file.exists():
            yield f"{where}: no such file"
        elif ROOT / "docs" in page.parents and ROOT / "docs" not in file.parents:
            yield f"{where}: the site has only what is in docs/"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{where}: no such heading"


def test_links_and_anchors_of_all_pages_exist() -> None:
    assert len(PAGES) > 80
    assert [b for page in PAGES for b in _broken(page)] == []


def _pages_of(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else _pages_of(value)


def test_the_site_shows_every_page_once() -> None:
    shown = sorted(_pages_of(tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]))
    docs = {p.relative_to(ROOT / "docs").as_posix() for p in PAGES if ROOT / "docs" in p.parents}
    # The list of decisions links each of them.
    assert shown == sorted(n for n in docs if not n.startswith("decisions/0"))
    listed = {target for _, target in links(ROOT / "docs" / "decisions" / "README.md")}
    assert {n.removeprefix("decisions/") for n in docs if n.startswith("decisions/0")} <= listed


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [("The order of Debezium's events", "the-order-of-debeziums-events"), ("`a.b`: c & d", "ab-c--d")],
)
def test_anchors_are_those_of_a_code_host(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Text:\n- a\n  more\n- b\n", "<p>Text:</p><ul><li>amore</li><li>b</li></ul>"),
        ("- a:\n  - b\n- c\n", "<ul><li>a:<ul><li>b</li></ul></li><li>c</li></ul>"),
        ("1. a\n   - b\n2. c\n\nText\n", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol><p>Text</p>"),
        ("- a\n\n  more\n- b\n", "<ul><li><p>a</p><p>more</p></li><li><p>b</p></li></ul>"),
        ("- a\n# Heading\n", "<ul><li>a</li></ul><h1>Heading</h1>"),
        ("Text\n| a |\n|---|\n| b |\n", "<p>Text</p><table>"),
    ],
)
def test_lists_of_the_site_nest_as_on_a_code_host(text: str, html: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    shown = markdown.markdown(text, extensions=["sane_lists", "tables", "fenced_code", "code_host_lists"])
    assert "".join(line.strip() for line in shown.splitlines()).startswith(html)

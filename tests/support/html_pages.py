"""Pages of HTML as a browser reads them: elements, their texts, and what is wrong with them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

# Texts that would be elements, attributes or templates if they were not escaped.
MARKUP = (
    "<script>alert(1)</script>",
    "</title></style></svg><img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "' autofocus onfocus='alert(1)",
    "{{ 7 * 7 }}{% include 'x' %}",
    "&lt;b&gt;",
    "javascript:alert(1)",
    "]]><!--",
)
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_VOID = {"meta", "link", "br", "hr", "img", "input", "col", "area", "base", "embed", "source", "track", "wbr"}


@dataclass
class Element:
    """An element with what is in it."""

    tag: str
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it; that of children comes after its own."""
        return " ".join(" ".join([*self.texts, *(c.text for c in self.children)]).split())

    def all(self, *tags: str) -> Iterator[Element]:
        """Yield the elements in it, of some kinds."""
        for child in self.children:
            if not tags or child.tag in tags:
                yield child
            yield from child.all(*tags)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.at = Element("document", {})
        self.mistakes: list[str] = []
        self.within_a_word = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "wbr":  # a line may break here, and the word goes on
            self.within_a_word = True
            return
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.mistakes.append(f"<{tag}> repeats an attribute: {names}")
        element = Element(tag, {name: value or "" for name, value in attrs}, self.at)
        self.at.children.append(element)
        if tag not in _VOID:
            self.at = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.at.tag != tag or self.at.parent is None:
            self.mistakes.append(f"line {self.getpos()[0]}: </{tag}> ends <{self.at.tag}>")
            return
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        if self.within_a_word:
            self.at.texts[-1] += data
        else:
            self.at.texts.append(data)
        self.within_a_word = False


def read_page(html: str) -> Element:
    """Read a page whose elements are all closed."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.mistakes == []
    assert reader.at is reader.root, f"<{reader.at.tag}> is not closed"
    return reader.root


def check_alone(html: str) -> None:
    """Check that a page loads and runs nothing."""
    page = read_page(html)
    assert [e.tag for e in page.all("script", "iframe", "object", "embed", "link", "img", "base", "form", "style")] == [
        "style"
    ]
    for element in page.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on"), (element.tag, name)
            if name in ("href", "src", "xlink:href", "action", "data", "srcset"):
                assert value.startswith("#"), (element.tag, name, value)
    (style,) = page.all("style")
    assert not re.search(r"url\(|@import|expression\(", style.text)


def check_text(html: str, like: str) -> None:
    """Check that a hostile text in a page is text: it makes no other element than a plain one in a page like it."""

    def shape(page: str) -> list[tuple[str, list[str]]]:
        # What stands in backticks is code.
        return [(e.tag, sorted(e.attributes)) for e in read_page(page).all() if e.tag != "code"]

    assert not _UNSAFE.search(html)
    assert shape(html) == shape(like)


def check_accessible(html: str) -> None:
    """Check what can be told of a page without a browser: names, headings, tables, pictures, ids."""
    page = read_page(html)
    (root,) = page.all("html")
    assert root.attributes["lang"] == "en"
    (title,) = [t for t in page.all("title") if t.parent and t.parent.tag == "head"]
    assert title.text
    viewport = next(m for m in page.all("meta") if m.attributes.get("name") == "viewport")
    assert "user-scalable" not in viewport.attributes["content"]
    ids = [e.attributes["id"] for e in page.all() if "id" in e.attributes]
    assert len(set(ids)) == len(ids)
    for element in page.all():
        for name in element.attributes.get("aria-labelledby", "").split():
            assert name in ids, name
        if (link := element.attributes.get("href", "")).startswith("#"):
            assert link[1:] in ids, link
    levels = [int(h.tag[1]) for h in page.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert len(list(page.all("main"))) == 1
    for table in page.all("table"):
        assert [c.text for c in table.all("caption") if c.text], "a table without a caption"
        assert all(th.attributes.get("scope") in ("col", "row") for th in table.all("th"))
        columns = len(list(next(iter(table.all("thead"))).all("th")))
        for row in next(iter(table.all("tbody"))).all("tr"):
            assert len(row.children) == columns, row.text
    for svg in page.all("svg"):
        if svg.attributes.get("aria-hidden") != "true":
            assert svg.attributes["role"] == "img"
            assert [c.tag for c in svg.children[:2]] == ["title", "desc"]
            assert all(c.text for c in svg.children[:2])


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, `#rrggbb` or `#rgb`, as WCAG defines it."""

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
        parts = (int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4))
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)

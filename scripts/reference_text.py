"""Markdown of the generated reference pages: notes, tables, and text that no Markdown reader misreads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by scripts/write_reference.py. Change the code that it reads, then run `make reference`. -->"


def page(title: str, intro: str, sections: Iterable[str]) -> str:
    """Return a page: its note, title, introduction and sections."""
    return "\n\n".join([NOTE, f"# {title}", intro.strip(), *sections]).rstrip() + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"|{'|'.join(map(_cell, line))}|" for line in lines)


def _cell(text: str) -> str:
    words = " ".join(text.split())
    return f" {words} " if words else " "


def escaped(text: str) -> str:
    """Return plain text as Markdown for a cell; parts in backticks stay code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if n % 2 else _plain(p) for n, p in enumerate(parts)).replace("|", "\\|")


def _plain(text: str) -> str:
    text = text.replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([*_\[\]])", r"\\\1", text)


def code(text: str) -> str:
    """Return text as code for a cell."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}".replace("|", "\\|")


def first_paragraph(docstring: str | None) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((docstring or "").strip().partition("\n\n")[0].split())

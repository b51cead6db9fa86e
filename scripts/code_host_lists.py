"""An extension of Python-Markdown: lists and tables of the documentation's site begin and nest as on a code host.

CommonMark begins a list or a table below a line of text, and nests an item that is indented as far as the text above.
Python-Markdown wants an empty line before both and four spaces for each level; without these, they become text.
"""

from __future__ import annotations

import re

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

_ITEM = re.compile(r"^( *)([-*+]|\d+\.)( +)(?=\S)")
_LEVEL = 4
_PRIORITY = 22  # after fenced code, which is a placeholder by then (25), and before HTML (20)
_ENDS_LISTS = ("#", "|", ">", "<", "\x02")  # a heading, table, quotation, HTML, or the placeholder of fenced code


class _Lists(Preprocessor):
    """Inserts the empty line before a list or table, and indents items by levels."""

    def run(self, lines: list[str]) -> list[str]:
        """Return the lines of a page as Python-Markdown wants them."""
        written: list[str] = []
        columns: list[int] = []  # at which the texts of the open items begin
        has_paragraphs = False  # whether the last item has more than one
        for line in lines:
            text = line.lstrip(" ")
            indent = len(line) - len(text)
            is_below_text = bool(written) and bool(written[-1].strip())
            if item := _ITEM.match(line):
                if is_below_text and (has_paragraphs or not columns):
                    written.append("")
                while columns and indent < columns[-1]:
                    columns.pop()
                written.append(" " * (_LEVEL * len(columns)) + text)
                columns.append(item.end())
                has_paragraphs = False
            elif not text or _is_within(columns, line, is_below_text):
                has_paragraphs = has_paragraphs or not is_below_text
                written.append(" " * (_LEVEL * len(columns)) + text if text else "")
            else:
                columns = []
                if line.startswith("|") and is_below_text and not written[-1].startswith("|"):
                    written.append("")
                written.append(line)
        return written


def _is_within(columns: list[int], line: str, is_below_text: bool) -> bool:
    """Return whether a line is the rest of an open item, and close the items that it ends."""
    indent = len(line) - len(line.lstrip(" "))
    if not columns or (indent < columns[0] and (not is_below_text or line.startswith(_ENDS_LISTS))):
        return False
    while len(columns) > 1 and indent < columns[-1] and not is_below_text:
        columns.pop()
    return True


class CodeHostLists(Extension):
    """See the module."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Register the preprocessor."""
        md.preprocessors.register(_Lists(md), "code_host_lists", _PRIORITY)


def makeExtension(**settings: object) -> CodeHostLists:
    """Return the extension: Python-Markdown calls this function of a module that is named in its settings."""
    return CodeHostLists(**settings)

"""Parse SQL, and say at which word it is wrong."""

from __future__ import annotations

import re
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from lake_assets.lake.sql_text import DIALECT, LakeSpark


class SqlSyntaxError(Exception):
    """A text that is not SQL.

    Attributes:
        line: the line of the mistake, from 1; None: unknown.
        text: what is wrong, and at which word.
    """

    def __init__(self, line: int | None, text: str) -> None:
        super().__init__(text)
        self.line, self.text = line, text


def parse_statements(sql: str) -> list[exp.Expr | None]:
    """Return the statements of a text.

    Raises:
        SqlSyntaxError: it is not SQL.
    """
    try:
        return list(sqlglot.parse(sql, dialect=DIALECT))
    except ParseError as e:
        first: dict[str, Any] = e.errors[0] if e.errors else {}
        raise SqlSyntaxError(first.get("line"), _described(first) if first else str(e)) from e
    except TokenError as e:
        raise SqlSyntaxError(open_quote(sql), "a quote or comment that begins here is not closed") from e
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
        # sqlglot raises these itself, as for `map(a)`, whose second argument it expects.
        line, word = _last_word(sql)
        at = f" after `{word}`" if word else ""
        raise SqlSyntaxError(line, f"it cannot be read: does a call lack an argument{at}? ({e})") from e


def _described(error: dict[str, Any]) -> str:
    """Return what an error of sqlglot says, with the word at which it occurred."""
    what, word = str(error.get("description", "")), str(error.get("highlight", ""))
    if what.startswith("Required keyword"):
        return f"something is missing after `{word}`" if word else "something is missing"
    last = "" if str(error.get("end_context", "")).strip() else ", the last word"
    return f"{what}: found `{word}`{last}" if word else what


def _last_word(sql: str) -> tuple[int | None, str]:
    """Return line and text of the word that sqlglot's parser had reached when it failed."""
    dialect = LakeSpark()
    parser = dialect.parser()
    try:
        parser.parse(dialect.tokenize(sql), sql)
    except Exception:  # the same as before, of any kind
        token = getattr(parser, "_prev", None)
        return (token.line, token.text) if token is not None else (None, "")
    return None, ""


_QUOTED = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|(?P<open>['"`]|/\*)""",
    re.DOTALL,
)


def open_quote(sql: str) -> int | None:
    """Return the line of the first unclosed quote or comment; None if all are closed."""
    starts = (m.start() for m in _QUOTED.finditer(sql) if m["open"])
    return next((1 + sql.count("\n", 0, start) for start in starts), None)

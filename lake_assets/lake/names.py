"""Names of tables and columns, and the only place where they become SQL text."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from lake_assets.errors import InvalidNameError

# Neither hidden, nor a way to another folder, nor with a character that means something in a URI or glob.
_FOLDER = re.compile(r"\w(?:[\w .$-]*[\w$-])?")
# Less than the 255 bytes of most file systems: others add to it.
_LONGEST_FOLDER = 200

# Columns that a capture adds begin so.
_OF_CHANGES = ("_change_type", "_commit_", "__lake_")
# Iceberg refuses to read tables with columns of these names beside its own ones.
_OF_ICEBERG = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")


def quote(*parts: str) -> str:
    """One SQL identifier of `parts`, each in backticks: quote("final", "users") -> `final`.`users`."""
    for part in parts:
        if not part or "\x00" in part:
            raise InvalidNameError(f"{part!r} cannot be a name in SQL: it is empty or holds a NUL character")
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def is_of_changes(column: str) -> bool:
    """Whether a column is called like those that come with the changes of a table."""
    return column.lower().startswith(_OF_CHANGES)


def is_reserved(column: str) -> bool:
    """Whether rows with a column of this name cannot be read as changes."""
    return is_of_changes(column) or column.lower() in _OF_ICEBERG


def literal(text: str) -> str:
    """`text` as a SQL string literal (raw, so that a backslash stays one)."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def nearest(name: str, names: Iterable[str]) -> str:
    """Ask whether one of some names was meant; empty where none is near."""
    by_lower = {n.lower(): n for n in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[near[0]]}?)" if near else ""


@dataclass(frozen=True, order=True)
class TableId:
    """A table within the lake: its namespace (the layer, usually one part) and its name."""

    namespace: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str | TableId | tuple[str, ...]) -> Self:
        """`final.users`; a part that holds a dot is put in backticks: final.`a.b`.

        Raises:
            InvalidNameError: the text has no namespace, an empty part, or a backtick that is not closed.
        """
        if isinstance(text, TableId):
            return cls(text.namespace, text.name)
        parts = text if isinstance(text, tuple) else _split(text)
        if len(parts) < 2 or not all(parts):
            raise InvalidNameError(f"{text!r} is no table name: write namespace.table, for example final.users")
        return cls(tuple(parts[:-1]), parts[-1])

    @property
    def parts(self) -> tuple[str, ...]:
        """Namespace and name, as PyIceberg takes them."""
        return (*self.namespace, self.name)

    def sql(self, catalog: str) -> str:
        """The quoted name that Spark resolves in `catalog`."""
        return quote(catalog, *self.parts)

    def __str__(self) -> str:
        return ".".join(quote(p) if "." in p or "`" in p else p for p in self.parts)


def folder_of(part: str) -> str:
    """The folder of a table or namespace: its name, where that is one folder's name on every file system and in every
    URI; else what is left of the name, and a hash of it."""
    if _FOLDER.fullmatch(part) and len(part.encode()) <= _LONGEST_FOLDER:
        return part
    kept = re.sub(r"[^A-Za-z0-9]+", "_", part)[:40].strip("_")
    return f"{kept}-{hashlib.sha256(part.encode()).hexdigest()[:20]}".lstrip("-")


def _split(text: str) -> tuple[str, ...]:
    parts, part, quoted, i = [], "", False, 0
    while i < len(text):
        char = text[i]
        if char == "`" and quoted and text[i + 1 : i + 2] == "`":
            part, i = part + "`", i + 1
        elif char == "`":
            quoted = not quoted
        elif char == "." and not quoted:
            parts.append(part)
            part = ""
        else:
            part += char
        i += 1
    if quoted:
        raise InvalidNameError(f"{text!r}: a backtick is not closed")
    return (*parts, part)

"""Names of tables and columns, and the only place where they become SQL text."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from lake_assets.errors import InvalidNameError

# A folder name that is not hidden, does not leave its parent, and has no special characters of URIs or globs.
_FOLDER = re.compile(r"\w(?:[\w .$-]*[\w$-])?")
# Less than the 255 bytes of most file systems, since suffixes are added.
_MAX_FOLDER_BYTES = 200

# A name in backticks.
_QUOTED = re.compile(r"`(?:[^`]|``)+`", re.DOTALL)

# The namespace of the tables that are captures.
CAPTURES = "icdc"
# Prefixes of the columns that a capture adds.
_CHANGE_COLUMNS = ("_change_type", "_commit_", "__lake_")
# Iceberg's metadata columns: it does not read tables that have other columns of these names.
_ICEBERG_COLUMNS = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")


def quote(*parts: str) -> str:
    """Return `parts` as one SQL identifier, each in backticks: quote("final", "users") -> `final`.`users`."""
    for part in parts:
        if not part or "\x00" in part:
            raise InvalidNameError(f"{part!r} cannot be a name in SQL: it is empty or contains a NUL character")
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def is_of_changes(column: str) -> bool:
    """Whether a column's name is reserved for the columns that a capture adds."""
    return column.lower().startswith(_CHANGE_COLUMNS)


def is_of_iceberg(column: str) -> bool:
    """Whether a column's name is that of one of Iceberg's metadata columns."""
    return column.lower() in _ICEBERG_COLUMNS


def is_reserved(column: str) -> bool:
    """Whether rows with a column of this name cannot be read as changes."""
    return is_of_changes(column) or is_of_iceberg(column)


def literal(text: str) -> str:
    """Return `text` as a SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def read_column(text: str) -> str:
    """Return the name of a column as a setting writes it: plain, or in backticks (where two stand for one).

    All settings that name columns read them here. Backticks are needed where a plain name would mean something else,
    such as the column `days(at)` in `partition_by`.

    Raises:
        InvalidNameError: the name is empty or contains a NUL character.
    """
    name = text[1:-1].replace("``", "`") if _QUOTED.fullmatch(text) else text
    if not name or "\x00" in name:
        raise InvalidNameError(f"{text!r} is not the name of a column: it is empty or contains a NUL character")
    return name


def nearest(name: str, names: Iterable[str], key: Callable[[str], str] = str.lower) -> str:
    """Return ` (did you mean X?)` with the name whose key is most similar to `name`'s; empty if none is similar."""
    by_key = {key(n): n for n in names}
    matches = difflib.get_close_matches(key(name), by_key, n=1)
    return f" (did you mean {by_key[matches[0]]}?)" if matches else ""


@dataclass(frozen=True, order=True)
class TableId:
    """A table within the lake: its namespace (the layer, usually one part) and its name."""

    namespace: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str | TableId | tuple[str, ...]) -> Self:
        """Parse `final.users`; a part that contains a dot is written in backticks: final.`a.b`.

        Raises:
            InvalidNameError: the text has no namespace, an empty part, or an unclosed backtick.
        """
        if isinstance(text, TableId):
            return cls(text.namespace, text.name)
        given: object = text
        parts = text if isinstance(text, tuple) else _split(text) if isinstance(given, str) else ()
        if len(parts) < 2 or not all(parts):
            example = f"final.{parts[0]}" if len(parts) == 1 and parts[0].isidentifier() else "final.users"
            raise InvalidNameError(f"{text!r} is not a table name: write namespace.table, for example {example}")
        return cls(tuple(parts[:-1]), parts[-1])

    @property
    def parts(self) -> tuple[str, ...]:
        """Namespace and name as one tuple, PyIceberg's identifier."""
        return (*self.namespace, self.name)

    def sql(self, catalog: str) -> str:
        """The quoted name that Spark resolves in `catalog`."""
        return quote(catalog, *self.parts)

    def __str__(self) -> str:
        return ".".join(quote(p) if "." in p or "`" in p else p for p in self.parts)


# The layers, those that people mean first.
_LAYERS = ("final", "agg", "staging", "raw")


def nearest_table(text: str, tables: Iterable[TableId]) -> str:
    """Return ` (did you mean X or Y?)` for a table whose name is mistyped, or lacks its layer; empty if none is
    similar: `user` -> ` (did you mean final.users or staging.users?)`."""
    known = sorted(tables, key=lambda t: _LAYERS.index(t.namespace[0]) if t.namespace[0] in _LAYERS else len(_LAYERS))
    if "." in text:
        return nearest(text, map(str, known))
    close = (
        [text] if any(t.name == text for t in known) else difflib.get_close_matches(text, [t.name for t in known], 1)
    )
    meant = list(dict.fromkeys(str(t) for t in known if t.name in close))
    return f" (did you mean {' or '.join(meant)}?)" if meant else ""


def folder_of(part: str) -> str:
    """Return the folder of a table or namespace.

    It is the name itself if every file system and URI accepts it as a folder. Otherwise it is the name's letters and
    digits, followed by a hash of the name.
    """
    if _FOLDER.fullmatch(part) and len(part.encode()) <= _MAX_FOLDER_BYTES:
        return part
    prefix = re.sub(r"[^A-Za-z0-9]+", "_", part)[:40].strip("_")
    return f"{prefix}-{hashlib.sha256(part.encode()).hexdigest()[:20]}".lstrip("-")


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

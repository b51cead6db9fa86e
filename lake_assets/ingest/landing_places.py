"""Where files of records arrive: a folder of this machine or of an object store, or one folder per source table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

from lake_assets.formats import SourceTable
from lake_assets.lake.object_stores import is_store
from lake_assets.lake.paths import local_path, store_url

_PLACEHOLDER = re.compile(r"\{([^{}/]*)\}")
_KNOWN = {"schema": "(?P<schema>[^/]+?)", "table": "(?P<table>[^/]+)"}


@dataclass(frozen=True)
class Landing:
    """Where the files of a stream arrive.

    Attributes:
        root: an absolute path, or the URL of a folder of an object store.
        folders: the folders below it that are read, as a pattern: `{schema}/{table}`; empty: the folder itself.
        schema: the schema of tables whose folders name none; None without such folders.
        by_name: whether names only grow, so that a listing may begin behind the last landed one.
    """

    root: str
    folders: str = ""
    schema: str | None = None
    by_name: bool = False

    @classmethod
    def parse(cls, text: str | Path, home: Path = Path(), *, schema: str | None = None, by_name: bool = False) -> Self:
        """Parse a folder, a URL, or one of them with `{schema}` and `{table}` in the names of folders.

        Args:
            home: a relative folder is below it.
            schema: see `schema`.

        Raises:
            ValueError: it is none of them, or has other placeholders.
        """
        written = str(landing_text(text))
        root, folders = _split(written)
        if not is_store(written):
            root = str(home / root)
        return cls(root, folders, schema if folders else None, by_name)

    def __str__(self) -> str:
        return f"{self.root.rstrip('/')}/{self.folders}" if self.folders else self.root

    @property
    def path(self) -> Path | None:
        """The folder, if it is one of this machine."""
        return None if is_store(self.root) else Path(self.root)

    @property
    def is_missing(self) -> bool:
        """Whether it is a folder of this machine that does not exist. An object store has no empty folders."""
        return self.path is not None and not self.path.exists()

    @property
    def segments(self) -> tuple[str, ...]:
        """The patterns of the folders below the root, from the outermost one on."""
        return tuple(filter(None, self.folders.split("/")))

    def table_of(self, file: str) -> SourceTable | None:
        """Return the source table of the folder that a file is in, by the file's name below the root; None: the folder
        does not tell."""
        if not self.folders:
            return None
        found = pattern_of("/".join(self.segments)).fullmatch(file.rpartition("/")[0])
        if found is None:
            return None  # it landed while another pattern was declared
        names = found.groupdict()
        schema = names.get("schema", self.schema)
        return SourceTable(schema, names["table"]) if schema else None


def landing_text(value: str | Path) -> str:
    """Return the text of a `landing` setting with `~` and `file:` replaced.

    Raises:
        ValueError: it is neither a folder nor the URL of a known store, or has unknown placeholders.
    """
    text = store_url(str(value)) or str(local_path(value, "a folder of this machine, s3://, gs:// or abfss://"))
    names = _PLACEHOLDER.findall(text)
    wrong = [n for n in names if n not in _KNOWN] or [n for n in set(names) if names.count(n) > 1]
    rest = _PLACEHOLDER.sub("", text)
    if wrong or "{" in rest or "}" in rest:
        raise ValueError(
            f"{text}: in a landing folder, braces stand for the names of tables: write {{table}}, or {{schema}} and "
            "{table}, each once"
        )
    if names and "table" not in names:
        raise ValueError(f"{text}: {{schema}} without {{table}} does not tell the table: add {{table}}")
    if _PLACEHOLDER.search(_split(text)[0]):
        raise ValueError(f"{text}: the name of a bucket cannot be a placeholder: name the bucket")
    return text


def has_placeholder(text: str, name: str) -> bool:
    """Whether a `landing` setting has a placeholder: `schema` or `table`."""
    return f"{{{name}}}" in text


@lru_cache(maxsize=1_000)
def pattern_of(folders: str) -> re.Pattern[str]:
    """Return the regular expression of folders, such as `{schema}/{table}`."""
    parts = _PLACEHOLDER.split(folders)
    texts = [_KNOWN[p] if i % 2 else re.escape(p) for i, p in enumerate(parts)]
    return re.compile("".join(texts), re.DOTALL)


def _split(text: str) -> tuple[str, str]:
    """Split a setting before the first folder with a placeholder."""
    found = _PLACEHOLDER.search(text)
    if found is None:
        return text, ""
    root = text[: found.start()].rpartition("/")[0]
    if root.endswith(":/"):  # a placeholder in the place of a bucket
        return text, ""
    return root or ("/" if text.startswith("/") else "."), text[len(root) :].strip("/")

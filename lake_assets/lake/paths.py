"""Paths in settings: local paths, or `file:` URLs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlparse

from pydantic import BeforeValidator

# `Path` merges double slashes, so a URL that was a Path before reads `s3:/bucket`.
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/")

# Most bytes in the name of a file or folder.
_MAX_NAME_BYTES = 255


def local_path(value: Any) -> Any:
    """Return a setting's text as a path: `~` is expanded, and a `file:` URL becomes its path.

    Raises:
        ValueError: it is a URL of another machine, or not a path.
    """
    if not isinstance(value, str | Path):
        return value
    text = str(value)
    if "\0" in text or "%00" in text:
        raise ValueError(f"{text!r} is not a path: it contains a NUL character")
    url = _URL.match(text)
    if url is None:
        return _of_text(text)
    if url["scheme"].lower() == "file" and (path := _of_file_url(text)) is not None:
        return path
    raise ValueError(
        f"{text} is a URL, but only folders and files of this machine can be read: write a local path. If the files "
        "are elsewhere, mount or synchronize the folder"
    )


def file_url(path: Path) -> str:
    """Return the `file:` URL of an absolute path as Iceberg writes it: without escapes, which it would not undo.

    Raises:
        ValueError: the path contains a character with a meaning in URLs.
    """
    if found := sorted(set("%?#") & set(str(path))):
        raise ValueError(
            f"tables cannot be in {path}: its name contains {' and '.join(found)}. Choose another folder "
            "(LAKE_HOME, or LAKE_WAREHOUSE for the tables alone)"
        )
    return f"file://{path}"


def _of_text(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as e:
        raise ValueError(f"{text!r} is not a path: {e}") from e
    if long := next((p for p in path.parts if len(os.fsencode(p)) > _MAX_NAME_BYTES), None):
        raise ValueError(f"{long[:40]!r}... is too long for the name of a file: at most {_MAX_NAME_BYTES} bytes")
    return path


def _of_file_url(text: str) -> Path | None:
    """Return the path of file:/a, file:///a or file://localhost/a; None if the URL names another host."""
    parsed = urlparse(text)
    return Path(unquote(parsed.path)) if parsed.netloc in ("", "localhost") else None


LocalPath = Annotated[Path, BeforeValidator(local_path)]
"""A path setting; rejects URLs of other machines."""

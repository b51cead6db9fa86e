"""Folders and files that settings name: local paths, or `file:` URLs of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlparse

from pydantic import BeforeValidator

# `Path` makes one slash of two: a path object shows a URL as `s3:/bucket`.
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/")

# Bytes of the name of a file or folder.
_LONGEST = 255


def local_path(value: Any) -> Any:
    """Return a setting's text as a path, with `~` expanded; `file:` URLs become the path that they name.

    Raises:
        ValueError: a URL of anything but this machine's files, or no path at all.
    """
    if not isinstance(value, str | Path):
        return value
    text = str(value)
    if "\0" in text or "%00" in text:
        raise ValueError(f"{text!r} is no path: it holds a NUL character")
    url = _URL.match(text)
    if url is None:
        return _of_text(text)
    if url["scheme"].lower() == "file" and (path := _of_file_url(text)) is not None:
        return path
    raise ValueError(
        f"{text} is a URL, and only folders and files of this machine are read here: write a local path (of a mounted "
        "or synchronized folder, where the files are elsewhere)"
    )


def _of_text(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as e:
        raise ValueError(f"{text!r} is no path: {e}") from e
    if long := next((p for p in path.parts if len(os.fsencode(p)) > _LONGEST), None):
        raise ValueError(f"{long[:40]!r}... is too long for the name of a file: at most {_LONGEST} bytes")
    return path


def _of_file_url(text: str) -> Path | None:
    """The path of file:/a, file:///a or file://localhost/a; None where it names another host."""
    parsed = urlparse(text)
    return Path(unquote(parsed.path)) if parsed.netloc in ("", "localhost") else None


LocalPath = Annotated[Path, BeforeValidator(local_path)]
"""A path setting that refuses URLs of other machines."""

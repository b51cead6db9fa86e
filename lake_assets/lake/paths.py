"""Paths in settings: local paths, `file:` URLs, and URLs of object stores where they may be named."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlparse

from pydantic import BeforeValidator

from lake_assets.lake.object_stores import STORES

# `Path` merges double slashes, so a URL that was a Path before reads `s3:/bucket`.
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/")

# Most bytes in the name of a file or folder.
_MAX_NAME_BYTES = 255


def local_path(value: Any, accepted: str = "") -> Any:
    """Return a setting's text as a path: `~` is expanded, and a `file:` URL becomes its path.

    Args:
        accepted: what the setting takes, if it takes more than local paths.

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
    if accepted:
        raise ValueError(f"{text} is a URL that cannot be read: write {accepted}")
    raise ValueError(
        f"{text} is a URL, but only folders and files of this machine can be read: write a local path. If the files "
        "are elsewhere, mount or synchronize the folder"
    )


def store_url(text: str) -> str | None:
    """Return the URL of a folder of an object store without a slash at its end; None: it is no URL of a known store.

    Raises:
        ValueError: it has no bucket, or a place for secrets.
    """
    url = _URL.match(text)
    if url is None or (scheme := url["scheme"].lower()) not in STORES:
        return None
    rest = text[url.end() :].removeprefix("/")
    container, _, path = rest.partition("/")
    account, _, host = container.rpartition("@")
    if "?" in rest or ":" in container or (account and scheme not in ("abfs", "abfss")):
        # A part of it may be a secret, and would get into tables and messages.
        raise ValueError(
            f"the {scheme}:// URL of a landing folder has a bucket and a path, and neither credentials nor parameters: "
            "set those in the environment, or as `storage` in the lake's configuration"
        )
    if not host or "\0" in rest or "%00" in rest:
        raise ValueError(f"{text!r} is not the URL of a folder: write {scheme}://bucket/folder")
    return f"{scheme}://{container}/{path.strip('/')}".rstrip("/")


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


LocalPath = Annotated[Path, BeforeValidator(lambda value: local_path(value))]
"""A path setting; rejects URLs of other machines."""

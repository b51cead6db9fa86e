"""Temporary folders of JVMs: for their user alone, and removed when the process that they belong to is gone.

A JVM that is killed leaves what it has unpacked and shuffled. Each has one folder for all of it, whose name says which
process it belongs to; whoever starts the next JVM removes those of processes that are no more.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

from lake_assets.runtime.processes import OWNER, is_gone, owner

PREFIX = "lake-assets-jvm"
_NAME = re.compile(rf"{PREFIX}-({OWNER})-\w+")
_own: list[tuple[Path, int]] = []


def new_folder() -> Path:
    """Make a folder for a JVM of this process; it goes with the process, or with the next start of another one."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{owner()}-"))
    _own.append((folder, os.getpid()))
    atexit.register(remove_own)
    return folder


def remove_own() -> None:
    """Remove the folders of this process; its JVM is gone, or about to go."""
    for folder, pid in _own:
        if pid == os.getpid():  # not those of a process that this one was forked from
            shutil.rmtree(folder, ignore_errors=True)


def java_option(folder: Path) -> str:
    """The option that makes a JVM keep its temporary files, Spark's included, in a folder."""
    option = f"-Djava.io.tmpdir={folder}"
    return f'"{option}"' if " " in option else option


def sweep() -> list[Path]:
    """Remove the folders of this user's processes that are gone; return them.

    Those of other containers and machines, whose processes cannot be seen from here, stay.
    """
    swept: list[Path] = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"):
        found = _NAME.fullmatch(folder.name)
        try:
            is_own = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
        except FileNotFoundError:
            continue
        if found and is_own and is_gone(found[1]):
            shutil.rmtree(folder, ignore_errors=True)
            swept.append(folder)
    return swept

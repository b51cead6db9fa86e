"""Temporary folders of JVMs: accessible to their user only, and removed after their process has ended.

A killed JVM leaves its unpacked and shuffled files. Each JVM has one folder for them, whose name identifies its
process; the start of the next JVM removes the folders of dead processes.
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
    """Create a folder for a JVM of this process; it is removed with the process, or by the next JVM's start."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{owner()}-"))
    _own.append((folder, os.getpid()))
    atexit.register(remove_own)
    return folder


def remove_own() -> None:
    """Remove the folders of this process, whose JVM has ended or is ending."""
    for folder, pid in _own:
        if pid == os.getpid():  # not those of a process that this one was forked from
            shutil.rmtree(folder, ignore_errors=True)


def java_option(folder: Path) -> str:
    """Return the JVM option for a folder of its temporary files, Spark's included."""
    option = f"-Djava.io.tmpdir={folder}"
    return f'"{option}"' if " " in option else option


def sweep() -> list[Path]:
    """Remove the folders of this user's dead processes, and return them.

    Folders of other containers and machines, whose processes are not visible from here, stay.
    """
    swept: list[Path] = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*"):
        match = _NAME.fullmatch(folder.name)
        try:
            is_own = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
        except FileNotFoundError:
            continue
        if match and is_own and is_gone(match[1]):
            shutil.rmtree(folder, ignore_errors=True)
            swept.append(folder)
    return swept
